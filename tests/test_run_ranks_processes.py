"""Runs of real processes: torchrun, gloo, DDP, signals, and ranks that die."""

import json
import os
import re
import signal
from itertools import chain

import pytest

from holdfast import Store
from torchrun import begin, by_hand, ended, notes, torchrun
from toy import events

pytestmark = [pytest.mark.slow, pytest.mark.ranks]

STEPS = 30


class Training:
    """tests/ranks/train.py in one directory, attempt after attempt."""

    def __init__(self, place):
        self.place, self.run, self.attempts = place, place / "run", 0

    def asked(self, **asked):
        return json.dumps({"path": str(self.run), "notes": str(self.place / "notes"), "steps": STEPS, **asked})

    def start(self, world=2, timeout_s=60, **asked):
        self.attempts += 1
        environment = {"ATTEMPT": str(self.attempts), "HOLDFAST_RANKS_TIMEOUT_S": str(timeout_s)}
        return torchrun(world, "train.py", self.asked(**asked), **environment)

    def finish(self, **options):
        done = self.start(**options)
        assert 0 == done.code, done.err

    def noted(self, key, rank, attempt=None):
        lines = notes(self.place / "notes", attempt or self.attempts, rank)
        return [line[key] for line in lines if key in line]

    def saves(self, rank):
        lines = notes(self.place / "notes", self.attempts, rank)
        return [(line["saves"], line["why"]) for line in lines if "saves" in line]

    def result(self, rank):
        """The weights and buffers of a rank, and what its generators give next."""
        (line,) = [line for line in notes(self.place / "notes", self.attempts, rank) if "finished" in line]
        return line


@pytest.fixture
def training(tmp_path):
    return Training(tmp_path)


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    """What each of two ranks ends with when nothing happens."""
    training = Training(tmp_path_factory.mktemp("undisturbed"))
    training.finish()
    return [training.result(rank) for rank in range(2)]


@pytest.mark.parametrize(("rank", "name"), [(0, "TERM"), (1, "USR1")])
def test_a_signal_to_one_rank_stops_all_at_one_step_and_the_resume_is_exact(training, undisturbed, rank, name):
    """Both have saved, and go on with their own weights, buffers and random numbers: bit for bit as if undisturbed."""
    stopped = training.start(step_s=0.005, signals={f"{rank}:12": name})
    assert stopped.code != 0
    assert [["Stopped"], ["Stopped"]] == [training.noted("error", each) for each in range(2)]
    assert [[True], [True]] == [training.noted("cleaned", each) for each in range(2)]  # whoever leaves first
    assert training.saves(0) == training.saves(1)
    step, why = training.saves(0)[-1]
    assert f"SIG{name}" == why
    assert 13 <= step < STEPS
    training.finish()
    assert [[step], [step]] == [training.noted("resumed", each) for each in range(2)]
    assert undisturbed == [training.result(each) for each in range(2)]


def test_a_signal_to_the_launcher_stops_all(training, undisturbed):
    """torchrun hands it on to every rank; what was asked for twice is done once."""
    launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "tests/ranks/train.py"]
    training.attempts = 1
    process = begin([*launcher, training.asked(step_s=0.3)], ATTEMPT="1")
    while not (training.place / "notes" / "1-1.jsonl").exists() or not training.noted("step", 1):
        assert process.poll() is None
    os.kill(process.pid, signal.SIGTERM)
    ended(process)
    assert [["Stopped"], ["Stopped"]] == [training.noted("error", each) for each in range(2)]
    assert ["stop"] == [event["event"] for event in events(training.run, "stop")]
    training.finish()
    assert undisturbed == [training.result(each) for each in range(2)]


def test_ranks_that_drift_apart_save_at_the_same_steps(training):
    """Nothing in the loop keeps them together; saves by the clock are rank 0's, and a wish to stop comes through."""
    asked = {"async": True, "steps": 2000, "step_s": 0.004, "every": {"minutes": 0.01}}
    training.start(lags={"1:10": 50, "1:150": 50, "0:120": 1, "0:250": 5}, signals={"1:400": "TERM"}, **asked)
    assert training.saves(0) == training.saves(1)
    assert {"due", "SIGTERM"} == {why for _, why in training.saves(0)}
    assert 49 <= max(_drift(training))
    assert [["Stopped"], ["Stopped"]] == [training.noted("error", each) for each in range(2)]


def _drift(training):
    """How many steps the two were apart, whenever one of them had made a step."""
    made = sorted((at, rank) for rank in range(2) for at in training.noted("at", rank))
    steps = [0, 0]
    for _, rank in made:
        steps[rank] += 1
        yield abs(steps[0] - steps[1])


@pytest.mark.parametrize(("where", "rank"), [("save", 1), ("commit", 0), ("restore", 1)])
def test_a_killed_rank_costs_what_was_not_saved(training, undisturbed, where, rank):
    """While it writes, before the commit, while it restores: all end soon, and the next start resumes."""
    if where == "restore":
        training.start(background=False, kills={"0": "step:7"})
    killed = training.start(kills={str(rank): where})
    assert killed.code != 0
    assert [] == training.noted("finished", rank)
    training.finish()
    assert [5 if where == "restore" else 0] == training.noted("resumed", rank)
    assert undisturbed == [training.result(each) for each in range(2)]
    assert [] == list(chain.from_iterable(checkpoint.problems() for checkpoint in Store(training.run).checkpoints()))


@pytest.mark.parametrize("rank", [0, 1])
def test_without_a_launcher_the_others_end_by_themselves(training, rank):
    """Within the deadline: an error says which rank did not come, or that the rendezvous has died with rank 0."""
    asked = training.asked(**{"async": True, "steps": 10**6, "every": {"steps": 20}, "kills": {str(rank): "step:30"}})
    processes = by_hand(2, "train.py", asked, HOLDFAST_RANKS_TIMEOUT_S="3")
    outcomes = [ended(process) for process in processes]
    assert -signal.SIGKILL == outcomes[rank].code
    training.attempts = 1
    assert ["RanksError"] == training.noted("error", 1 - rank)
    assert ("rank 1 did not come" if rank else "rendezvous does not answer") in training.noted("text", 1 - rank)[0]


def test_a_run_goes_on_with_more_ranks_or_fewer(training):
    """From the step at which it was; a rank that was not there draws numbers of its own, the same each time."""
    training.start(steps=10)
    for world in (3, 1, 2):
        training.finish(world=world, steps=10)
        assert [[10]] * world == [training.noted("resumed", rank) for rank in range(world)]
        luck = [training.result(rank)["luck"] for rank in range(world)]
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
    "steps": "rank 1 wants 8 steps, and rank 0 7 steps",
    "asks alone": "rank 0 saves at step-000000008, epoch 0, and rank 1 at step-000000003",
    "fails alone": "of rank 1 alone",
    "state that cannot be saved": "cannot save",
}


def test_ranks_that_do_not_fit_get_one_clear_error_each(tmp_path):
    """Wherever rank 1 is the odd one; nobody waits longer than for the others to come."""
    launched = torchrun(2, "odd.py", tmp_path)
    assert 0 == launched.code, launched.err
    for rank in range(2):
        found = json.loads((tmp_path / f"found-{rank}.json").read_text())
        assert list(WHY) == list(found)
        for case, (_, text) in found.items():
            assert re.search(WHY[case], text), f"{case}, rank {rank}: {text}"
