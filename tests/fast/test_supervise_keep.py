"""Checkpoints of a program that is not ours: committed when they are whole, handed back when they are valid."""

import os
import shutil
import time

import pytest

from holdfast import journal
from holdfast.apps.program import ProgramCheckpoint
from holdfast.apps.take import copy_if_unchanged
from holdfast.errors import NoSpace, StoreError, UsageError
from holdfast.store.store import Store
from holdfast.supervise import keep
from holdfast.supervise.keep import ProgramStore


def kept(place):
    return [checkpoint.step for checkpoint in Store(place / "run").checkpoints()]


# Settling, in one process -----------------------------------------------------------------------------------------


class Files:
    """A program that says what the test wants."""

    def __init__(self, path):
        self.path, self.found = path, None

    def writes(self, text, step=None, **facts):
        """Its file, which it calls its checkpoint of this step."""
        self.path.write_text(text)
        self.found = ProgramCheckpoint([self.path], step, **facts)

    def checkpoint(self):
        return self.found


@pytest.fixture
def program(tmp_path, monkeypatch):
    monkeypatch.setattr(keep, "LOOK_S", 0.05)
    program = Files(tmp_path / "a.ck")
    program.writes("state", 7)
    return program


@pytest.fixture
def keeper(tmp_path, program):
    """The store of the program's checkpoints, after a start has begun."""
    keeper = ProgramStore(tmp_path / "run", program)
    keeper.forget_earlier_files()
    return keeper


def looked(kept, pids=()):
    """Two looks, far enough apart."""
    first = kept.commit_settled(lambda: pids)
    time.sleep(0.06)
    return first, kept.commit_settled(lambda: pids)


def test_it_is_kept_when_it_has_not_changed_between_two_looks(program, keeper):
    """Once: the same one is not kept again."""
    assert (None, 7) == looked(keeper)
    assert (None, None) == looked(keeper)
    assert "state" == (keeper.store.latest().path / "a.ck").read_text()
    program.writes("later", 9)
    assert (None, 9) == looked(keeper)


def test_what_changes_at_every_look_is_kept_when_nobody_is_writing_it(program, keeper):
    """A program that writes more often than we look would otherwise have nothing in the store."""
    found = []
    for step in range(8):
        program.writes(f"state {step}", step)
        found.append(keeper.commit_settled(list))
    assert [None, None, 2, None, None, 5, None, None] == found


def test_what_was_kept_is_in_the_journal_at_once(tmp_path, keeper):
    """A supervisor that is killed later has still told when it last kept something."""
    keeper.commit_last(orderly=True)
    assert "saved" in [event["event"] for event in journal.logs(tmp_path / "run")[-1].events]


def test_what_says_when_it_has_settled_is_looked_at_again_in_time(tmp_path, program, monkeypatch):
    """However seldom we look otherwise."""
    monkeypatch.setattr(keep, "LOOK_S", 60.0)
    program.writes("state", 7, settle_s=0.2)
    keeper = ProgramStore(tmp_path / "run", program)
    keeper.forget_earlier_files()
    assert (None, 0.1) == (keeper.commit_settled(list), keeper.look_s)
    time.sleep(0.1)
    assert (None, 0.1) == (keeper.commit_settled(list), keeper.look_s)
    time.sleep(0.1)
    assert (7, 60.0) == (keeper.commit_settled(list), keeper.look_s)


def test_what_never_settles_is_told_once(program, monkeypatch, capsys, keeper):
    """And never kept: that the file changes at every look is no sign of its being whole."""
    monkeypatch.setattr(keep, "UNSETTLED_S", 0.2)
    program.writes("state", settle_s=0.05)
    for step in range(20):
        program.path.write_text(f"state {step}")
        assert keeper.commit_settled(list) is None
        time.sleep(0.02)
    said = capsys.readouterr().err
    assert "a.ck: never unchanged for 0.05 s, so nothing of it could be kept since" in said
    assert 1 == said.count("give a shorter `settle_s`, or let the program write to another name")


def test_what_may_be_of_two_checkpoints_is_not_taken_over(tmp_path, program, capsys):
    """Killed between two files, one is new and the other old."""
    (tmp_path / "b.ck").touch()
    keeper = ProgramStore(tmp_path / "run", program)
    assert keeper.commit_left_file(ProgramCheckpoint([program.path, tmp_path / "b.ck"])) is None
    assert "a.ck, b.ck: written when the last start was killed, perhaps not all of them" in capsys.readouterr().err
    assert 0 == keeper.commit_left_file(ProgramCheckpoint([program.path]))


def test_what_a_program_would_begin_with_is_kept_before_its_first_start(program, monkeypatch, keeper):
    """Unless somebody is writing it: a program that runs already must not lose its files."""

    def moving(found, into):
        program.writes("changed meanwhile", 7)
        return copy_if_unchanged(found, into)

    with monkeypatch.context() as changed:
        changed.setattr(keep, "copy_if_unchanged", moving)
        with pytest.raises(UsageError, match=r"a\.ck: another process is writing there; stop it first"):
            keeper.commit_initial_files(program.found)
    assert "; none of its checkpoint files was seen, so nothing was kept" == keeper.describe_kept()
    keeper.commit_initial_files(program.found)
    assert f"; {keeper.store.root} keeps its last checkpoint, step 7" == keeper.describe_kept()
    assert "changed meanwhile" == (keeper.store.latest().path / "a.ck").read_text()


def test_what_somebody_holds_open_for_writing_is_not_whole_yet(program, tmp_path, monkeypatch, keeper):
    """Until it has not changed for long: some programs never close their files."""
    with program.path.open("a"):
        assert (None, None) == looked(keeper, [os.getpid()])
        with program.path.open("r"):
            assert (None, None) == looked(keeper, [os.getpid()])
        monkeypatch.setattr(keep, "HELD_S", 0.2)
        time.sleep(0.2)
        assert 7 == keeper.commit_settled(lambda: [os.getpid()])
    assert not list((tmp_path / "run" / "attempts" / "1").glob("step-*"))


def test_what_changes_while_it_is_copied_is_left_for_later(program, monkeypatch, keeper):
    """Nothing of it stays in the store."""
    honest = copy_if_unchanged

    def copied(found, into):
        taken = honest(found, into)
        program.path.write_text("moved on")
        return taken

    monkeypatch.setattr(keep, "copy_if_unchanged", copied)
    assert (None, None) == looked(keeper)
    monkeypatch.setattr(keep, "copy_if_unchanged", honest)
    assert (None, 7) == looked(keeper)
    assert "moved on" == (keeper.store.latest().path / "a.ck").read_text()


def test_a_crash_leaves_no_half_checkpoint(program, keeper):
    """What was there before is kept; what has just been touched is not, unless the program ended in order."""
    assert None is keeper.commit_last(orderly=False)
    keeper.commit_settled(list)
    time.sleep(0.06)
    assert 7 == keeper.commit_last(orderly=False)
    program.writes("at the end", 8)
    assert 8 == keeper.commit_last(orderly=True)


def test_what_shows_by_itself_that_it_is_whole_is_kept_at_once(program, keeper):
    """Also after a crash: some formats end with a mark."""
    program.writes("state", 1, whole=True)
    assert 1 == keeper.commit_settled(list)
    program.writes("later", 2, whole=True)
    assert 2 == keeper.commit_last(orderly=False)


def test_without_steps_of_its_own_they_are_counted(tmp_path, program, keeper):
    """And a count that falls back goes on from what is there: a checkpoint is never overwritten."""
    found = []
    for text, step in (("a", None), ("b", None), ("c", 50), ("d", 20), ("e", None)):
        program.writes(text, step)
        found.append(keeper.commit_last(orderly=True))
    assert [0, 1, 50, 51, 52] == found
    assert [50, 51, 52] == kept(tmp_path)


def test_what_lies_there_already_is_not_kept_twice(tmp_path, program):
    """A new start finds the very bytes of the newest checkpoint."""
    for _ in range(2):
        keeper = ProgramStore(tmp_path / "run", program)
        keeper.forget_earlier_files()
        assert 7 == keeper.commit_last(orderly=True)
        keeper.close()
    assert [7] == kept(tmp_path)
    assert 0 == keeper.committed


def test_several_files_keep_their_places(tmp_path, program, keeper):
    root = tmp_path / "work"
    (root / "deep").mkdir(parents=True)
    files = [root / "a.ck", root / "deep" / "b.ck"]
    for file in files:
        file.write_text(file.name)
    program.found = ProgramCheckpoint(files, 1, root)
    assert 1 == keeper.commit_last(orderly=True) == keeper.commit_last(orderly=True) or keeper.committed == 1
    assert "b.ck" == (keeper.store.latest().path / "deep" / "b.ck").read_text()


def test_a_full_disk_is_told_once_and_the_program_goes_on(tmp_path, program, monkeypatch, capsys, keeper):
    """At the end it is an error: the state would be lost."""

    def full(found, into):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(keep, "copy_if_unchanged", full)
    for _ in range(3):
        assert (None, None) == looked(keeper)
    said = capsys.readouterr().err
    assert [1, 1] == [
        said.count(f"{tmp_path}/run: no space left to keep a checkpoint"),
        said.count("; the program goes on"),
    ]
    with pytest.raises(NoSpace):
        keeper.commit_last(orderly=True)
    assert not list((tmp_path / "run" / "attempts" / "1").glob("step-*"))


def test_a_run_that_was_taken_over_keeps_nothing_more(tmp_path, keeper):
    """Superseded: exit 9, and the successor's store is as it was."""
    other = Store(tmp_path / "run", take_over=True)
    other.claim()
    with pytest.raises(StoreError, match="superseded"):
        keeper.commit_last(orderly=True)
    assert [] == kept(tmp_path)


def test_nothing_is_no_checkpoint(program, keeper):
    program.path.unlink()
    assert (None, None) == looked(keeper)
    program.found = None
    assert None is keeper.commit_last(orderly=True)
    assert None is keeper.newest_valid()


def test_the_newest_valid_one_is_handed_back(tmp_path, program, capsys, keeper):
    """A manifest that is not whole counts as damage, too; nothing is deleted."""
    for step in (7, 8, 9):
        program.writes(f"state {step}", step)
        keeper.commit_last(orderly=True)
    paths = [checkpoint.path for checkpoint in keeper.store.checkpoints()]
    (paths[2] / "a.ck").write_text("state 8")
    (paths[1] / "manifest.json").write_text("{}")
    assert 7 == keeper.newest_valid().step
    assert 2 == len(list((tmp_path / "run" / "quarantine").iterdir()))
    assert 2 == capsys.readouterr().err.count("it is now")
    shutil.rmtree(paths[0])
    with pytest.raises(StoreError, match="none that would do is left"):
        keeper.newest_valid()


def test_a_program_whose_checkpoints_were_all_removed_does_not_begin_anew(tmp_path, program, keeper):
    """A purge or a slip of the hand took them: weeks of work may be in a copy."""
    program.writes("state 7", 7)
    keeper.commit_last(orderly=True)
    shutil.rmtree(tmp_path / "run/checkpoints")
    with pytest.raises(StoreError, match="the last was step-000000007, and none is there any more"):
        keeper.newest_valid()
