"""Saves that fail, or whose bytes are damaged on the way to the disk: how often they are tried, and what is told."""

import errno
import os
import re

import numpy as np
import pytest

import faults
from disk_faults import EveryThread, turned
from faults import door, links
from holdfast import Every, Last, Run, Stopped, Store, disk
from holdfast.errors import DiskError, NoSpace, UsageError
from holdfast.rules import Whole
from holdfast.run.failures import MOST_PASSED
from holdfast.store.checkpoint import Checkpoint
from holdfast.store.refusal import disk_error
from mirrored import look
from toy import events, names
from unchanged import Frozen, rest

STEPS = 60


class Disk:
    """Damages each file of a checkpoint that is written while it is `bad`, or refuses changes with `code`."""

    def __init__(self, monkeypatch):
        self.bad, self.code = False, 0
        monkeypatch.setattr(faults, "_here", EveryThread(self))

    def __call__(self, call, perform):
        if self.code and call.name in ("create", "write", "fsync", "rename"):
            raise OSError(self.code, os.strerror(self.code), call.path or None)
        if self.bad and call.name == "write" and "/step-" in os.readlink(f"/proc/self/fd/{call.descriptor}"):
            return turned(call, perform)
        return perform()


def train(path, faulty, at, *, steps=STEPS, **options):
    """Save every second of so many steps; `at`: what happens to the disk when a number of steps is done."""
    frozen = Frozen()
    with (
        links(),
        door(faulty),
        Run(path, {"toy": frozen}, **{"every": Every(steps=2), "keep": Last(2)} | options) as run,
    ):
        for _ in run.steps(steps):
            if run._session.saves.flight is not None:
                run._session.saves.writer._ended.wait()
            rest()
            at.get(run.step, lambda: None)()
            frozen.small += 1
    return frozen


def tried(path):
    """Steps at which a periodic save was made or failed."""
    return sorted({event["step"] for kind in ("saved", "save_failed") for event in events(path, kind)})


@pytest.mark.parametrize("options", [{"keep": Last(2)}, {"keep": Last(1000), "whole": Whole(checkpoints=3)}], ids=str)
def test_a_disk_that_damages_every_write_is_not_written_to_at_each_safe_point(tmp_path, monkeypatch, capsys, options):
    """One save more, then ever rarer ones, told ever more rarely; what was sound before stays, and can be loaded."""
    faulty = Disk(monkeypatch)
    at = {10: lambda: setattr(faulty, "bad", True), 50: lambda: setattr(faulty, "bad", False)}
    train(tmp_path, faulty, at, **options)
    during = [step for step in tried(tmp_path) if 10 < step <= 50]
    assert len(during) <= 11, during  # of 20 that are due
    said = capsys.readouterr().err
    assert said.count("look at the system's log (dmesg)") <= 3
    assert 1 <= said.count("if that goes on, saves become rarer")
    sound = [each.step for each in Store(tmp_path).checkpoints() if not list(each.problems(cold=True))]
    assert STEPS in sound
    assert Store(tmp_path).load()["toy"]["small"].tolist() == [STEPS] * 3


def test_what_was_damaged_by_its_save_lies_in_quarantine_and_what_was_sound_stays(tmp_path, monkeypatch, capsys):
    """One save is damaged: the next safe point makes up for it."""
    faulty = Disk(monkeypatch)
    at = {7: lambda: setattr(faulty, "bad", True), 8: lambda: setattr(faulty, "bad", False)}
    train(tmp_path, faulty, at, steps=12)
    assert [2, 4, 6, 8, 9, 10, 12] == tried(tmp_path)
    assert [8] == [event["step"] for event in events(tmp_path, "save_failed")]
    assert ["step-000000008-damaged"] == os.listdir(tmp_path / "quarantine")
    assert ["step-000000008"] == [event["name"] for event in events(tmp_path, "quarantined")]
    said = capsys.readouterr().err
    assert "step 8 is not saved, and training goes on" in said
    assert "step 9 is saved; 1 before it failed" in said


def test_saves_go_on_soon_after_the_disk_is_sound_again(tmp_path, monkeypatch):
    """However long it damaged what was written, at most a few due saves are passed over."""
    faulty = Disk(monkeypatch)
    at = {10: lambda: setattr(faulty, "bad", True), 90: lambda: setattr(faulty, "bad", False)}
    train(tmp_path, faulty, at, steps=120)
    saved = [event["step"] for event in events(tmp_path, "saved") if event["step"] > 90]
    assert saved[0] <= 90 + 2 * (MOST_PASSED + 1)
    assert saved[-3:] == [116, 118, 120]


@pytest.mark.parametrize("code", [errno.EIO, errno.ENOSPC, errno.EROFS], ids=errno.errorcode.get)
def test_a_disk_that_refuses_for_long_is_told_ever_more_rarely_and_saving_resumes_by_itself(
    tmp_path, monkeypatch, capsys, code
):
    """Every save that is due is tried; the first one after the outage succeeds, and that is told."""
    faulty = Disk(monkeypatch)
    at = {9: lambda: setattr(faulty, "code", code), 29: lambda: setattr(faulty, "code", 0)}
    train(tmp_path, faulty, at, steps=40)
    failed = [event["step"] for event in events(tmp_path, "save_failed")]
    assert [10, 12, 14, 16, 18, 20, 22, 24, 26, 28] == failed
    assert [30, 32] == [event["step"] for event in events(tmp_path, "saved") if event["step"] > 28][:2]
    said = capsys.readouterr().err
    assert 4 == said.count("is not saved, and training goes on")
    assert "step 30 is saved; 10 before it failed" in said


def test_a_commit_that_could_not_be_synced_is_made_again_under_the_same_name(tmp_path, monkeypatch):
    """What may not be durable is set aside first; once it is, it is immutable as every other."""
    store, real = Store(tmp_path), disk.sync_dir
    store.save({"a": 1}, step=1)

    def broken(path):
        if path.name == "checkpoints":
            raise OSError(errno.EIO, os.strerror(errno.EIO), str(path))
        real(path)

    with monkeypatch.context() as patch:
        patch.setattr(disk, "sync_dir", broken)
        with pytest.raises(DiskError, match=r"cannot save: Input/output error .*dmesg"):
            store.save({"a": 2}, step=2)
    store.save({"a": 3}, step=2)
    with pytest.raises(UsageError, match="already committed"):
        store.save({"a": 4}, step=2)
    assert [1, 2] == [each.step for each in store.checkpoints()]
    assert {"a": 3} == store.load()
    assert ["step-000000002-unsynced"] == os.listdir(tmp_path / "quarantine")


def test_a_run_may_be_entered_again_when_its_last_line_could_not_be_written(tmp_path, monkeypatch):
    """In a notebook the process lives on: its own ended attempt is not taken for a living one."""
    faulty = Disk(monkeypatch)
    with pytest.raises(DiskError):
        train(tmp_path, faulty, {5: lambda: setattr(faulty, "code", errno.EIO)}, steps=7)
    faulty.code = 0
    train(tmp_path, faulty, {}, steps=9)
    assert 9 == Store(tmp_path).latest().step


def test_a_stop_whose_state_is_saved_exits_with_75_also_without_its_last_line(tmp_path, monkeypatch, capsys):
    """The state is what counts: the job is run again."""
    real = disk.append

    def broken(path, data, *, sync):
        if b'"event":"stop"' in data:
            raise OSError(errno.EIO, os.strerror(errno.EIO), str(path))
        real(path, data, sync=sync)

    with pytest.raises(Stopped), Run(tmp_path, {"toy": Frozen()}, every=Every(steps=2)) as run:
        for _ in run.steps(9):
            if run.step == 4:
                monkeypatch.setattr(disk, "append", broken)
                run._session.stop.reason = "SIGTERM"
    monkeypatch.undo()
    assert 5 == Store(tmp_path).latest().step
    assert [] == events(tmp_path, "stop")
    assert "only the journal's last line is missing: run me again all the same" in capsys.readouterr().err


def test_a_stop_on_a_disk_that_fails_exits_with_75_also_with_mirrors(tmp_path, monkeypatch, capsys):
    """What the run notes of its places can be lost, too; they learn that it has ended."""
    path, place, real, append = tmp_path / "run", tmp_path / "place", os.listdir, disk.append

    def listed(folder=".", *rest):
        if str(folder).endswith("run/checkpoints"):
            raise OSError(errno.EIO, os.strerror(errno.EIO), str(folder))
        return real(folder, *rest)

    def broken(file, data, *, sync):
        if (path / "checkpoints/step-000000005").exists():  # before, the save of the stop would fail
            raise OSError(errno.EIO, os.strerror(errno.EIO), str(file))
        append(file, data, sync=sync)

    with pytest.raises(Stopped), Run(path, {"toy": Frozen()}, every=Every(steps=2), mirror=place, drain=5) as run:
        for _ in run.steps(9):
            if run.step == 4:
                run._session.saves.collect_outcome()
                monkeypatch.setattr(disk, "append", broken)
                monkeypatch.setattr(os, "listdir", listed)
                run._session.stop.reason = "SIGTERM"
    monkeypatch.undo()
    assert 5 == Store(path).latest().step
    assert look(place).claims[-1].ended
    assert "run me again all the same" in capsys.readouterr().err


def test_what_cannot_go_to_quarantine_is_not_said_to_be_there(tmp_path, monkeypatch, capsys):
    """Each line tells what is so."""
    faulty, real = Disk(monkeypatch), disk.rename_new

    def refused_there(source, target):
        if "quarantine" in target.name:
            raise OSError(errno.EIO, os.strerror(errno.EIO), str(source))
        real(source, target)

    monkeypatch.setattr(disk, "rename_new", refused_there)
    train(
        tmp_path, faulty, {3: lambda: setattr(faulty, "bad", True), 4: lambda: setattr(faulty, "bad", False)}, steps=8
    )
    said = capsys.readouterr().err
    assert not [*(tmp_path / "quarantine").iterdir()]
    assert "it is in quarantine/" not in said
    assert "the next start moves it to quarantine/" in said


def test_a_directory_that_vanishes_while_a_checkpoint_is_read_back_is_no_later_attempt(tmp_path, monkeypatch, capsys):
    """As when it is unmounted: the save counts, and nobody is told of another attempt."""
    path, away, real = tmp_path / "run", tmp_path / "away", Checkpoint.problems
    store = Store(path, keep=Last(1))
    store.save({"w": np.full(3, 1)}, step=1)

    def vanished(checkpoint, **options):
        path.rename(away)
        return real(checkpoint, **options)

    monkeypatch.setattr(Checkpoint, "problems", vanished)
    store.save({"w": np.full(3, 2)}, step=2)
    assert "the run's directory is gone; put it back, or mount it" in capsys.readouterr().err
    away.rename(path)
    monkeypatch.undo()
    store.save({"w": np.full(3, 3)}, step=3)
    assert ["step-000000003"] == names(path)


@pytest.mark.parametrize(
    ("code", "kind", "words"),
    [
        (
            errno.ENOSPC,
            NoSpace,
            r"no space left to save: [\d,]+ bytes are free.*; free some, or keep fewer checkpoints",
        ),
        (errno.EDQUOT, NoSpace, r"the disk quota is used up.*[\d,]+ bytes are free.*`quota -s`"),
        (
            errno.EIO,
            DiskError,
            r"Input/output error \(.*/checkpoints\); the disk, or the connection to it, fails.*dmesg",
        ),
        (errno.EROFS, DiskError, r"Read-only file system .*; mount it for writing"),
        (errno.ESTALE, DiskError, r"Stale file handle .*; .*mount it again"),
        (errno.EFBIG, DiskError, r"File too large .*; this process may not write files of that size: see `ulimit -f`"),
        (errno.EACCES, DiskError, r"Permission denied .*; give this user the right to write there"),
    ],
    ids=lambda each: errno.errorcode.get(each, "") if isinstance(each, int) else "",
)
def test_what_the_system_refused_is_one_line_that_says_what_to_do(tmp_path, code, kind, words):
    """What failed, where, and what to do next; a quota is told from a full disk."""
    error = disk_error(tmp_path, "save", OSError(code, os.strerror(code), str(tmp_path / "checkpoints")))
    assert kind is type(error)
    assert re.fullmatch(rf"{re.escape(str(tmp_path))}: .*{words}.*", str(error))


def test_a_full_disk_without_inodes_is_told_as_that(tmp_path, monkeypatch):
    """Bytes are free, and no file can be made; where the number of files has no limit, nothing is said of it."""
    full = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    monkeypatch.setattr(disk, "free_space", lambda path: disk.FreeSpace(5000, 0))
    assert "5,000 bytes are free, and no inodes: each file needs one" in str(disk_error(tmp_path, "save", full))
    monkeypatch.setattr(disk, "free_space", lambda path: disk.FreeSpace(5000, None))
    assert "no space left to save: 5,000 bytes are free; free some" in str(disk_error(tmp_path, "save", full))


def test_who_leaves_for_want_of_space_is_told_what_is_saved(tmp_path, monkeypatch):
    """The journal may have no room for it; the last line of the error says it."""
    faulty = Disk(monkeypatch)
    with pytest.raises(NoSpace) as told:
        train(tmp_path / "run", faulty, {6: lambda: setattr(faulty, "code", errno.ENOSPC)}, steps=9)
    newest = int(names(tmp_path / "run")[-1][-9:])
    assert [f"step {newest} is saved; {9 - newest} steps after it will be done again"] == told.value.__notes__
