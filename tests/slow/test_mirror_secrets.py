"""Secrets in addresses and in the environment reach no output, no journal, no manifest and no place."""

import os
import shutil
import subprocess
import sys
from contextlib import closing
from urllib.parse import quote

import pytest

from holdfast.mirror.backends import open_place
from servers import SECRET, needs_sshd, s3, sftp  # noqa: F401  fixtures

PASSWORD = "s3cret-of/the+address"
# what the libraries leave open until they are collected
pytestmark = [pytest.mark.filterwarnings(f"ignore::{kind}") for kind in ("ResourceWarning", "DeprecationWarning")]
SCRIPT = """
import sys
from holdfast import Run

state, mirrors = {"w": [0]}, sys.argv[2:]
with Run(sys.argv[1], state, mirror=mirrors, without=mirrors[1:], drain=5) as run:
    for step in run.steps(3):
        state["w"][0] += step
        run.save()
"""


def told(secret, text):
    """Whether the secret stands in the text, as it is or as an address spells it."""
    return any(form.encode() in text for form in (secret, quote(secret), quote(secret, safe="")))


def files_at(place, path=""):
    """Every file at a place, with its path."""
    for name in place.names(path):
        inner = f"{path}/{name}".lstrip("/")
        if place.names(inner):
            yield from files_at(place, inner)
        else:
            yield inner, place.read(inner)


@needs_sshd
def test_no_secret_is_told_anywhere(s3, sftp, tmp_path, monkeypatch):  # noqa: F811
    """A run with three places of which two refuse; then every command, with the password in the address."""
    (tmp_path / "train.py").write_text(SCRIPT)
    (tmp_path / ".ssh").mkdir(mode=0o700)  # the host is known, and no key is at hand
    shutil.copy(sftp.home / ".ssh/known_hosts", tmp_path / ".ssh/known_hosts")
    environment = {**os.environ, **s3.environment, "HOME": str(tmp_path), "SSH_AUTH_SOCK": ""}
    user = f"sftp://somebody:{quote(PASSWORD, safe='')}@127.0.0.1:{sftp.port}{sftp.files}/secrets"
    places = ["s3://bucket/secrets", user, "s3://no-such-bucket/run"]

    def said(*words):
        command = [sys.executable, *map(str, words)]
        done = subprocess.run(command, check=False, cwd=tmp_path, env=environment, capture_output=True, timeout=100)
        return done.returncode, done.stdout + done.stderr

    output = {}
    output["train"] = said("train.py", "run", *places)
    assert 0 == output["train"][0], output["train"]
    for name in ("ls", "show", "verify", "pin --step 3", "export -o x.npz", "copy run", "diff run"):
        command, *rest = name.split()
        words = [*rest, user] if command in {"copy", "diff"} else [user, *rest]
        output[name] = said("-m", "holdfast", command, *words)
        assert output[name][0] > 0, output[name]
    output["verify run"] = said("-m", "holdfast", "verify", "run")
    output["ls s3"] = said("-m", "holdfast", "ls", places[0])
    kept = {str(path): path.read_bytes() for path in (tmp_path / "run").rglob("*") if path.is_file()}
    for name, value in s3.environment.items():
        monkeypatch.setenv(name, value)
    with closing(open_place(places[0])) as place:
        there = dict(files_at(place))
    journal = next(text for path, text in kept.items() if path.endswith(".jsonl"))
    assert b"mirror_failed" in journal
    assert b"somebody@127.0.0.1" in journal  # it was spoken of
    assert sum(path.endswith("manifest.json") for path in there) >= 1
    texts = {name: text for name, (_, text) in output.items()} | kept | there
    assert [] == [name for name, text in texts.items() if told(PASSWORD, text) or told(SECRET, text)]
    assert told(PASSWORD, b"a test that can fail: " + user.encode())
