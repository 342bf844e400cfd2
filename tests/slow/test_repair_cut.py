"""A repair that is cut short: killed, or without power, before any of its changes. The next one finishes it.

And a run that is repaired ends as one that was never hurt.
"""

import errno
import itertools
import os
import random
import shutil
from collections import Counter
from pathlib import Path

import pytest

import messes
from faults import Memory, door, scratched
from holdfast import Every, Last, Run
from holdfast.doctor.repair import repair
from holdfast.errors import HoldfastError
from holdfast.store.store import Store
from messes import PLANTS, built, name, run_id
from stores import put, whole
from toy import Cut, Passes, Toy

STRIDE = 4


def contents(root: Path) -> dict[str, bytes]:
    """The files of each checkpoint that is whole."""
    return {
        f"{checkpoint.path.name}/{path.name}": path.read_bytes()
        for checkpoint in Store(root).checkpoints()
        if not list(checkpoint.problems())
        for path in checkpoint.path.iterdir()
    }


def cut_short(stride: int) -> Counter[str]:
    """Open every `stride`-th different picture that a cut anywhere in a repair of all messes leaves."""
    counts: Counter[str] = Counter()
    with scratched("repair") as place:
        root = place / "live"
        messes.all_at_once(built(root))
        before, run, found, marks = contents(root), Store(root)[4].head.run, [], set()
        memory = Memory(root)

        def act(call, perform):
            for how, picture in memory.states():
                counts[how] += 1
                if (mark := picture.mark()) not in marks:
                    marks.add(mark)
                    found.append((how, call, picture))
            return memory(call, perform)

        with door(act):
            repair(root)
        memory.close()
        for number, (how, call, picture) in enumerate(found[::-1][::stride]):
            base = place / f"end-{number}"
            list(picture.build(base))
            try:
                require_finished(base, before, run)
            except BaseException as error:
                error.add_note(f"{how} before {call}")
                raise
            counts["opened"] += 1
            shutil.rmtree(base)
        counts["different"] = len(found)
    return counts


def require_finished(root: Path, before: dict[str, bytes], run: str) -> None:
    """A second repair ends what the first began, and a third has nothing to do."""
    repair(root)
    assert repair(root) == []
    after = contents(root)
    assert before.items() <= after.items()
    assert f"{name(1)}/manifest.json" in after  # it came back out of quarantine
    assert run_id(root) == run
    put(Store(root), 50)
    assert whole(Store(root).load(), 50)


@pytest.fixture(autouse=True)
def _no_other(monkeypatch):
    """The process of the repair is gone; within this one it seems to be alive."""
    monkeypatch.setenv("HOLDFAST_TAKE_OVER", "1")


def test_a_repair_that_is_cut_anywhere_is_finished_by_the_next():
    """Whole checkpoints stay whole, what came back does not get lost, and the run's id stays."""
    counts = cut_short(STRIDE)
    assert counts["opened"] > 15
    assert counts["killed"] == counts["the cord"] > 40


class BlindFor:
    """A disk that answers the nth look, and the ten after it, with an error: it cannot be read for a while."""

    looks = True

    def __init__(self, nth):
        self.seen, self.nth, self.struck = itertools.count(), nth, False

    def __call__(self, call, perform):
        if call.name == "look" and self.nth <= next(self.seen) < self.nth + 11:
            self.struck = True
            raise OSError(errno.EIO, os.strerror(errno.EIO), call.path)
        return perform()


def blind(stride: int) -> Counter[str]:
    """Repair all messes on a disk that cannot be read for a while, from each `stride`-th look on."""
    counts: Counter[str] = Counter()
    while True:
        nth = stride * counts["struck"]
        with scratched("blind") as place:
            root = place / "run"
            messes.all_at_once(built(root))
            before, act = contents(root), BlindFor(nth)
            with door(act):
                try:
                    repair(root)
                except (OSError, HoldfastError):
                    counts["refused"] += 1
            if not act.struck:
                return counts
            counts["struck"] += 1
            assert before.items() <= contents(root).items(), nth
            repair(root)
            assert repair(root) == []


def test_what_cannot_be_read_is_no_mess():
    """A read that fails is no proof of anything: no whole checkpoint moves, and the next repair does the rest."""
    assert blind(23)["struck"] > 5


def train(root, cut=None):
    random.seed(3)
    toy, passes = Toy(), Passes(cut)
    with Run(root, {"toy": toy}, every=Every(steps=1), keep=Last(3), background=False) as run:
        for _ in run.epochs(3):
            for batch in run.batches(range(4)):
                passes.one()
                toy.learn(batch)
                run.log(loss=toy.value % 7)
    return toy.value, [(line["step"], line["values"]) for line in run.metrics()]


@pytest.mark.parametrize("plant", [*PLANTS, messes.all_at_once], ids=lambda plant: plant.__name__)
def test_a_run_that_was_repaired_ends_with_the_same_bits(tmp_path, plant):
    """Killed, littered, repaired and resumed: the state and the log are those of a run that nothing happened to."""
    wanted = train(tmp_path / "alone")
    root = tmp_path / "run"
    with pytest.raises(Cut):
        train(root, cut=7)
    plant(root)
    repair(root)
    assert repair(root) == []
    assert train(root) == wanted
