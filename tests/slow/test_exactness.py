"""Exactness: whatever kills a training run, wherever it does, the bytes at its end are those of one that was never killed.

Every attempt is a process of its own (tests/training.py), forked from one that has torch imported, and dies for good.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from itertools import zip_longest
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from holdfast import journal

pytest.importorskip("torch")

pytestmark = [pytest.mark.slow, pytest.mark.drill]

SCRIPT = Path(__file__).parents[1] / "training.py"
KILLED, STOPPED, DONE = -signal.SIGKILL, 75, 0

Kill = dict[str, Any]


class Zygote:
    """A process that has torch imported and forks an attempt whenever it is asked to."""

    def __init__(self):
        command = [sys.executable, str(SCRIPT), "--zygote"]
        # Idle threads sleep: with more threads than free cores, spinning ones cost more than the training.
        environment = {**os.environ, "OMP_WAIT_POLICY": "PASSIVE"}
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
        )

    def attempt(self, asked):
        """How the attempt ended: its exit code, or minus the signal that killed it."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(json.dumps(asked) + "\n")
        self.process.stdin.flush()
        return int(self.process.stdout.readline())


@pytest.fixture(scope="module")
def zygote():
    zygote = Zygote()
    with zygote.process:
        yield zygote


class End(NamedTuple):
    """All that an uninterrupted run and an interrupted one have to have in common."""

    facts: Mapping[str, Any]  # place in the final checkpoint -> what is there; leaves by their digests
    metrics: Sequence[tuple[Any, ...]]


def end(run):
    """The last checkpoint of `run` as its manifest records it, without the library's help, and the metrics log."""
    manifests = [json.loads(path.read_bytes()) for path in run.glob("checkpoints/step-*/manifest.json")]
    last = max(manifests, key=lambda manifest: (manifest["step"], manifest["phase"] == "end"))
    facts = {f"at {name}": last[name] for name in ("step", "phase", "epoch", "metrics")}
    for key, leaf in last["leaves"].items():
        facts |= {f"{key} {name}": leaf[name] for name in ("kind", "dtype", "shape", "attrs", "digest")}
    facts |= dict(places("tree", last["tree"]))
    lines = [(line["step"], line["phase"], line["epoch"], line["values"]) for line in journal.metrics(run)]
    return End(facts, lines)


def places(where, node):
    """Every scalar of a JSON value, and the order of every mapping, by its path."""
    if isinstance(node, dict | list):
        items = list(node.items()) if isinstance(node, dict) else list(enumerate(node))
        yield f"{where}:", [type(node).__name__, *(name for name, _ in items)]
        for name, value in items:
            yield from places(f"{where}/{name}", value)
    else:
        yield where, repr(node)


def differences(expected, actual, exempt="\n"):
    """What is not the same; the places in which `exempt` occurs are passed over. Empty: bit for bit the same run."""
    keys = [key for key in {**expected.facts, **actual.facts} if exempt not in key]
    found = [key for key in keys if expected.facts.get(key) != actual.facts.get(key)]
    pairs = enumerate(zip_longest(expected.metrics, actual.metrics))
    return found + [f"metrics line {number}: {a}, then {b}" for number, (a, b) in pairs if repr(a) != repr(b)]


class Outcome(NamedTuple):
    codes: list[int]
    restored: list[tuple[int, str]]  # where each attempt but the first began
    end: End
    log: str


class Lab:
    """Runs configurations to their end, over as many attempts as their kills need."""

    def __init__(self, zygote, home):
        self.zygote, self.home, self.count = zygote, home, 0

    def run(self, *attempts, **asked):
        """`attempts`: what each attempt is asked for besides what all are."""
        self.count += 1
        path, log = self.home / str(self.count), self.home / f"{self.count}.log"
        codes = [
            self.zygote.attempt({**asked, **each, "path": str(path), "log": str(log), "again": number > 0})
            for number, each in enumerate(attempts)
        ]
        begun = [event for each in journal.logs(path) for event in each.events if event["event"] == "restored"]
        restored = [(event["step"], event["phase"]) for event in begun[1:]]
        outcome = Outcome(codes, restored, end(path), log.read_text())
        shutil.rmtree(path)
        return outcome

    def killed(self, *kills, **asked):
        """One attempt for each kill, and one that reaches the end."""
        return self.run(*({"kill": kill} for kill in kills), {}, **asked)


@pytest.fixture
def lab(zygote, tmp_path):
    return Lab(zygote, tmp_path)


# Three epochs of six steps; saves at 4, 6-end, 8, 12, 12-end, 16 and 18-end.
EPOCH_KILLS = {
    "before the first save": [{"at": "body", "step": 2}],
    "in mid-epoch": [{"at": "body", "step": 9}],
    "while the save of an epoch's end commits": [{"at": "commit", "name": "step-000000012-end"}],
    "just after the save of an epoch's end": [{"at": "committed", "name": "step-000000012-end"}],
    "as an epoch begins": [{"at": "begin", "epoch": 1}],
    "inside evaluation": [{"at": "evaluate", "epoch": 1}],
    "in the last step": [{"at": "body", "step": 17}],
    "in the last evaluation": [{"at": "evaluate", "epoch": 2}],
    "in the last save": [{"at": "commit", "name": "step-000000018-end"}],
    "after the last save": [{"at": "committed", "name": "step-000000018-end"}],
    "twice in a row": [{"at": "body", "step": 10}, {"at": "body", "step": 11}],
    "in the same evaluation twice": [{"at": "evaluate", "epoch": 0}, {"at": "evaluate", "epoch": 0}],
}
# The same 18 steps in one loop, the evaluation inside the body of every sixth; saves at 4, 6, 8, 12, 16 and 18.
STEP_KILLS = {
    "before the first save": [{"at": "body", "step": 2}],
    "in mid-epoch": [{"at": "body", "step": 9}],
    "while the save of an epoch's end commits": [{"at": "commit", "name": "step-000000012"}],
    "just after the save of an epoch's end": [{"at": "committed", "name": "step-000000012"}],
    "inside evaluation": [{"at": "evaluate", "epoch": 1}],
    "in the last step": [{"at": "body", "step": 17}],
    "in the last save": [{"at": "commit", "name": "step-000000018"}],
    "after the last save": [{"at": "committed", "name": "step-000000018"}],
    "twice in a row": [{"at": "body", "step": 10}, {"at": "body", "step": 11}],
}


def with_signal(name, kills):
    return [{**kill, "signal": name} for kill in kills]


def check(lab, cases, **asked):
    """Every case ends in the bytes of a run without a kill; every kill has hit, and cost no more than it had to."""
    reference = lab.run({}, **asked)
    assert reference.codes == [DONE], reference.log
    again = lab.run({}, **asked)
    assert differences(reference.end, again.end) == [], "not deterministic by itself"
    wrong = {}
    for case, kills in cases.items():
        outcome = lab.killed(*kills, **asked)
        codes = [STOPPED if kill.get("signal") == "TERM" else KILLED for kill in kills]
        assert outcome.codes == [*codes, DONE], f"{case}: {outcome.log}"
        starts_over = case == "before the first save" and KILLED in codes
        assert all((step == 0) == starts_over for step, _ in outcome.restored), f"{case}: {outcome.restored}"
        if found := differences(reference.end, outcome.end):
            wrong[case] = (len(found), found[:5])
    assert wrong == {}


@pytest.mark.parametrize("loader", ["plain", "sampler", "steps"])
@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("threads", [1, 2])
def test_a_run_that_is_killed_anywhere_ends_in_the_same_bytes(lab, threads, workers, loader):
    """SIGKILL at any of these places, and the next attempts reach the state of a run that was never killed.

    steps() has no loader; there the workers are those of the evaluation's.
    """
    evaluating = 0 if loader == "sampler" else workers
    cases = STEP_KILLS if loader == "steps" else EPOCH_KILLS
    check(lab, cases, threads=threads, workers=workers, loader=loader, save_every=4, evaluation_workers=evaluating)


STOPS = {
    "in mid-epoch": [{"at": "body", "step": 9}],
    "while the save of an epoch's end commits": [{"at": "commit", "name": "step-000000012-end"}],
    "as an epoch begins": [{"at": "begin", "epoch": 1}],
    "inside evaluation": [{"at": "evaluate", "epoch": 1}],
    "in the last step": [{"at": "body", "step": 17}],
    "in the last evaluation": [{"at": "evaluate", "epoch": 2}],
    "in the last save": [{"at": "commit", "name": "step-000000018-end"}],
    "twice in a row": [{"at": "body", "step": 10}, {"at": "body", "step": 11}],
}
STEP_STOPS = {
    case: STEP_KILLS[case] for case in ("in mid-epoch", "inside evaluation", "in the last step", "twice in a row")
}


@pytest.mark.parametrize(("loader", "workers"), [("plain", 0), ("plain", 2), ("sampler", 2), ("steps", 0)])
def test_a_run_that_is_asked_to_stop_anywhere_ends_in_the_same_bytes(lab, loader, workers):
    """SIGTERM at any of these places is obeyed at the next safe point, with exit code 75."""
    cases = STEP_STOPS if loader == "steps" else STOPS
    cases = {case: with_signal("TERM", kills) for case, kills in cases.items()}
    check(lab, cases, threads=2, workers=workers, loader=loader, save_every=4, evaluation_workers=0)


# Places that need no step number: an epoch has as many batches as the loader makes of it.
ANYWHERE = {
    "in mid-epoch": [{"at": "body", "step": 9}],
    "as an epoch begins": [{"at": "begin", "epoch": 1}],
    "inside evaluation": [{"at": "evaluate", "epoch": 1}],
    "four times": [
        {"at": "body", "step": 5},
        {"at": "evaluate", "epoch": 0},
        {"at": "body", "step": 10, "signal": "TERM"},
        {"at": "body", "step": 14},
    ],
}


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("loader", ["batch_sampler", "stateful", "iterable"])
def test_every_kind_of_loader_goes_on_where_it_was(lab, loader, workers):
    """A batch sampler of the user's, torchdata's StatefulDataLoader, an IterableDataset that is read again."""
    check(lab, ANYWHERE, threads=2, workers=workers, loader=loader, evaluation_workers=0)


@pytest.mark.parametrize("loader", ["own_state", "nested"])
def test_loops_of_other_shapes_go_on_where_they_were(lab, loader):
    """A loader that keeps its own state, and steps inside of epochs."""
    check(lab, ANYWHERE, loader=loader)


@pytest.mark.parametrize("workers", [0, 2])
def test_groups_of_batches_are_never_torn(lab, workers):
    """With accumulate=4 an epoch of six batches has two steps, and a kill in the middle of a group does it again whole."""
    cases = {
        "before the first save": [{"at": "body", "step": 0, "passes": 2}],
        "in the middle of a whole group": [{"at": "body", "step": 2, "passes": 3}],
        "in the middle of a short group": [{"at": "body", "step": 3, "passes": 1}],
        "at an epoch's end": [{"at": "committed", "name": "step-000000004-end"}],
        "three times": [
            {"at": "body", "step": 2, "passes": 3},
            {"at": "body", "step": 2, "passes": 1, "signal": "TERM"},
            {"at": "body", "step": 5, "passes": 0},
        ],
    }
    check(lab, cases, threads=2, workers=workers, accumulate=4, save_every=1, evaluation_workers=0)


@pytest.mark.parametrize("persistent", [False, True])
@pytest.mark.parametrize("loader", ["plain", "sampler", "batch_sampler"])
def test_the_number_of_workers_may_change_from_attempt_to_attempt(lab, loader, persistent):
    """0, 2, 4 workers, then 1: the same bytes as with none, and the change is told."""
    asked = {"loader": loader, "persistent": persistent, "threads": 2, "save_every": 4}
    reference = lab.run({}, workers=0, **asked)
    kills = [
        (0, {"at": "body", "step": 5}),
        (2, {"at": "evaluate", "epoch": 1}),
        (4, {"at": "body", "step": 15}),
        (1, None),
    ]
    outcome = lab.run(*({"workers": workers, "kill": kill} for workers, kill in kills), **asked)
    assert outcome.codes == [KILLED, KILLED, KILLED, DONE], outcome.log
    assert differences(reference.end, outcome.end, exempt="/fingerprint/") == []
    assert differences(reference.end, outcome.end) != [], "the fingerprint knows how many there were"
    assert "workers: 0, now 2" in outcome.log


def test_persistent_workers_see_every_epoch(lab):
    """Workers that outlive many epochs augment as fresh ones do, before and after a kill."""
    reference = lab.run({}, workers=2, persistent=True)  # fresh ones draw a seed in every epoch, as plain loaders do
    outcome = lab.killed({"at": "body", "step": 9}, workers=2, persistent=True)
    assert differences(reference.end, outcome.end) == []


LATE = {
    "background": False
}  # the checkpoint of step 8 is there when the process dies in the next: it does not start anew

# What is not taken over from the attempt before -> where it shows in the final checkpoint.
SABOTAGE = {
    "model": "model/head.weight digest",
    "ema": "ema/module.head.weight digest",
    "optimizer": "optimizer/state/0/exp_avg digest",
    "cosine": "tree/dict/cosine",
    "plateau": "tree/dict/plateau",
    "scaler": "tree/dict/scaler",
    "python": "holdfast/rng/python",
    "numpy": "holdfast/rng/numpy",
    "torch": "holdfast/rng/torch",
    "position": "at step",
}


@pytest.mark.parametrize("forgotten", SABOTAGE)
def test_the_oracle_goes_red_for_whatever_is_forgotten(lab, forgotten):
    """The same kill with one thing not restored ends elsewhere, and the comparison names the place."""
    asked = {"forget": [forgotten], "loader": "own_state"}
    reference = lab.run({}, **asked)
    outcome = lab.killed({"at": "body", "step": 9}, **LATE, **asked)
    assert outcome.codes == [KILLED, DONE], outcome.log
    found = differences(reference.end, outcome.end)
    assert [where for where in found if where.startswith(SABOTAGE[forgotten])], found
    assert [where for where in found if where.startswith("metrics line")], "the log shows it too"


OPTIMIZER = ["ema", "optimizer", "cosine", "plateau", "scaler"]
RNG = ["python", "numpy", "torch"]
ROWS = {
    "model": ({"forget": [*OPTIMIZER, *RNG, "position"], "loader": "global_order", "seeded": False}, False),
    "and optimizer, scheduler": ({"forget": [*RNG, "position"], "loader": "global_order", "seeded": False}, False),
    "and random numbers": ({"forget": ["position"], "loader": "global_order", "seeded": False}, False),
    "and seen batches skipped": ({"loader": "global_order", "seeded": False}, False),
    "and the order from (seed, epoch)": ({"loader": "plain", "seeded": False}, True),
    "the same with workers": ({"loader": "plain", "seeded": False, "workers": 2}, False),
    "and augmentation from (seed, epoch, index)": ({"loader": "plain", "workers": 2}, True),
}


@pytest.mark.parametrize("restored", ROWS)
def test_each_row_of_what_exactness_needs(lab, restored):
    """Only when everything is restored are the final bytes identical; one thing short, and they differ."""
    asked, identical = ROWS[restored]
    reference = lab.run({}, **asked)
    outcome = lab.killed({"at": "body", "step": 9}, **LATE, **asked)
    assert outcome.codes == [KILLED, DONE], outcome.log
    assert (differences(reference.end, outcome.end) == []) == identical


def test_the_oracle_sees_one_bit_of_each_fact(lab):
    """Every single fact of a final checkpoint, and every line of the metrics log, when altered alone is reported alone."""
    reference = lab.run({}).end
    areas = ("model/", "ema/", "optimizer/", "holdfast/rng/", "tree/dict/cosine", "tree/dict/holdfast/dict/position")
    assert [area for area in areas if not [key for key in reference.facts if key.startswith(area)]] == []
    for key, fact in reference.facts.items():
        assert differences(reference, End({**reference.facts, key: f"not {fact}"}, reference.metrics)) == [key]
    for number in range(len(reference.metrics)):
        short = [*reference.metrics[:number], *reference.metrics[number + 1 :]]
        assert differences(reference, End(reference.facts, short)) != []


@pytest.mark.parametrize("threads", [1, 2])
def test_the_network_is_large_enough_for_its_threads(threads):
    """The matrix would prove nothing about two threads if one did all the work."""
    code = (
        "import os, training; tasks = lambda: len(os.listdir('/proc/self/task'));"
        f"training.torch.set_num_threads({threads}); before = tasks();"
        "made = training.Training(training.DEFAULTS); made.model(made.fixed[:8][0]);"
        "print(tasks() - before)"
    )
    command = [sys.executable, "-c", code]
    told = subprocess.run(command, cwd=SCRIPT.parent, capture_output=True, text=True, check=True)
    assert (int(told.stdout) > 0) == (threads > 1)
