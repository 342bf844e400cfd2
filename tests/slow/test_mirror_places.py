"""What every place promises, asked of a folder, of S3, of SFTP and of a file system that fsspec brings.

HOLDFAST_TEST_PLACES names more, by their URLs with spaces between; what lies there stays there:

    HOLDFAST_TEST_PLACES="gs://bucket/tests abfs://box/tests" pytest tests/slow/test_mirror_places.py
"""

import os
import random
import secrets
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

import fsspec
import pytest
from fsspec.core import url_to_fs

from holdfast.errors import Damaged, UsageError
from holdfast.mirror.backends import open_place
from holdfast.mirror.other import FsspecPlace
from holdfast.mirror.place import NotKept, Place, redact_url
from holdfast.mirror.remote import RemoteRun
from servers import s3, sftp  # noqa: F401
from stores import having


def pieces_of(data, size=1000):
    return lambda: iter([data[start : start + size] for start in range(0, len(data), size)])


def put(place, path, data):
    return place.put(path, len(data), pieces_of(data))


class Kind(NamedTuple):
    """One kind of place, and how to damage what lies there without asking it."""

    open: Callable[[], Place]
    overwrite: Callable[[str, bytes], object]


def folder_kind(tmp_path, request):
    root = tmp_path / "mirror"
    return Kind(lambda: open_place(str(root)), lambda path, data: (root / path).write_bytes(data))


def s3_kind(tmp_path, request):
    server = request.getfixturevalue("s3")
    return Kind(
        lambda: open_place(server.url(f"{tmp_path.name}/run")),
        lambda path, data: server.overwrite(f"{tmp_path.name}/run/{path}", data),
    )


def s3fs_kind(tmp_path, request):
    kind, url = s3_kind(tmp_path, request), request.getfixturevalue("s3").url(f"{tmp_path.name}/run")
    return kind._replace(open=lambda: FsspecPlace(url))


def sftp_kind(tmp_path, request):
    server = request.getfixturevalue("sftp")
    root = server.files / tmp_path.name
    return Kind(
        lambda: open_place(server.url(tmp_path.name)),
        lambda path, data: (root / path).write_bytes(data),
    )


def memory_kind(tmp_path, request):
    url = f"memory://{tmp_path.name}/run"
    return Kind(lambda: open_place(url), lambda path, data: fsspec.filesystem("memory").pipe(f"{url}/{path}", data))


def named_kind(base):
    def kind(tmp_path, request):
        url = f"{base}/{secrets.token_hex(8)}"

        def overwrite(path, data):
            files, file = url_to_fs(f"{url}/{path}", skip_instance_cache=True)
            files.pipe_file(file, data)

        return Kind(lambda: open_place(url), overwrite)

    return kind


KINDS = {"folder": folder_kind, "s3": s3_kind, "sftp": sftp_kind, "memory": memory_kind, "s3fs": s3fs_kind}
KINDS |= {url: named_kind(url) for url in os.environ.get("HOLDFAST_TEST_PLACES", "").split()}


@pytest.fixture
def kind(request, tmp_path, monkeypatch):
    for name in ("s3", "sftp"):
        if request.param.startswith(name) and "://" not in request.param:
            for key, value in request.getfixturevalue(name).environment.items():
                monkeypatch.setenv(key, value)
    return KINDS[request.param](tmp_path, request)


@pytest.fixture
def place(kind):
    place = kind.open()
    yield place
    place.close()


def pytest_generate_tests(metafunc):
    if "kind" in metafunc.fixturenames:
        metafunc.parametrize("kind", KINDS, indirect=True)


DATA = random.Random(0).randbytes(300_000)


def test_a_file_is_put_verified_and_read(place):
    assert put(place, "checkpoints/000001/step-1/a.safetensors", DATA) in {"CRC64NVME", ""}
    put(place, "checkpoints/000001/step-1/a.safetensors", DATA[:7])
    put(place, "checkpoints/000001/step-1/empty", b"")
    assert place.read("checkpoints/000001/step-1/a.safetensors") == DATA[:7]
    assert b"".join(place.get("checkpoints/000001/step-1/empty")) == b""
    assert place.names("checkpoints/000001/step-1") == ["a.safetensors", "empty"]
    assert place.names("checkpoints") == ["000001"]
    assert place.names("") == ["checkpoints"]


def test_create_has_one_winner(kind, place):
    place.create("claims/000001.json", b"first")
    with pytest.raises(FileExistsError):
        place.create("claims/000001.json", b"second")
    assert place.read("claims/000001.json") == b"first"
    if not place.atomic:
        return  # fsspec's memory looks first, and writes then
    others = [kind.open() for _ in range(4)]

    def claim(other):
        try:
            other.create(f"claims/{number:06}.json", str(id(other)).encode())
        except FileExistsError:
            return ""
        return str(id(other))

    with ThreadPoolExecutor(4) as threads:
        for number in range(2, 7):
            winners = [name for name in threads.map(claim, others) if name]
            assert [place.read(f"claims/{number:06}.json").decode()] == winners
    assert place.names("claims") == [f"{number:06}.json" for number in range(1, 7)]
    for other in others:
        other.close()


@pytest.mark.parametrize("read_back", [False, True])
def test_what_is_damaged_between_put_and_verification_is_found_out(kind, place, tmp_path, monkeypatch, read_back):
    """The verification reads what lies there, not what was sent. It is sent again, and then no copy is made."""
    path = having(tmp_path / "run", 1).latest().path
    step = "verify" if hasattr(place, "verify") else "get"
    verify, struck = getattr(place, step), []

    def damaged_first(at, *args):
        if at.endswith(".safetensors"):
            data = (path / at.rpartition("/")[2]).read_bytes()
            kind.overwrite(at, data[:-1] + bytes([data[-1] ^ 1]))
            struck.append(at)
        return verify(at, *args)

    monkeypatch.setattr(place, step, damaged_first)
    remote = RemoteRun(place)
    remote.claim(1, '{"run": "r"}', {"pid": 1}, None)
    with pytest.raises(NotKept, match="send it again"):
        remote.copy(1, path, read_back=read_back)
    assert (4, []) == (len(struck), remote.read_state().copies)


def test_what_the_source_raises_leaves_unchanged_and_nothing_is_left(place):
    def torn():
        yield DATA
        raise OSError(5, "the local disk")

    for pieces, error in ((torn, OSError), (pieces_of(DATA[1:]), Damaged)):
        with pytest.raises(error) as caught:
            place.put("a/file", len(DATA) + 5, pieces)
        assert "local disk" in str(caught.value) or "came to be sent" in str(caught.value)
        assert place.names("a") == []


def test_missing_things(place):
    for read in (place.read, lambda path: next(place.get(path)), lambda path: place.copy(path, "b")):
        with pytest.raises(FileNotFoundError):
            read("a/missing")
    assert place.names("nowhere/at/all") == []
    place.remove("nowhere/at/all")


def test_a_copy_within_the_place(place):
    put(place, "a/file", DATA)
    put(place, "b/file", b"old")
    if place.copy("a/file", "b/file"):
        assert b"".join(place.get("b/file")) == DATA
        assert place.copy("a/file", "b/file")
        assert place.names("b") == ["file"]
        put(place, "a/file", b"new")
        place.remove("a/file")
        assert place.read("b/file") == DATA


def test_remove(place):
    for name in ("manifest.json", "x", "y"):
        put(place, f"c/step-1/{name}", b"x")
    put(place, "c/step-10/manifest.json", b"y")
    place.remove("c/step-1/x")
    assert place.names("c/step-1") == ["manifest.json", "y"]
    place.remove("c/step-1")
    assert place.names("c") == ["step-10"]
    assert place.names("c/step-10") == ["manifest.json"]


def test_no_path_leaves_the_place(place):
    for path in ("../x", "a//b", "/a", "a/.", "a/\0"):
        with pytest.raises(UsageError):
            place.read(path)


@pytest.mark.parametrize(
    ("url", "name"),
    [
        ("sftp://me:pass@host:22/run", "sftp://me@host:22/run"),
        ("s3://key:secret@bucket/run/", "s3://bucket/run"),
        ("https://token@host/run?sig=secret#secret", "https://host/run"),
        ("abfs://box@account.host/run", "abfs://box@account.host/run"),
        ("file:///a/b/../c", "/a/c"),
        ("/a/c", "/a/c"),
    ],
)
def test_secrets_are_not_shown(url, name):
    assert name == redact_url(url)


def test_a_chain_and_an_unknown_kind_are_no_place():
    for url in ("simplecache::s3://bucket", "nosuchkind://x/y", "oci://its-package-is-not-installed/x"):
        with pytest.raises(UsageError):
            open_place(url)
