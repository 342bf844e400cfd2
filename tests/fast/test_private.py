"""Private: the mode of a run's directory decides who may see what is created in it, in whatever process."""

import os
import shutil
import stat
import sys

from holdfast import disk, modes
from holdfast.store.attempt import join_attempt
from holdfast.store.store import Store
from stores import flip, having, put
from toy import Toy, events, new_run


def closed(root):
    """Whether nothing at and below `root` has a right for other users."""
    return all(not path.lstat().st_mode & 0o077 for path in (root, *root.rglob("*")) if not path.is_symlink())


def by_another_program(store):
    """A checkpoint whose files somebody else writes."""
    with store.directory(step=3) as path:
        (path / "folder").mkdir(0o777)
        (path / "folder/file").write_bytes(b"x")


def test_a_private_run_stays_private_in_every_process(tmp_path, monkeypatch):
    """What begins it, joins it, goes on with it or pins in it creates nothing for other users."""
    before = os.umask(0)
    try:
        monkeypatch.setattr(modes, "_mode_sources", {})
        store = having(tmp_path / "run", 1, private=True)
        assert closed(tmp_path / "run")
        for act in (
            lambda: Store(tmp_path / "run").pin(1),
            lambda: disk.make_dir(join_attempt(tmp_path / "run", 1, store.attempt.run).room / "of-a-rank"),
            lambda: put(Store(tmp_path / "run", take_over=True), 2),
            lambda: by_another_program(Store(tmp_path / "run", take_over=True)),
        ):
            monkeypatch.setattr(modes, "_mode_sources", {})  # as a process that has just begun
            act()
            assert closed(tmp_path / "run")
    finally:
        os.umask(before)


def test_a_mode_that_cannot_be_asked_for_counts_as_private(tmp_path, monkeypatch):
    """Nothing is opened to others because a disk did not answer."""
    monkeypatch.setattr(modes, "_mode_sources", {})
    (tmp_path / "run").mkdir(0o755)
    modes.inherit_mode(tmp_path / "run")
    real = os.stat

    def fails(path, **named):
        if str(path) == str(tmp_path / "run"):
            raise OSError(5, "Input/output error")
        return real(path, **named)

    with monkeypatch.context() as broken:
        broken.setattr(os, "stat", fails)
        disk.write(tmp_path / "run" / "file", [])
    assert stat.S_IMODE((tmp_path / "run" / "file").stat().st_mode) == 0o600


def test_what_comes_from_a_mirror_into_a_private_run_is_private(tmp_path):
    """Another process writes it: a whole checkpoint at a start, and a file in the place of a damaged one."""
    path, place = tmp_path / "run", tmp_path / "place"
    before = os.umask(0)
    try:
        train(path, 2, place)
        flip(next(Store(path).latest().path.glob("*.safetensors")), -8)
        train(path, 3, place)
        assert events(path, "healed")
        assert closed(path)
        shutil.rmtree(path)
        train(path, 4, place)
        assert events(path, "fetched")
        assert closed(path)
    finally:
        os.umask(before)


def train(path, steps, place):
    with new_run(path, Toy(), private=True, mirror=place) as run:
        for _ in run.steps(steps):
            pass


def test_a_board_in_a_directory_of_others_closes_only_its_own_files(tmp_path):
    """What lies there already keeps its mode; also once the run becomes private."""
    place = tmp_path / "boards"
    place.mkdir()
    (place / "notes.txt").write_text("for everybody")
    for path, mode in ((place, 0o755), (place / "notes.txt", 0o644)):
        path.chmod(mode)
    for private in (False, True):
        with new_run(tmp_path / "run", Toy(), board=place, private=private) as run:
            for _ in run.steps(run.step + 1):
                run.log(loss=1.0)
    found = {path: path.stat().st_mode & 0o777 for path in (place, *place.iterdir())}
    assert (0o755, 0o644) == (found.pop(place), found.pop(place / "notes.txt"))
    assert [0o600, 0o600] == [*found.values()]


def test_a_file_costs_no_more_after_a_thousand_runs(tmp_path):
    """Who trains a thousand short runs in one process creates the last one's files as fast as the first one's."""

    def calls():
        seen = []
        sys.setprofile(lambda frame, event, argument: seen.append(event))
        try:
            modes.creation_mode(tmp_path / "run" / "file", 0o666)
        finally:
            sys.setprofile(None)
        return len(seen)

    before = calls()
    for number in range(1000):
        modes.inherit_mode(tmp_path / f"{number}")
    assert before == calls() > 0
