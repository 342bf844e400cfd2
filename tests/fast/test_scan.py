"""A directory that cannot be read is not empty, and a name that cannot be looked at is not absent."""

import errno
import os
from contextlib import closing

import numpy as np
import pytest

from holdfast import Last, Store, journal, scan
from holdfast.errors import HoldfastError
from toy import Toy, new_run


@pytest.fixture
def run(tmp_path):
    """Three checkpoints, of which the oldest is pinned."""
    store = Store(tmp_path / "run")
    for step in (1, 2, 3):
        store.save({"x": np.arange(step)}, step=step)
    store.pin(1)
    store.close()
    return store.root


def failing(monkeypatch, call, place, code=errno.EIO):
    """Make a call of `os` fail for one path, as Python's own listings meet it."""
    real = getattr(os, call)

    def failed(path=".", *rest, **options):
        if not isinstance(path, int) and os.fspath(path) == str(place):
            raise OSError(code, os.strerror(code), str(path))
        return real(path, *rest, **options)

    monkeypatch.setattr(os, call, failed)


def kept(root):
    return sorted(path.name for path in (root / "checkpoints").glob("step-*"))


@pytest.mark.parametrize("code", [errno.EIO, errno.EACCES, errno.ESTALE], ids=errno.errorcode.get)
def test_pins_that_cannot_be_listed_are_not_pruned(run, monkeypatch, code):
    """Nothing is removed while nobody knows what is pinned; the next prune keeps it."""
    for call in ("listdir", "scandir"):
        failing(monkeypatch, call, run / "pins", code)
    with pytest.raises((HoldfastError, OSError), match=os.strerror(code)), closing(Store(run)) as store:
        store.prune(Last(1))
    monkeypatch.undo()
    assert 3 == len(kept(run))
    with closing(Store(run)) as store:
        store.prune(Last(1))
    assert ["step-000000001", "step-000000003"] == kept(run)


@pytest.mark.parametrize("folder", ["history", "attempts", "attempts/1"])
@pytest.mark.parametrize("code", [errno.EIO, errno.EACCES], ids=errno.errorcode.get)
def test_journals_that_cannot_be_listed_are_not_missing(tmp_path, monkeypatch, folder, code):
    """Whoever asks for the run's events meets the error; a run with fewer events would be an untruth."""
    for _ in range(2):
        with new_run(tmp_path, Toy()) as run:
            for _ in run.steps(2):
                pass
    place = next((tmp_path / "attempts").glob("[0-9]*")) if folder == "attempts/1" else tmp_path / folder
    for call in ("listdir", "scandir"):
        failing(monkeypatch, call, place, code)
    with pytest.raises(OSError, match=os.strerror(code)):
        journal.logs(tmp_path)


LOOKS = (scan.exists, scan.lexists, scan.is_dir, scan.is_file, scan.is_symlink)


@pytest.mark.parametrize("look", LOOKS, ids=lambda look: look.__name__)
def test_a_name_that_cannot_be_looked_at_is_not_absent(tmp_path, monkeypatch, look):
    """Only one that is not there, below a file, or behind a link to itself is."""
    (tmp_path / "file").touch()
    (tmp_path / "loop").symlink_to("loop")
    absent = [tmp_path / "none", tmp_path / "file/none", tmp_path / "loop/none", tmp_path / "null\0"]
    assert [False] * 4 == [look(path) for path in absent]
    failing(monkeypatch, "stat", tmp_path / "file")
    with pytest.raises(OSError, match=os.strerror(errno.EIO)):
        look(tmp_path / "file")


def test_each_look_sees_what_python_sees(tmp_path):
    """Of a file, a directory, links to them, a link that leads nowhere, and a pipe."""
    (tmp_path / "file").touch()
    (tmp_path / "folder").mkdir()
    os.mkfifo(tmp_path / "pipe")
    for name in ("file", "folder", "none"):
        (tmp_path / f"to-{name}").symlink_to(name)
    for path in tmp_path.iterdir():
        expected = (path.exists(), os.path.lexists(path), path.is_dir(), path.is_file(), path.is_symlink())
        assert expected == tuple(look(path) for look in LOOKS), path
    assert not any(look(tmp_path / ("x" * 300)) for look in LOOKS)  # no name is so long


@pytest.mark.parametrize(
    "pattern", ["*", "a*/*", "*/c.txt", "a/b", "**/*.txt", "**/*", ".h*", "a/[b]/*", "none/*", "*/*/*"]
)
def test_a_pattern_finds_what_python_finds(tmp_path, pattern):
    """In their order, and hidden names, too; a folder behind a link is not searched by `**`."""
    for name in ("a/b/c.txt", "a/c.txt", "c.txt", ".hidden/d.txt", "ab/e.txt"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    (tmp_path / "link").symlink_to("nowhere")
    assert sorted(tmp_path.glob(pattern)) == scan.glob(tmp_path, pattern)


def test_a_folder_that_is_removed_meanwhile_is_left_out(tmp_path, monkeypatch):
    """As before it was listed."""
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    for call in ("listdir", "scandir"):
        failing(monkeypatch, call, tmp_path / "a", errno.ENOENT)
    assert [] == scan.glob(tmp_path, "*/*")
    assert 2 == len(scan.glob(tmp_path, "**/*"))


@pytest.mark.parametrize("pattern", ["*", "**/*"])
def test_a_folder_that_cannot_be_listed_is_told(tmp_path, monkeypatch, pattern):
    """A search below it would find less than there is."""
    (tmp_path / "a").mkdir()
    for call in ("listdir", "scandir"):
        failing(monkeypatch, call, tmp_path / "a")
    with pytest.raises(OSError, match=os.strerror(errno.EIO)):
        scan.glob(tmp_path if pattern == "**/*" else tmp_path / "a", pattern)
