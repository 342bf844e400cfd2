"""Runs of real processes: torchrun, gloo, DDP, signals, and ranks that die."""

import json
import os
import re
import shutil
import signal
import time
from functools import partial
from itertools import chain

import pytest

from causes import TORCH
from holdfast import Store
from mirrored import copies
from needed import needs
from rank_processes import everywhere
from rank_scripts import odd, train
from supervised import until
from torchrun import by_hand, ended, launch, notes
from toy import events

STEPS = 30


class Training:
    """tests/rank_scripts/train.py in one directory, attempt after attempt."""

    def __init__(self, place, zygotes=None):
        self.place, self.run, self.attempts, self.zygotes = place, place / "run", 0, zygotes

    def asked(self, **asked):
        """Of the next attempt."""
        self.attempts += 1
        places = {"path": str(self.run), "notes": str(self.place / "notes")}
        return {**places, "attempt": self.attempts, "steps": STEPS, **asked}

    def launch(self, restarts=0, **asked):
        """By torchrun, on two ranks."""
        words = json.dumps(self.asked(**asked))
        return launch(self.zygotes(*TORCH), "train.py", words, restarts=restarts, HOLDFAST_RANKS_TIMEOUT_S="60")

    def start(self, **asked):
        """To its end, which is the test that nobody hangs."""
        return ended(self.launch(**asked))

    def fork(self, world=2, timeout_s=60, hosted=False, **asked):
        """Without a launcher; what became of the ranks."""
        work = partial(train.train, asked=self.asked(**asked))
        return everywhere(world, work, method="forkserver", timeout_s=timeout_s, hosted=hosted)

    def finish(self, world=2, **asked):
        assert [("", 0)] * world == [(outcome.error, outcome.exit_code) for outcome in self.fork(world, **asked)]

    def noted(self, key, rank, attempt=None):
        lines = notes(self.place / "notes", attempt or self.attempts, rank)
        return [line[key] for line in lines if key in line]

    def both(self, key):
        """The same of both ranks."""
        return [self.noted(key, rank) for rank in range(2)]

    def saves(self, rank):
        lines = notes(self.place / "notes", self.attempts, rank)
        return [(line["saves"], line["why"]) for line in lines if "saves" in line]

    def results(self, world=2):
        """The weights and buffers of each rank, and what its generators give next."""
        found = [notes(self.place / "notes", self.attempts, rank) for rank in range(world)]
        return [next(line for line in lines if "finished" in line) for lines in found]


@pytest.fixture
def training(tmp_path, zygotes):
    return Training(tmp_path, zygotes)


def ends(place):
    """What each of two ranks ends with when nothing happens."""
    training = Training(place)
    training.finish()
    return training.results()


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    return ends(tmp_path_factory.mktemp("undisturbed"))


@pytest.mark.parametrize(("rank", "name"), [(0, "TERM"), (1, "USR1")])
def test_a_signal_to_one_rank_stops_all_at_one_step_and_the_resume_is_exact(training, undisturbed, rank, name):
    """Both have saved, and go on with their own weights, buffers and random numbers: bit for bit as if undisturbed."""
    stop = training.start if rank else training.fork  # torchrun ends all ranks as soon as one has left
    stop(step_s=0.005, signals={f"{rank}:12": name})
    assert [["Stopped"], ["Stopped"]] == training.both("error")
    assert [[True], [True]] == training.both("cleaned")  # whoever leaves first
    assert training.saves(0) == training.saves(1)
    step, why = training.saves(0)[-1]
    assert f"SIG{name}" == why
    assert 13 <= step < STEPS
    training.finish()
    assert [[step], [step]] == training.both("resumed")
    assert undisturbed == training.results()


def test_ranks_go_on_from_a_mirror_alone(training, undisturbed):
    """The run's directory is lost after a stop; rank 0 fetches what all ranks wrote, and each has its own state."""
    place = training.place / "mirror"
    training.fork(step_s=0.005, signals={"1:12": "TERM"}, mirror=str(place))
    assert [["Stopped"], ["Stopped"]] == training.both("error")
    step = training.saves(0)[-1][0]
    assert f"step-{step:09d}" in {name for _, name in copies(place)}
    shutil.rmtree(training.run)
    training.finish(mirror=str(place))
    assert [[step], [step]] == training.both("resumed")
    assert undisturbed == training.results()
    assert (2, f"step-{STEPS:09d}") in copies(place)


def test_a_signal_to_the_launcher_stops_all(training, undisturbed):
    """torchrun hands it on to every rank; what was asked for twice is done once."""
    process = training.launch(step_s=0.1)
    until(lambda: training.noted("step", 1) or process.poll() is not None, "a step")
    os.kill(process.pid, signal.SIGTERM)
    ended(process)
    assert [["Stopped"], ["Stopped"]] == training.both("error")
    assert ["stop"] == [event["event"] for event in events(training.run, "stop")]
    training.finish()
    assert undisturbed == training.results()


def test_ranks_that_drift_apart_save_at_the_same_steps(training):
    """Nothing in the loop keeps them together; saves by the clock are rank 0's, and a wish to stop comes through."""
    asked = {"async": True, "steps": 2000, "step_s": 0.004, "every": {"minutes": 0.01}}
    training.fork(lags={"1:10": 50, "1:150": 50, "0:120": 1, "0:250": 5}, signals={"1:400": "TERM"}, **asked)
    assert training.saves(0) == training.saves(1)
    assert {"due", "SIGTERM"} == {why for _, why in training.saves(0)}
    assert 49 <= max(_drift(training))
    assert [["Stopped"], ["Stopped"]] == training.both("error")


def _drift(training):
    """How many steps the two were apart, whenever one of them had made a step."""
    made = sorted((at, rank) for rank in range(2) for at in training.noted("at", rank))
    steps = [0, 0]
    for _, rank in made:
        steps[rank] += 1
        yield abs(steps[0] - steps[1])


KILLS = [{"1": "save"}, {"0": "commit"}, {"1": "step:12"}, {"1": "restore"}]


def see_through(training, kills, undisturbed):
    """One launch, with a kill in each start but the last: torchrun starts all ranks again each time."""
    launched = training.start(kills=kills, restarts=len(kills))
    assert 0 == launched.code, launched.err
    starts = range(1, len(kills) + 2)
    resumed, others = ([training.noted("resumed", rank, start) for start in starts] for rank in range(2))
    assert resumed == others
    assert [[] if "restore" in kill.values() else [0] for kill in kills] == resumed[:-1]
    assert resumed[-1] in ([5], [10])
    training.attempts += len(kills)
    assert undisturbed == training.results()
    assert [] == list(chain.from_iterable(checkpoint.problems() for checkpoint in Store(training.run).checkpoints()))


def test_killed_ranks_cost_what_was_not_saved(training, undisturbed):
    """A rank is killed in its step. tests/prove kills it as it writes, before the commit, and in the restore."""
    see_through(training, KILLS[2:3], undisturbed)


@pytest.mark.parametrize("rank", [0, 1])
def test_without_a_launcher_the_others_end_by_themselves(training, rank):
    """Within the deadline: an error says which rank did not come, or that the rendezvous has died with rank 0."""
    asked = {"async": True, "steps": 10**6, "every": {"steps": 20}, "kills": [{str(rank): "step:30"}]}
    outcomes = training.fork(timeout_s=3, hosted=True, **asked)
    assert -signal.SIGKILL == outcomes[rank].exit_code
    assert ["RanksError"] == training.noted("error", 1 - rank)
    assert ("rank 1 did not come" if rank else "rendezvous does not answer") in training.noted("text", 1 - rank)[0]


@needs("unshare", "mount", root=True)
def test_a_rank_that_does_not_see_the_file_system_of_the_others_stops_all(tmp_path):
    """On its node something else is mounted there: one error on every rank, soon, and nothing is written to either."""
    shared = tmp_path / "shared"
    shared.mkdir()
    training = Training(tmp_path)
    training.run = shared / "run"
    training.finish(steps=6)
    before = [checkpoint.name for checkpoint in Store(training.run).checkpoints()]
    elsewhere = ["unshare", "--mount", "sh", "-c", 'mount -t tmpfs none "$0" && exec "$@"', str(shared)]
    asked = json.dumps(training.asked(join_s=1.0, steps=12))
    processes = by_hand(2, "train.py", asked, within={1: elsewhere})
    began = time.monotonic()
    assert [1, 1] == [ended(process).code for process in processes]
    assert time.monotonic() - began < 40
    assert [["UsageError"]] * 2 == training.both("error")
    for (text,) in training.both("text"):
        assert "is not there, or without attempt" in text
        assert "every rank must see one and the same directory" in text
    assert before == [checkpoint.name for checkpoint in Store(training.run).checkpoints()]
    training.finish(steps=12)
    assert [[6], [6]] == training.both("resumed")


def test_a_run_goes_on_with_more_ranks_or_fewer(training):
    """From the step at which it was; a rank that was not there draws numbers of its own, the same each time."""
    training.finish(steps=10)
    for world in (3, 1, 2):
        training.finish(world=world, steps=10)
        assert [[10]] * world == [training.noted("resumed", rank) for rank in range(world)]
        luck = [line["luck"] for line in training.results(world)]
        assert len(luck) == len(set(map(tuple, luck)))


WHY = {
    "path": "rank 1: path is .*run-1, on rank 0 .*run-0",
    "keep": r"rank 1: keep is Last\(n=4\), on rank 0 Last\(n=3\)",
    "every": "rank 1: every is ",
    "model": r"rank 1: model/weight is float32 \(3, 2\), on rank 0 float32 \(2, 2\)",
    "more in the model": r"rank 1: model/2.weight is float32 \(2, 2\), on rank 0 nothing",
    "names": "rank 1: state",
    "deadline": "has passed",
    "type": "is torch.nn.modules.linear.Linear, on rank 0 torch.nn.modules.linear.Bilinear",
    "file system": "rank 1 does not see what rank 0 does",
}


def test_ranks_that_do_not_fit_get_one_clear_error_each(tmp_path):
    """Wherever rank 1 is the odd one; nobody waits longer than for the others to come."""
    outcomes = everywhere(2, partial(odd.errors, place=tmp_path), method="forkserver", timeout_s=40)  # too long to wait
    for rank, outcome in enumerate(outcomes):
        assert "" == outcome.error
        assert list(WHY) == list(outcome.value)
        for case, text in outcome.value.items():
            assert re.search(WHY[case], text), f"{case}, rank {rank}: {text}"
