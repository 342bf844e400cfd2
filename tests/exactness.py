"""Training runs that are killed where they are told to be, and all that their ends have to have in common.

Every attempt is a process of its own (tests/training.py), forked by a zygote, and dies for good.
"""

import json
import shutil
import signal
import subprocess
from collections.abc import Mapping, Sequence
from itertools import zip_longest
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from causes import TORCH
from holdfast import journal

SCRIPT = Path(__file__).with_name("training.py")
KILLED, STOPPED, DONE = -signal.SIGKILL, 75, 0


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

    def __init__(self, python, home):
        self.python, self.home, self.count = python, home, 0

    def run(self, *attempts, **asked):
        """`attempts`: what each attempt is asked for besides what all are."""
        self.count += 1
        path, log = self.home / str(self.count), self.home / f"{self.count}.log"
        codes = []
        with log.open("ab") as out:
            for number, each in enumerate(attempts):
                words = json.dumps({**asked, **each, "path": str(path), "again": number > 0})
                command = [*self.python, str(SCRIPT), words]
                codes.append(subprocess.run(command, check=False, stdout=out, stderr=out).returncode)
        begun = [event for each in journal.logs(path) for event in each.events if event["event"] == "restored"]
        restored = [(event["step"], event["phase"]) for event in begun[1:]]
        outcome = Outcome(codes, restored, end(path), log.read_text())
        shutil.rmtree(path)
        return outcome

    def killed(self, *kills, **asked):
        """One attempt for each kill, and one that reaches the end."""
        return self.run(*({"kill": kill} for kill in kills), {}, **asked)


def body(step, **where):
    return {"at": "body", "step": step, **where}


def evaluation(epoch):
    return {"at": "evaluate", "epoch": epoch}


def _of_three_epochs(end):
    """Kills of 18 steps; `end`: what the names of checkpoints at an epoch's end have behind the step."""

    def save(place, step):
        return {"at": place, "name": f"step-{step:09d}{end}"}

    return {
        "before the first save": [body(2)],
        "in mid-epoch": [body(9)],
        "while the save of an epoch's end commits": [save("commit", 12)],
        "just after the save of an epoch's end": [save("committed", 12)],
        "as an epoch begins": [{"at": "begin", "epoch": 1}],
        "inside evaluation": [evaluation(1)],
        "in the last step": [body(17)],
        "in the last evaluation": [evaluation(2)],
        "in the last save": [save("commit", 18)],
        "after the last save": [save("committed", 18)],
        "twice in a row": [body(10), body(11)],
        "in the same evaluation twice": [evaluation(0), evaluation(0)],
    }


def _without(cases, *names):
    assert cases.keys() > {*names}
    return {case: kills for case, kills in cases.items() if case not in names}


EPOCH_KILLS = _of_three_epochs("-end")
STEP_KILLS = _without(
    _of_three_epochs(""), "as an epoch begins", "in the last evaluation", "in the same evaluation twice"
)


def with_signal(name, kills):
    return [{**kill, "signal": name} for kill in kills]


def check(lab, cases, **asked):
    """Every case ends in the bytes of a run without a kill; every kill has hit, and cost no more than it had to.

    Returns how many kills there were.
    """
    reference = lab.run({}, **asked)
    assert reference.codes == [DONE], reference.log
    wrong = {}
    for case, kills in cases.items():
        outcome = lab.killed(*kills, **asked)
        codes = [STOPPED if kill.get("signal") == "TERM" else KILLED for kill in kills]
        assert outcome.codes == [*codes, DONE], f"{case}: {outcome.log}"
        starts_over = case == "before the first save" and KILLED in codes
        assert all((step == 0) == starts_over for step, _ in outcome.restored), f"{case}: {outcome.restored}"
        if found := differences(reference.end, outcome.end):
            wrong[case] = (len(found), found[:5])
    assert not wrong, (wrong, "without a kill:", differences(reference.end, lab.run({}, **asked).end))
    return sum(len(kills) for kills in cases.values())


_SAVES = ("just after the save of an epoch's end", "after the last save")
STOPS = _without(EPOCH_KILLS, "before the first save", *_SAVES, "in the same evaluation twice")
STEP_STOPS = _without(
    STEP_KILLS, "before the first save", *_SAVES, "while the save of an epoch's end commits", "in the last save"
)
ANYWHERE = {
    **{case: EPOCH_KILLS[case] for case in ("in mid-epoch", "as an epoch begins", "inside evaluation")},
    "four times": [body(5), evaluation(0), body(10, signal="TERM"), body(14)],
}


@pytest.fixture
def lab(zygotes, tmp_path):
    return Lab(zygotes(*TORCH), tmp_path)


# The checkpoint of step 8 is there when the process dies in the next step: the run does not start anew.
LATE = {"background": False}
