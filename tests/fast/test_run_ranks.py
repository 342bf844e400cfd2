"""A run of several ranks: what each of them does is the same, and what cannot be the same is done by rank 0."""

import errno
import os
import shutil
import threading
import time

import numpy as np
import pytest
from torch import nn

from holdfast import Best, Every, Run, Store, disk, journal
from holdfast.errors import Damaged, Mismatch, NoSpace, NotFound, RanksError, Stopped, StoreError, UsageError
from holdfast.job import Job
from holdfast.mirror.checkpoint_fetcher import CheckpointFetcher
from holdfast.ranks import Ranks
from holdfast.report import report
from holdfast.run.ranks import lead_long_work, require_equal_arguments, run_on_all_ranks
from holdfast.run.stop import JobClock, StopRequest
from holdfast.run.weights import StartFrom
from holdfast.store.problems import Problem
from holdfast.supervise import status
from rank_threads import everywhere
from run_ranks import Part, alone, among_threads, noted_saves, on, stop_at, train, training
from stores import flip
from toy import events, names


@pytest.fixture
def among(monkeypatch):
    return among_threads(monkeypatch)


@pytest.fixture
def trained(among):
    return training(among)


@pytest.fixture
def saves(monkeypatch):
    return noted_saves(monkeypatch)


# One state, one position -------------------------------------------------------------------------------------------


def test_a_deadline_is_kept_by_rank_0(tmp_path, trained, saves, monkeypatch):
    """The clocks of the others may be wrong."""
    began = time.time()
    monkeypatch.setattr("holdfast.run.stop.interval.must_stop", lambda now, deadline, save_s, step_s: now > began + 0.2)
    deadline = began + 3600
    ended = trained(tmp_path, steps=9999, every=None, deadline=deadline, before=lambda _: time.sleep(0.01))
    assert ["deadline"] * 2 == [each.reason.partition(" ")[0] for each in ended]
    assert saves[0] == saves[1]


def test_the_rank_that_comes_last_to_a_save_is_journaled(tmp_path, among):
    """And how long rank 0 waited for it: the report names the slowest."""

    def work(rank):
        part = Part(rank)
        with Run(tmp_path / "run", {"part": part}, every=Every(steps=2), background=False) as run:
            for _ in run.steps(4):
                time.sleep(0.15 if rank == 1 else 0.0)
                part.learn()

    among(3, work)
    saved = events(tmp_path / "run", "saved")
    assert [1, 1] == [event["late_rank"] for event in saved[:2]]
    assert all(event["late_s"] > 0.1 for event in saved[:2])
    (place,) = status.find_runs(tmp_path / "run")
    (slowest, *_) = report.late_ranks(report.read(place).saves)
    assert (1, True) == (slowest["rank"], slowest["waited_s"] > 0.2)


def test_a_signal_at_the_very_end_is_heard_by_all(tmp_path, among):
    """Whether the block ends or stops, rank 0 says."""

    def work(rank):
        part = Part(rank)
        with Run(tmp_path, {"part": part}) as run:
            for _ in run.steps(3):
                part.learn()
            if rank == 0:
                run._session.stop.receive_from_rank("SIGTERM")

    assert [Stopped, Stopped] == [type(each) for each in among(2, work)]


@pytest.mark.parametrize("lost", [0, 1])
def test_a_rank_that_is_lost_after_the_last_word_of_a_stop_changes_nothing(
    tmp_path, trained, monkeypatch, lost, capsys
):
    """All is saved, and the journal says so: whoever is left leaves with 75, and the next attempt goes on."""
    gather = Ranks.gather

    def killed(self, topic, *rest, **options):
        if topic == "the good-bye" and self.rank == lost:
            raise SystemExit(-9)
        return gather(self, topic, *rest, **options)

    monkeypatch.setattr(Ranks, "gather", killed)
    found = trained(tmp_path, steps=300, before=stop_at(5), every=None, timeout_s=1.0)
    assert [SystemExit if rank == lost else Stopped for rank in range(2)] == [type(each) for each in found]
    assert "stop" == journal.logs(tmp_path)[-1].last["event"]
    monkeypatch.undo()


def test_a_run_may_be_entered_again(tmp_path, among):
    """By all ranks; each time they talk anew."""

    def work(rank):
        return [train(tmp_path, rank, steps=steps) for steps in (4, 8)]

    assert [list(each) for each in zip(alone(4), alone(8), strict=True)] == among(2, work)


def test_a_further_rank_begins_with_rank_0s_state_and_luck_of_its_own(tmp_path, trained, among, monkeypatch):
    """Of another world size: what a rank had that is not there any more is not needed."""
    restored = threading.local()
    monkeypatch.setattr("holdfast.run.opening.rng.restore", lambda states: setattr(restored, "luck", "own") or [])
    monkeypatch.setattr("holdfast.run.opening.rng.seed", lambda number: setattr(restored, "luck", number))
    trained(tmp_path, steps=4)

    def look(rank):
        part = Part(99)
        with Run(tmp_path, {"part": part}):
            return part.common, part.own, restored.luck

    first, second, third = among(3, look)
    assert [(*each, "own") for each in alone(4)] == [first, second]
    assert alone(4)[0] == third[:2]
    assert isinstance(third[2], int)
    assert [first] == among(1, look)


# What rank 0 does for all ------------------------------------------------------------------------------------------


def test_the_journal_is_written_and_the_tracker_asked_on_rank_0(tmp_path, among):
    """Once: steps, saves and metrics of a run are those of one, and what the tracker returned is the next attempt's
    id.
    """
    asked = []

    def work(rank):
        tracker = lambda known, step: asked.append((rank, known)) or "id"
        return train(tmp_path, rank, before=lambda run: run.log(loss=run.step), tracker=tracker)

    among(3, work)
    assert list(range(12)) == [event["values"]["loss"] for event in events(tmp_path, "metrics")]
    assert [4, 8, 12] == [event["step"] for event in events(tmp_path, "saved")]
    assert 1 == len(events(tmp_path, "end"))
    among(3, work)
    assert [(0, None), (0, "id")] == asked


def test_a_best_is_best_on_rank_0(tmp_path, among, saves):
    """At the end of an epoch nobody else need have measured it."""

    def work(rank):
        part = Part(rank)
        with Run(tmp_path, {"part": part}, keep=Best("score", max), every=None) as run:
            for epoch in run.epochs(4):
                for _ in run.steps(3):
                    part.learn()
                if rank == 0:
                    run.log(score=[1, 5, 3, 2][epoch])

    among(2, work)
    assert saves[0] == saves[1]
    assert [(3, "new best"), (6, "new best"), (12, "the end")] == saves[0]


def test_a_best_inside_of_an_epoch_is_measured_by_all(tmp_path, among, saves):
    """And rank 0's number counts."""

    def work(rank):
        return train(
            tmp_path, rank, before=lambda run: run.log(score=min(run.step, 2) - 9 * rank), keep=Best("score", max)
        )

    among(2, work)
    assert saves[0] == saves[1]
    assert [1, 2, 3] == [step for step, why in saves[0] if why == "new best"]


def test_going_back_is_done_once_for_all(tmp_path, trained):
    """Rank 0 moves what is newer aside, and a restart does not repeat it."""
    trained(tmp_path)
    ended = trained(tmp_path, steps=6, go_back=4)
    assert alone(6) == ended
    assert ["step-000000004", "step-000000006"] == names(tmp_path)
    assert ended == trained(tmp_path, steps=6, go_back=4)
    assert 1 == len(events(tmp_path, "went_back"))


def test_a_branch_goes_on_from_what_rank_0_has_chosen(tmp_path, trained):
    """Each rank from its own state."""
    trained(tmp_path / "a", steps=4)
    found = trained(tmp_path / "b", steps=9, branch_from=tmp_path / "a")
    assert alone(9) == found


# Errors are those of all -------------------------------------------------------------------------------------------


def full_for_rank_1(monkeypatch, most):
    """So many times the disk is full as rank 1 writes its part; which parts these were."""
    write, failed = disk.write, []

    def full(path, *rest):
        if path.name == "rank-00001.json" and len(failed) < most:
            failed.append(path.parent.name)
            raise OSError(errno.ENOSPC, "full")
        write(path, *rest)

    monkeypatch.setattr(disk, "write", full)
    return failed


def test_a_full_disk_on_one_rank_is_one_on_all_and_training_goes_on(tmp_path, trained, saves, monkeypatch):
    """Nothing of it is committed; the next save is made by all, on one step. Of the last one, all get the error."""
    failed = full_for_rank_1(monkeypatch, 1)
    found = trained(tmp_path, steps=40, before=lambda _: time.sleep(0.003))
    assert alone(40) == found
    assert saves[0] == saves[1]
    assert ["save_failed"] == [event["event"] for event in events(tmp_path, "save_failed")]
    assert (1, False) == (len(failed), failed[0] in names(tmp_path))
    full_for_rank_1(monkeypatch, 99)
    ended = trained(tmp_path / "last", every=None)
    assert [NoSpace, NoSpace] == [type(each) for each in ended]
    assert 1 == len(events(tmp_path / "last", "failed"))


def test_a_disk_that_is_full_once_a_save_is_committed_is_no_failure_of_it(tmp_path, among, monkeypatch):
    """Only rank 0 writes the journal's line about it, and keeps it until it fits: else it alone would save once
    more.
    """
    append, failed = journal.append, []

    def full(path, waiting, **options):
        if not failed and any(event["event"] == "saved" for event in waiting):
            failed.append(path)
            raise OSError(errno.ENOSPC, "full")
        append(path, waiting, **options)

    def walk(rank):
        with Run(tmp_path, {"part": Part(rank)}, every=Every(steps=4)) as run:
            for _ in range(4):
                run.safe_point()

    monkeypatch.setattr(journal, "append", full)
    assert [None, None] == among(2, walk, timeout_s=3.0)
    assert failed
    assert [4] == [event["step"] for event in events(tmp_path, "saved")]
    assert [] == events(tmp_path, "save_failed")


def test_what_one_rank_alone_finds_damaged_early_makes_the_ranks_save_at_no_other_steps(tmp_path, trained, saves):
    """Each rank reads what it wrote beside its loop. What it finds there the others do not know."""

    def damaged(run):
        session = run._session
        if session.ranks.rank and run.step in (5, 6, 9):
            session.saves.readback._damage = Problem(tmp_path / "a file", 0, 1, "is damaged")

    assert alone(16) == trained(tmp_path, steps=16, before=damaged, timeout_s=5.0)
    assert saves[0] == saves[1]
    assert [step for step, _ in saves[0]] == [4, 8, 12, 16]


def test_what_one_rank_finds_damaged_is_damaged_for_all(tmp_path, trained):
    """The next older one is restored by all; none is an error on all, never a silent start from scratch."""
    trained(tmp_path, steps=9)
    flip(tmp_path / "checkpoints" / "step-000000009" / "rank-00001.json")
    assert alone() == trained(tmp_path)
    assert ["step-000000009-damaged"] == os.listdir(tmp_path / "quarantine")
    (restored,) = [event for event in events(tmp_path, "restored") if event["checkpoint"]]
    assert "step-000000008" == restored["checkpoint"]
    for name in names(tmp_path):
        flip(tmp_path / "checkpoints" / name / "rank-00001.json")
    assert [StoreError, StoreError] == [type(each) for each in trained(tmp_path)]
    assert alone() == trained(tmp_path, allow_fresh=True)


class Wider(Part):
    """Fits no checkpoint: it says so when it is restored."""

    def load_state_dict(self, state):
        raise Mismatch("wider")


def test_a_mismatch_on_one_rank_is_one_on_all(tmp_path, trained, among):
    """And speaks against no checkpoint."""
    trained(tmp_path, steps=4)
    found = among(2, lambda rank: train(tmp_path, rank, part=(Wider if rank else Part)(rank)))
    assert [UsageError, UsageError] == [type(each) for each in found]  # the classes differ, which is seen first
    Wider.__qualname__, Wider.__module__ = Part.__qualname__, Part.__module__
    found = among(2, lambda rank: train(tmp_path, rank, part=(Wider if rank else Part)(rank)))
    assert [Mismatch, Mismatch] == [type(each) for each in found]
    assert [] == os.listdir(tmp_path / "quarantine")


def test_a_probe_that_differs_on_one_rank_stops_all(tmp_path, trained, among):
    """What a resume finds wrong on a rank, no rank goes on from."""
    trained(tmp_path, steps=4, probe=lambda: 1)
    found = among(2, lambda rank: train(tmp_path, rank, probe=lambda: 1 + rank))
    assert [Mismatch, Mismatch] == [type(each) for each in found]


def test_a_state_that_one_rank_cannot_save_fails_on_all(tmp_path, trained):
    """At once: nobody waits for its part."""
    found = trained(tmp_path, before=on(1, 3, lambda run: setattr(run.vars, "odd", object())))
    assert [UsageError, UsageError] == [type(each) for each in found]


def test_a_rank_that_fails_is_not_waited_for(tmp_path, trained):
    """It says that it leaves, why, and where it was; the journal names it."""

    def fail(run):
        raise ValueError("of this rank alone")

    found = trained(tmp_path, before=on(1, 6, fail))
    assert "rank 1 has left with ValueError: of this rank alone, at step 6;" in str(found[0])
    (failed,) = events(tmp_path, "failed")
    assert "rank 1: ValueError: of this rank alone" == failed["error"]


def test_a_rank_that_fails_before_the_run_is_claimed_is_not_waited_for(tmp_path, trained, monkeypatch):
    """The others learn why, and not by a deadline."""

    def fail(self, root):
        if self.rank == 0:
            raise SystemExit("not today")

    monkeypatch.setattr(JobClock, "wait_for_earlier_task", fail)
    first, second = trained(tmp_path, timeout_s=3.0)
    assert isinstance(first, SystemExit)
    assert isinstance(second, RanksError)
    assert "rank 0 has left with SystemExit: not today" in str(second)


def test_what_one_rank_alone_changes_before_the_loop_is_put_back_there(tmp_path, trained, among):
    """Nobody else need know of it."""
    trained(tmp_path, steps=4)

    def work(rank):
        part = Part(rank)
        with Run(tmp_path, {"part": part}) as run:
            part.own += rank
            for _ in run.steps(8):
                part.learn()
        return part.common, part.own

    assert alone(8) == among(2, work)
    assert [] == events(tmp_path, "put_back")  # it is another rank's than 0


class Asked:
    """An object that stores other bytes than it is given, and counts what it is asked: it may ask all ranks."""

    def __init__(self):
        self.numbers, self.asked, self.loaded = np.full(1 << 16, 1.25), 0, 0

    def state_dict(self):
        self.asked += 1
        return {"numbers": self.numbers}

    def load_state_dict(self, state):
        self.loaded += 1
        self.numbers = np.round(state["numbers"])


def test_all_ranks_restore_equally_often_what_a_load_state_dict_changes(tmp_path, among):
    """One rank has written the leaf, and its part of the manifest alone lists it."""

    def work(rank):
        with Run(tmp_path, {"it": Asked()}) as run:
            for _ in run.steps(2):
                pass
        again = Asked()
        with Run(tmp_path, {"it": again}) as run:
            for _ in run.steps(3):
                counts = again.asked, again.loaded
        return counts, again.numbers[0]

    first, second = among(2, work)
    assert first == second
    assert ((3, 1), 1.0) == first


def test_weights_of_another_run_are_read_by_all(tmp_path, among):
    """From the checkpoint that rank 0 has chosen."""

    def first(rank):
        with Run(tmp_path / "a", {"model": nn.Linear(2, 2)}) as run:
            for _ in run.steps(2):
                pass

    def second(rank):
        model = nn.Linear(2, 2)
        with Run(tmp_path / "b", {"model": model}, start_from=StartFrom(tmp_path / "a")):
            return model.weight.tolist()

    among(1, first)
    weights = Store(tmp_path / "a").load()["model"]["weight"].tolist()
    assert [weights] * 3 == among(3, second)
    (told,) = events(tmp_path / "b", "started_from")
    assert str(tmp_path / "a" / "checkpoints" / "step-000000002") == told["source"]


def test_of_many_ranks_some_odd_ones_are_named():
    """The message is the same on every rank, and not longer than one can read."""
    said = [{"keep": "Last(3)", "every": "x"} if rank < 2 else {"keep": f"Last({rank})"} for rank in range(12)]
    found = everywhere(12, lambda mine: require_equal_arguments(mine, said[mine.rank]))
    assert [UsageError] * 12 == [type(each) for each in found]
    assert 1 == len(set(map(str, found)))
    assert "rank 2: keep is Last(2), on rank 0 Last(3); every is nothing, on rank 0 x" in str(found[0])
    assert "and 2 more ranks" in str(found[0])
    assert [None] * 3 == everywhere(3, lambda mine: require_equal_arguments(mine, {"keep": "Last(3)"}))


@pytest.mark.parametrize(
    ("errors", "outcome"),
    [
        ([None, None, None], "done"),
        ([None, Damaged("bits"), None], Damaged),
        ([NotFound("gone"), Damaged("bits"), None], Damaged),
        ([NotFound("gone"), None, NotFound("gone")], NotFound),
        ([None, None, NotFound("gone")], StoreError),  # another rank sees it
        ([Damaged("bits"), Mismatch("shape"), None], Mismatch),
        ([Damaged("bits"), None, StoreError("EIO")], StoreError),
    ],
)
def test_all_ranks_take_a_restore_to_have_ended_alike(errors, outcome):
    """What speaks against the program, or its file system, goes before what speaks against the checkpoint."""

    def work(rank):
        if errors[rank] is not None:
            raise errors[rank]
        return "done"

    found = everywhere(3, lambda mine: run_on_all_ranks(mine, "the restore", lambda: work(mine.rank)))
    assert [outcome] * 3 == [each if each == "done" else type(each) for each in found]


def test_only_rank_0_acts_for_the_job(tmp_path, monkeypatch):
    """However a launcher has numbered its processes."""
    here = Job("slurm", "7", 0)
    monkeypatch.setattr("holdfast.run.stop.job", lambda: here)
    monkeypatch.setattr("holdfast.run.stop.job_leader.is_job_leader", lambda *_: True)
    found = [JobClock(tmp_path, StopRequest(), own_deadline=True, rank=rank).job for rank in range(2)]
    assert [here, None] == found


@pytest.mark.parametrize(("error", "counts"), [(ValueError("mine"), True), (RuntimeError("peer is gone"), False)])
def test_a_lost_rank_does_not_speak_against_a_checkpoint(tmp_path, trained, error, counts):
    """A collective fails before the first step when another rank is lost: that would look like a poisoned one."""
    trained(tmp_path, steps=4)

    def before(run):
        raise error

    assert [error] * 2 == list(trained(tmp_path, before=before))
    (failed,) = events(tmp_path, "failed")
    assert counts is failed["counts"]


def test_ranks_wait_for_rank_0_as_long_as_it_is_at_work():
    """Longer than for any message, as it fetches a checkpoint from a mirror; its error comes to all."""

    def long(fails):
        def work():
            time.sleep(0.5)
            if fails:
                raise StoreError("no answer")
            return b"found"

        return lambda mine: lead_long_work(mine, "a choice", work, beside=mine.rank == 0)

    assert [b"found"] * 3 == everywhere(3, long(fails=False), timeout_s=0.3)
    found = [*everywhere(2, long(fails=True), timeout_s=0.3)]
    assert ["StoreError: no answer", "StoreError: rank 0: no answer"] == [f"{type(e).__name__}: {e}" for e in found]


def test_ranks_wait_while_rank_0_fetches_the_step_to_go_back_to(tmp_path, trained, monkeypatch):
    """From a place that takes longer than any message may."""
    place, fetch = tmp_path / "place", CheckpointFetcher.fetch
    trained(tmp_path / "run", mirror={place: Every(steps=4)})
    shutil.rmtree(tmp_path / "run")

    def slow(self, step, **options):
        fetch(self, step, **options)
        time.sleep(1.5)

    monkeypatch.setattr(CheckpointFetcher, "fetch", slow)
    assert alone(14) == trained(tmp_path / "run", steps=14, go_back=4, mirror={place: Every(steps=4)}, timeout_s=1.0)
    assert [4] == [event["step"] for event in events(tmp_path / "run", "went_back")]


# A drill -----------------------------------------------------------------------------------------------------------


def test_a_drill_sees_the_state_of_every_rank(tmp_path, trained, monkeypatch):
    """What a rank has otherwise than rank 0 is journalled as its own."""
    monkeypatch.setenv("HOLDFAST_DRILL", '{"digests": true}')
    trained(tmp_path, steps=2)
    first, second = events(tmp_path, "digests")
    assert "@1/tree:part" in first["leaves"]
    assert first["leaves"]["@1/tree:part"] != second["leaves"]["@1/tree:part"]
