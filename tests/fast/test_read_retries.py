"""A start that waits for a file: what a signal leaves behind, and what a disk that fails does to that."""

import errno
import os
import shutil

import pytest
from torch import nn

from holdfast import Best, Every, Last, Run, Stopped, Store, disk, load_into
from holdfast.errors import Unreadable
from holdfast.run import failures, opening
from holdfast.store.checkpoint_index import CheckpointIndex
from mirrored import look
from toy import Toy, events, new_run


@pytest.mark.parametrize("appends", [True, False])
def test_a_signal_during_the_wait_ends_the_attempt_at_the_places_too(tmp_path, monkeypatch, appends):
    """Another machine may begin at once. The exit code is 75, also if the disk takes no last line."""
    path, place, real = tmp_path / "run", tmp_path / "place", disk.open_plain
    with new_run(path, Toy(), mirror=place) as run:
        for _ in run.steps(2):
            pass

    def unreadable(at, **options):
        if at.suffix == ".safetensors" and at.is_relative_to(path):
            raise OSError(errno.EIO, os.strerror(errno.EIO), str(at))
        return real(at, **options)

    def broken(at, data, *, sync):
        raise OSError(errno.EIO, os.strerror(errno.EIO), str(at))

    def signalled(self, error):
        if not appends:
            monkeypatch.setattr(disk, "append", broken)
        self._began_s, self._job_clock.stop.reason = 0.0, "SIGTERM"

    monkeypatch.setattr(disk, "open_plain", unreadable)
    monkeypatch.setattr(failures.ReadRetries, "_begin", signalled)
    with pytest.raises(Stopped), new_run(path, Toy(), mirror=place):
        pass
    monkeypatch.undo()
    assert [True, True] == [each.ended for each in look(place).claims]
    assert appends == bool(events(path, "stop"))
    assert 2 == Store(path).latest().step


def test_going_back_on_a_disk_that_cannot_be_listed_is_an_error_of_ours(tmp_path, monkeypatch):
    """With mirrors the directory is listed before the way back is looked for."""
    path, place = tmp_path / "run", tmp_path / "place"
    with new_run(path, Toy(), mirror=place) as run:
        for _ in run.steps(2):
            pass

    def unlisted(index):
        raise OSError(errno.EIO, os.strerror(errno.EIO), str(path / "checkpoints"))

    monkeypatch.setattr(CheckpointIndex, "newest_first", unlisted)
    with pytest.raises(Unreadable, match="Input/output error"), new_run(path, Toy(), mirror=place, go_back=1):
        pass


def test_a_disk_that_fails_while_a_missing_metric_is_told_stops_no_training(tmp_path, monkeypatch):
    """Whether an older checkpoint has the metric is not known then."""

    def unlisted(index):
        raise OSError(errno.EIO, os.strerror(errno.EIO), str(tmp_path))

    with new_run(tmp_path, Toy(), keep=Best("val", max)) as run:
        monkeypatch.setattr(CheckpointIndex, "facts", unlisted)
        for _ in run.epochs(2):
            for _ in run.steps(2):
                run.log(loss=1.0)
        monkeypatch.undo()
    assert 4 == Store(tmp_path).latest().step


def test_a_file_that_cannot_be_read_for_the_second_restore_is_an_error_of_ours(tmp_path, monkeypatch):
    """A script that changed restored values has them put back from the checkpoint, at its first step."""
    with new_run(tmp_path, Toy()) as run:
        for step in run.steps(2):
            run._tracked.objects["toy"].learn(step)
    toy, real = Toy(), disk.open_plain

    def unreadable(at, **options):
        if at.suffix == ".safetensors":
            raise OSError(errno.EIO, os.strerror(errno.EIO), str(at))
        return real(at, **options)

    with pytest.raises(Unreadable, match="cannot be read on"), new_run(tmp_path, toy) as run:
        toy.value += 1
        monkeypatch.setattr(disk, "open_plain", unreadable)
        for _ in run.steps(4):
            pass


def test_a_start_that_is_held_ends_its_attempt_at_the_places_too(tmp_path, monkeypatch):
    """As any stop does: the next start, on whatever machine, need not ask whether this one is alive."""
    path, place = tmp_path / "run", tmp_path / "place"
    with new_run(path, Toy(), mirror=place) as run:
        for _ in run.steps(2):
            pass
    with monkeypatch.context() as held:
        held.setattr(opening, "job", object)
        held.setattr(opening, "HOLD", "run.json")  # a file that is there
        with pytest.raises(Stopped), new_run(path, Toy(), mirror=place):
            pass
    assert [True, True] == [each.ended for each in look(place).claims]
    shutil.rmtree(path)
    with new_run(path, Toy(), mirror=place) as run:
        assert 2 == run.step


@pytest.mark.parametrize("stops", [False, True])
def test_going_back_reads_nothing_of_a_checkpoint_that_cannot_be_read(tmp_path, monkeypatch, stops):
    """It is what the error of such a start advises."""
    state = {"model": nn.Linear(1, 1)}
    with Run(tmp_path, state, every=Every(steps=1), keep=Last(9), stop_on_nan=stops) as run:
        for _ in run.steps(3):
            pass
    newest, real = Store(tmp_path).latest().path, disk.open_plain

    def unreadable(at, **options):
        if at.is_relative_to(newest):
            raise OSError(errno.EIO, os.strerror(errno.EIO), str(at))
        return real(at, **options)

    monkeypatch.setattr(failures, "MOST_S", 0.0)
    monkeypatch.setattr(disk, "open_plain", unreadable)
    with pytest.raises(Unreadable, match="go_back=2"), Run(tmp_path, state, stop_on_nan=stops):
        pass
    with Run(tmp_path, state, stop_on_nan=stops, go_back=2) as run:
        assert 2 == run.step
    assert [f"{newest.name}-went-back"] == [path.name for path in (tmp_path / "quarantine").iterdir()]


@pytest.mark.parametrize("how", ["load_into", "start_from"])
@pytest.mark.parametrize("named", ["run", "checkpoint"])
@pytest.mark.parametrize("relative", [False, True])
def test_weights_that_cannot_be_read_are_an_error_of_ours(tmp_path, monkeypatch, how, named, relative):
    """However the path is written. No older checkpoint is read instead."""
    state = {"model": nn.Linear(2, 2)}
    with Run(tmp_path / "run", state, every=Every(steps=1), keep=Last(9)) as run:
        for _ in run.steps(2):
            pass
    real, newest = disk.open_plain, Store(tmp_path / "run").latest().path
    path = newest if named == "checkpoint" else tmp_path / "run"

    def unreadable(at, **options):
        if at.absolute().is_relative_to(newest) and at.suffix == ".safetensors":
            raise OSError(errno.EIO, os.strerror(errno.EIO), str(at))
        return real(at, **options)

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(disk, "open_plain", unreadable)
    monkeypatch.setattr(failures, "MOST_S", 0.0)
    path = path.relative_to(tmp_path) if relative else path
    with pytest.raises(Unreadable, match=r"model\.safetensors: cannot be read on .* Input/output error") as raised:
        if how == "load_into":
            load_into(nn.Linear(2, 2), path)
        else:
            Run("new", state, start_from=path).__enter__()
    assert 12 == raised.value.exit_code
