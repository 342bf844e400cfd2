"""The commands at real servers: moto's S3 and OpenSSH's sftp. What goes wrong there is one line, without a secret."""

import json
import os
import subprocess
import sys
import threading
from contextlib import closing

import pytest

from command_runs import finished, save
from holdfast.cli.sources import open_source
from holdfast.mirror.backends import open_place
from holdfast.store.store import Store
from servers import KEY, SECRET, needs_sshd, s3, sftp, sftp_server  # noqa: F401  fixtures
from stores import invoke

NEWEST = "step-000000030"
# what the libraries leave open until they are collected
pytestmark = [pytest.mark.filterwarnings(f"ignore::{kind}") for kind in ("ResourceWarning", "DeprecationWarning")]


@pytest.fixture
def run(tmp_path, tmp_path_factory):
    return finished(tmp_path, tmp_path_factory)


@pytest.fixture(params=["s3", pytest.param("sftp", marks=needs_sshd)])
def server(request, monkeypatch):
    found = request.getfixturevalue(request.param)
    for name, value in found.environment.items():
        monkeypatch.setenv(name, value)
    return found


@pytest.fixture
def url(server, tmp_path):
    return server.url(tmp_path.name)


def done(*words):
    result = invoke(*words)
    assert 0 == result.exit_code, (words, result.output)
    assert SECRET not in result.output
    return result.stdout


def one_line(*words):
    result = invoke(*words)
    lines = result.stderr.splitlines()
    assert (True, 1) == (result.exit_code > 0, len(lines)), result.output
    assert SECRET not in lines[0]
    return result.exit_code, lines[0]


def spoil(url, name):
    """Change one byte of a file at the place, behind everybody's back."""
    with closing(open_place(url)) as place:
        path = f"checkpoints/000001/{NEWEST}/{name}"
        data = bytearray(place.read(path))
        data[-1] ^= 1
        place.put(path, len(data), lambda: iter([bytes(data)]))


def test_every_command_works_at_the_place(run, url, tmp_path):
    """Copied there, listed, shown, compared, exported, read to the last byte, and copied back to a run that goes on."""
    assert 3 == done("copy", run, url, "--all").count("  copied  ")
    assert [10, 20, 30] == [row["step"] for row in json.loads(done("ls", url, "--json"))["checkpoints"]]
    assert f"{url}/checkpoints/000001/{NEWEST}" in done("show", url)
    assert "identical" in done("diff", f"{url}@20", f"{run}@20")
    done("export", url, "--step", "best", "-o", tmp_path / "model.safetensors")
    assert ["ok"] * 3 == [line.split()[1] for line in done("verify", url).splitlines()]
    done("copy", url, tmp_path / "again")
    assert "identical" in done("diff", run, tmp_path / "again")
    with closing(Store(tmp_path / "again")) as store:
        save(store, 40)
    done("copy", tmp_path / "again", url)
    assert "step            40" in done("show", url)


def test_damage_at_the_place_is_found(run, url):
    """By verify, with the address of the file; and it is not copied."""
    done("copy", run, url, "--all")
    shard = next(path.name for path in (run / "checkpoints" / NEWEST).glob("model*.safetensors"))
    spoil(url, shard)
    result = invoke("verify", url)
    assert (4, 2) == (result.exit_code, result.stdout.count("  ok  "))
    assert f"{url}/checkpoints/000001/{NEWEST}/{shard}: bytes " in result.stdout
    code, line = one_line("copy", url, run.parent / "to")
    assert (4, True) == (code, shard in line)


@needs_sshd
def test_a_server_that_is_away_for_a_moment_is_asked_again(run, tmp_path, monkeypatch):
    """It is told, and what had been begun is brought whole."""
    with sftp_server(tmp_path) as server:
        for name, value in server.environment.items():
            monkeypatch.setenv(name, value)
        done("copy", run, server.url("there"))
        told = []
        with open_source(server.url("there"), told.append) as here:
            checkpoint = here.locate().select()
            server.kill()
            back = threading.Timer(1, server.start)
            back.start()
            here.fetch_files(checkpoint)
            back.join()
            assert [] == [*checkpoint.problems()]
    assert any(line.startswith("asks again: ") for line in told)


def test_nothing_there_is_one_line(url):
    """Exit code 3, and the address."""
    assert (3, f"holdfast: {url}: no run has copies there") == one_line("ls", url)


def test_what_s3_refuses_is_one_line(s3, monkeypatch):  # noqa: F811
    """No such bucket, no credentials; a package that is missing is named with the line to type."""
    for name, value in s3.environment.items():
        monkeypatch.setenv(name, value)
    assert "s3://no-such-bucket/run" in one_line("ls", "s3://no-such-bucket/run")[1]
    code = "import sys; sys.modules['s3fs'] = sys.modules['aiobotocore'] = None; from holdfast.cli import main; main()"
    result = subprocess.run(
        [sys.executable, "-c", code, "ls", "s3://bucket/run"], check=False, capture_output=True, text=True
    )
    assert (2, 1) == (result.returncode, len(result.stderr.splitlines())), result.stderr
    assert "holdfast[s3]" in result.stderr
    environment = {name: value for name, value in os.environ.items() if "KEY" not in name}
    result = subprocess.run(
        [sys.executable, "-m", "holdfast", "ls", "s3://bucket/run"],
        check=False,
        capture_output=True,
        text=True,
        env=environment | {"HOME": "/nonexistent"},
    )
    assert (True, 1) == (result.returncode > 0, len(result.stderr.splitlines())), result.stderr
    assert KEY not in result.stderr
