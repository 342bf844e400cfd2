"""Places that refuse, are silent, full or stopped: real servers, with time limits that are short here."""

import gc
import os
import random
import subprocess
import time
import traceback
from contextlib import contextmanager
from pathlib import Path

import pytest
from tenacity import stop_after_delay

from holdfast.mirror import other, s3_calls, sftp_connection
from holdfast.mirror.backends import open_place
from holdfast.mirror.other import FsspecPlace
from holdfast.mirror.place import Full, NotKept, Refused, Silent, redact_error
from holdfast.mirror.s3 import S3Place
from needed import missing, needs
from servers import SECRET, SSHD, free_port, needs_sshd, s3, s3_server, sftp, sftp_server  # noqa: F401

DATA = random.Random(1).randbytes(12 << 20)


def pieces(data=DATA):
    return lambda: iter([data[start : start + 100_000] for start in range(0, len(data), 100_000)])


@pytest.fixture
def environment(monkeypatch):
    def use(server):
        for key, value in server.environment.items():
            monkeypatch.setenv(key, value)

    return use


@pytest.fixture
def impatient(monkeypatch):
    """The time limits are what a test can wait for; how they are kept does not depend on them."""
    monkeypatch.setattr(sftp_connection, "ANSWER_S", 1.0)
    monkeypatch.setattr(s3_calls, "_READ_S", 1.0)
    monkeypatch.setattr(s3_calls, "_CALL_S", 3.0)
    monkeypatch.setattr(S3Place, "whole_bytes", 1 << 20)
    monkeypatch.setattr(S3Place, "part_bytes", 5 << 20)
    monkeypatch.setattr(s3_calls.tried, "stop", stop_after_delay(0.5))
    monkeypatch.setattr(FsspecPlace, "limit_s", 2.0)
    monkeypatch.setattr(FsspecPlace, "slowest", 10 << 20)


@contextmanager
def within(seconds):
    start = time.monotonic()
    yield
    assert time.monotonic() - start < seconds


def asked(place):
    """All that a place can be asked, for those that must fail in the same way."""
    return [
        lambda: place.names(""),
        lambda: place.read("a/file"),
        lambda: next(place.get("a/file")),
        lambda: place.create("claims/1", b"x"),
        lambda: place.put("a/file", 1, lambda: iter([b"x"])),
        lambda: place.copy("a/file", "b/file"),
        lambda: place.remove("a/file"),
    ]


def answered(place):
    """What the place says is in a folder, when its server has worked off what had waited."""
    until = time.monotonic() + 60
    while True:
        try:
            return place.names("a")
        except Silent:
            if time.monotonic() > until:
                raise


# Nobody there ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["folder", "s3", "sftp"])
def test_a_server_that_is_not_there_is_silence(kind, s3, tmp_path, environment, monkeypatch):  # noqa: F811
    environment(s3)
    monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{free_port()}")
    urls = {
        "folder": str(tmp_path / "not mounted" / "run"),
        "s3": "s3://bucket/run",
        "sftp": f"sftp://127.0.0.1:{free_port()}/run",
    }
    place = open_place(urls[kind])
    for ask in asked(place):
        with within(10), pytest.raises(Silent) as caught:
            ask()
        assert "\n" not in str(caught.value)
    place.close()


@pytest.mark.parametrize("kind", ["s3", "s3fs", "sftp"])
def test_a_server_that_hangs_is_silence_and_answers_again_later(kind, tmp_path, environment, impatient):
    """It hangs between two requests, and before the first: then the connection is accepted and nothing follows."""
    if kind == "sftp" and SSHD is None:
        pytest.skip("sshd is not installed")
    with sftp_server(tmp_path) if kind == "sftp" else s3_server() as server:
        environment(server)
        opened, url = FsspecPlace if kind == "s3fs" else open_place, server.url("run")
        place, late = opened(url), opened(url)
        place.put("a/file", len(DATA), pieces())
        server.pause()
        for each in (place, late):
            with within(8), pytest.raises(Silent):
                each.names("")
        with within(12), pytest.raises(Silent):
            place.put("a/file", len(DATA), pieces())

        def stopped_in_the_middle():
            for number, piece in enumerate(pieces(4 * DATA)()):
                if number == 200:
                    server.pause()
                yield piece

        server.resume()
        if kind != "s3fs":  # which waits for the same limits several times
            with within(12), pytest.raises(Silent):
                place.put("a/other", 4 * len(DATA), stopped_in_the_middle)
        server.resume()
        assert answered(place) == answered(late) == ["file"]
        assert b"".join(place.get("a/file")) == DATA
        place.close()
        late.close()


@needs_sshd
def test_a_server_that_is_killed_and_started_again(tmp_path, environment, impatient):
    with sftp_server(tmp_path) as server:
        environment(server)
        place = open_place(server.url("run"))
        place.put("a/file", 1, lambda: iter([b"x"]))

        def cut():
            yield DATA
            server.kill()
            yield DATA

        with within(8), pytest.raises(Silent):
            place.put("a/file", 2 * len(DATA), cut)
        with within(8), pytest.raises(Silent):
            place.names("a")
        server.start()
        assert place.names("a") == ["file"]
        assert place.read("a/file") == b"x"
        place.put("a/file", len(DATA), pieces())
        assert os.listdir(server.files / "run/a") == ["file"]
        place.close()


# No ----------------------------------------------------------------------------------------------------------------


def refusals(place):
    """What each call raises, with its whole traceback as text."""
    for ask in asked(place):
        with pytest.raises(Refused) as caught:
            ask()
        yield (
            str(caught.value),
            "".join(traceback.format_exception(caught.value)) + repr(place) + place.shown,
        )


def test_wrong_credentials_are_told_without_secrets(environment):
    with s3_server() as server:
        environment(server)
        server.ask("POST", "/moto-api/reset-auth", b"0")
        place = open_place(server.url("run"))
        for text, everything in refusals(place):
            assert "AWS_ACCESS_KEY_ID" in text or "credentials" in text
            assert SECRET not in everything
        place.close()


def test_no_such_bucket_and_no_credentials_are_refused(s3, environment, monkeypatch):  # noqa: F811
    environment(s3)
    place = open_place("s3://nobucket/run")
    with pytest.raises(Refused, match="create the bucket"):
        place.names("")
    place.close()
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    place = open_place("s3://bucket/run")
    with pytest.raises(Refused, match="credentials"):
        place.names("")
    place.close()


@needs_sshd
def test_a_password_that_is_refused_is_not_told(sftp, environment, monkeypatch, tmp_path):  # noqa: F811
    environment(sftp)
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / ".ssh").mkdir()
    known = (sftp.home / ".ssh/known_hosts").read_text()
    (tmp_path / ".ssh/known_hosts").write_text(known)
    monkeypatch.delenv("SSH_AUTH_SOCK", raising=False)
    place = open_place(sftp.url("run").replace("sftp://", "sftp://nobody:pass%2Fword!@"))
    for text, everything in refusals(place):
        assert "must work without a question" in text
        assert not any(secret in everything for secret in ("pass/word!", "pass%2Fword"))
    place.close()


@needs_sshd
@pytest.mark.parametrize("known", ["nothing", "another key"])
def test_a_host_key_that_is_not_known_is_refused(known, sftp, environment, monkeypatch, tmp_path):  # noqa: F811
    environment(sftp)
    (tmp_path / ".ssh").mkdir()
    key = (sftp.home / ".ssh/id_ed25519.pub").read_text()
    if known == "another key":
        (tmp_path / ".ssh/known_hosts").write_text(f"[127.0.0.1]:{sftp.port} {key}")
    (tmp_path / ".ssh/config").write_text(f"Host 127.0.0.1\n  IdentityFile {sftp.home}/.ssh/id_ed25519\n")
    monkeypatch.setenv("HOME", str(tmp_path))
    place = open_place(sftp.url("run"))
    with pytest.raises(Refused, match="known_hosts"):
        place.names("")
    (tmp_path / ".ssh/config").write_text(
        f"Host mirror\n  HostName 127.0.0.1\n  Port {sftp.port}\n  User root\n"
        f"  IdentityFile {sftp.home}/.ssh/id_ed25519\n  UserKnownHostsFile {sftp.home}/.ssh/known_hosts\n"
    )
    place = open_place(f"sftp://mirror{sftp.files}/by-its-name")
    assert place.names("") == []
    place.close()


def test_secrets_of_the_environment_are_not_told(monkeypatch):
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET)
    monkeypatch.setenv("FSSPEC_GCS", '{"token": "another-long-token"}')
    text = redact_error(
        f"the key {SECRET}\nand another-long-token and a%2Fb and a/b", "s3://user:a%2Fb@host/path?sig=signature"
    )
    assert text == "the key *** and *** and *** and ***"


def test_a_folder_that_may_not_be_written_is_refused(tmp_path):
    folder = tmp_path / "mirror"
    folder.mkdir(mode=0o555)
    is_root = os.geteuid() == 0
    if is_root and (reason := missing("mount", "umount")):
        pytest.skip(reason)
    if is_root:  # to whom a mode forbids nothing
        subprocess.run(["mount", "-t", "tmpfs", "-o", "ro", "none", folder], check=True)
    try:
        with pytest.raises(Refused, match="right to write"):
            open_place(str(folder)).create("claims/1", b"x")
    finally:
        if is_root:
            subprocess.run(["umount", "--lazy", folder], check=True)


# Full --------------------------------------------------------------------------------------------------------------


@needs("mount", root=True)
@pytest.mark.parametrize("kind", ["folder", "sftp"])
def test_a_full_place_says_so_and_keeps_nothing(kind, request, tmp_path, environment):
    if kind == "sftp":
        server = request.getfixturevalue("sftp")
        environment(server)
        small = server.files / "small"
        url = server.url("small/run")
    else:
        small = tmp_path / "small"
        url = str(small / "run")
    small.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=4m", "none", small], check=True)
    place = open_place(url)
    try:
        with pytest.raises(Full, match="make room"):
            place.put("a/file", len(DATA), pieces())
        assert os.listdir(small / "run/a") == []
    finally:
        place.close()
        subprocess.run(["umount", "--lazy", small], check=True)


# S3 in parts -------------------------------------------------------------------------------------------------------


@pytest.fixture
def in_parts(s3, environment, monkeypatch, tmp_path):  # noqa: F811
    """S3 with the smallest parts that it takes."""
    environment(s3)
    monkeypatch.setattr(S3Place, "whole_bytes", 1 << 20)
    monkeypatch.setattr(S3Place, "part_bytes", 5 << 20)
    place = open_place(s3.url(f"{tmp_path.name}/run"))
    yield place
    place.close()


def uploads(place):
    return place._calls.call("list_multipart_uploads").get("Uploads", [])


def test_a_big_file_goes_in_parts_and_the_servers_own_checksum_verifies_it(in_parts):
    """moto computes the checksum of a whole object from its parts; of a small object it would repeat ours, so that
    none is sent, and it is read back."""
    assert in_parts.put("a/file", len(DATA), pieces()) == "CRC64NVME"
    assert in_parts.put("a/small", 3, lambda: iter([b"abc"])) == ""
    assert in_parts.check("a/file", len(DATA), pieces()) == "CRC64NVME"
    assert b"".join(in_parts.get("a/file")) == DATA
    assert in_parts.copy("a/file", "b/file")
    assert in_parts.check("b/file", len(DATA), pieces()) == "CRC64NVME"
    assert uploads(in_parts) == []


def test_the_servers_checksum_tells_other_bytes(in_parts):
    """Nothing is read back here: what differs is the checksum."""
    other = DATA[:-1] + bytes([DATA[-1] ^ 1])
    in_parts.put("a/file", len(DATA), pieces(other))
    with pytest.raises(NotKept, match="its checksum differs"):
        in_parts.check("a/file", len(DATA), pieces())


def test_an_upload_that_fails_or_was_left_is_aborted(in_parts):
    def torn():
        yield DATA
        assert len(uploads(in_parts)) == 1
        raise OSError(5, "the local disk")

    with pytest.raises(OSError, match="the local disk"):
        in_parts.put("a/file", 2 * len(DATA), torn)
    assert (uploads(in_parts), in_parts.names("a")) == ([], [])
    for path in ("a/file", "a/another"):  # as a killed process leaves them
        in_parts._calls.call("create_multipart_upload", Key=in_parts._key(path))
    in_parts.put("a/file", len(DATA), pieces())
    assert [each["Key"] for each in uploads(in_parts)] == [in_parts._key("a/another")]
    in_parts.remove("a")
    assert (uploads(in_parts), in_parts.names("a")) == ([], [])


@pytest.mark.parametrize("kind", ["s3fs", "memory"])
def test_fsspec_commits_no_half_of_a_file(kind, in_parts, monkeypatch, tmp_path):
    """Its own `with` commits what was written before the error."""
    place = FsspecPlace(in_parts.shown if kind == "s3fs" else f"memory://{tmp_path.name}/run")
    committed = []

    def torn():
        yield DATA
        raise OSError(5, "the local disk")

    with monkeypatch.context() as patch, pytest.raises(OSError, match="the local disk"):
        patch.setattr(other, "_WHOLE_BYTES", 5 << 20)
        patch.setattr("s3fs.core.S3File.commit", lambda file: committed.append(file.path))
        place.put("a/file", 2 * len(DATA), torn)
    gc.collect()
    assert (place.names("a"), uploads(in_parts), committed) == ([], [], [])
    assert place.put("a/file", len(DATA), pieces()) == ""
    place.close()


def test_parts_wait_for_their_turn(in_parts, monkeypatch):
    """At most four parts are under way: so much memory it takes, however long the file is."""
    under_way, most = [], []
    call = in_parts._calls.call

    def counted(method, *args, **what):
        if method != "upload_part":
            return call(method, *args, **what)
        under_way.append(what["PartNumber"])
        most.append(len(under_way))
        try:
            time.sleep(0.05)
            return call(method, *args, **what)
        finally:
            under_way.remove(what["PartNumber"])

    monkeypatch.setattr(in_parts._calls, "call", counted)
    assert in_parts.put("a/file", 4 * len(DATA), pieces(4 * DATA)) == "CRC64NVME"
    assert (max(most), len(most)) == (4, 10)


def test_a_server_that_does_not_know_the_condition_is_not_atomic(in_parts, monkeypatch):
    call = in_parts._calls.call
    in_parts.create("claims/1", b"x")
    assert in_parts.atomic
    place = S3Place(in_parts.shown)
    call = place._calls.call
    monkeypatch.setattr(
        place._calls, "call", lambda *args, **what: call(*args, **{k: v for k, v in what.items() if k != "IfNoneMatch"})
    )
    place.create("claims/2", b"x")
    assert not place.atomic
    place.close()


@pytest.mark.parametrize("condition", [True, False])
def test_by_fsspec_too_a_server_that_does_not_know_the_condition_is_not_atomic(in_parts, condition):
    place = FsspecPlace(in_parts.shown)
    assert place.atomic
    if not condition:
        place._exclusive = {}
    place.create("claims/1", b"x")
    assert (place.atomic, place.read("claims/1")) == (condition, b"x")
    place.close()


def test_by_fsspec_too_a_missing_bucket_is_no_empty_place(in_parts):
    assert FsspecPlace(in_parts.shown).names("claims") == []
    with pytest.raises(Refused, match="there is no 'nosuchbucket'; create it"):
        FsspecPlace("s3://nosuchbucket/run").names("claims")


# Folders -----------------------------------------------------------------------------------------------------------


def test_a_folder_leaves_no_name_of_its_own_and_removes_what_a_killed_process_left(tmp_path):
    place = open_place(str(tmp_path / "mirror"))
    folder = tmp_path / "mirror/a"
    folder.mkdir(parents=True)
    Path(folder / ".file.new").write_bytes(b"half")
    assert place.names("a") == []
    place.put("a/file", len(DATA), pieces())
    place.create("a/claim", b"x")
    assert sorted(os.listdir(folder)) == ["claim", "file"]


def test_a_folder_on_a_file_system_without_links_still_has_one_winner(tmp_path, monkeypatch):
    def refused(*args, **options):
        raise PermissionError(1, "no links here")

    monkeypatch.setattr(os, "link", refused)
    place = open_place(str(tmp_path / "mirror"))
    place.create("claims/1", b"x")
    with pytest.raises(FileExistsError):
        place.create("claims/1", b"y")
    assert place.read("claims/1") == b"x"
    assert not place.copy("claims/1", "claims/2")
    assert os.listdir(tmp_path / "mirror/claims") == ["1"]
