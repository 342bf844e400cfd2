"""What is done at a place next: copies and removals take turns, and no file is left that nobody knows of."""

import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from holdfast.mirror.copying import Copied
from holdfast.mirror.mirror_place import MirrorPlace
from holdfast.mirror.place import Refused, Silent
from holdfast.mirror.protocol import WorkerOrder
from holdfast.mirror.records import PlaceState
from holdfast.mirror.replicator import Cancelled, Replicator
from holdfast.mirror.retrying import RetryingPlace
from holdfast.retention import CheckpointFacts
from holdfast.rules import Last

ERRORS = {"silent": Silent, "refused": Refused, "dropped": Cancelled}


def facts(step):
    return CheckpointFacts(f"step-{step:09d}", step, "step", None, float(step), {}, 10, pinned=False)


class Working:
    """A place with a rule that keeps one copy, in a run that saves faster than the place copies.

    It is its own remote and index: no file is written.
    """

    def __init__(self):
        self.step, self.asked, self.ends, self.refuses = 0, [], "done", False
        self.told = []
        index: Any = self
        self.replicator = Replicator(0, "nowhere", Last(1), index, self.told.append)
        vars(self.replicator).update(_remote=self, _place=SimpleNamespace(budget_s=0.0))
        self.replicator._handle_order(WorkerOrder("claim", args={"attempt": 1}))
        self.replicator._advance()
        self.replicator._handle_order(WorkerOrder("begin", args={"attempt": None, "name": None}))

    def facts(self):
        return [facts(self.step)]

    def checkpoint(self, name):
        return SimpleNamespace(path=Path("nowhere") / name)

    def claim(self, attempt):
        assert 1 == attempt

    def read_state(self):
        return PlaceState(run="r")

    def note_origin(self, attempt, origin):
        pass

    def copy(self, attempt, path, *, read_back):
        self.asked.append("copy")
        if self.ends in ERRORS:
            raise ERRORS[self.ends]("the place")
        return Copied(10, 10, 0, "read back", 0.1)

    def remove(self, attempt, of, name):
        self.asked.append(f"remove {int(name[-9:])}")
        if self.refuses:
            raise Refused("no deletions")

    def note_end(self, attempt):
        self.asked.append("end")

    @property
    def there(self):
        return [int(name[-9:]) for name in self.replicator._there]

    def turn(self, ends="done"):
        """A checkpoint is saved, and the next step ends like this."""
        self.step, self.ends = self.step + 1, ends
        self.replicator._handle_order(WorkerOrder("committed"))
        self.replicator._advance()

    def leave(self):
        self.ends = "done"
        order = WorkerOrder("drain", args={"until": time.time() + 60})
        self.replicator.accept_order(order)
        self.replicator._handle_order(order)
        while "drained" not in [event.what for event in self.told]:
            self.replicator._advance()


def test_outdated_copies_go_although_a_checkpoint_always_waits():
    """Otherwise a place that is slower than the saves would fill up: no copy of a busy run would ever be removed."""
    run = Working()
    for _ in range(20):
        run.turn()
        assert len(run.there) <= 2
    assert {"copy", "remove 1"} <= {*run.asked}


def test_a_removal_that_is_refused_holds_up_no_copy():
    """A place may forbid deletions; copies go on."""
    run = Working()
    run.refuses = True
    for _ in range(20):
        run.turn()
    assert run.asked.count("copy") >= 6


@pytest.mark.parametrize("ends", [*ERRORS])
def test_what_a_copy_has_left_is_removed_if_it_is_not_copied_again(ends):
    """It may even be whole, and only its answer was lost: nobody has it in a list."""
    run = Working()
    run.turn()
    run.turn(ends=ends)
    lost = f"remove {run.step}"
    for _ in range(6):
        run.turn()
    run.leave()
    assert run.asked.count(lost) == 1
    assert run.asked[-1] == "end"


def test_what_is_copied_after_all_stays():
    run = Working()
    run.turn()
    run.turn(ends="silent")
    run.leave()  # nothing newer was saved
    assert (f"remove {run.step}" in run.asked, run.there) == (False, [run.step])


@pytest.mark.parametrize("fails_after", [4, 3])
def test_a_file_that_always_fails_is_given_up_although_its_bytes_go_through(fails_after):
    """Bytes that are sent once more are no progress: a command ends, and says why."""

    class Failing:
        shown = "the place"

        def put(self, path, size_bytes, pieces):
            for number, _ in enumerate(pieces(), 1):
                if number == fails_after:
                    raise Silent("its last answer never comes")

    place: Any = Failing()
    told: list[BaseException] = []
    retrying = RetryingPlace(place, told.append, pause=lambda _: time.sleep(0.01), budget_s=1.0)
    with pytest.raises(Silent):
        retrying.put("file", 4, lambda: iter([b"x"] * 4))
    assert told


def test_a_copy_that_is_there_is_not_next():
    """The worker may have copied it before the run noted that it was committed."""
    place = MirrorPlace(0, "the place", Last(1), PlaceState(run="r"))
    place.note_lineage_copies({})
    place.note_copied("step-000000001", facts(1), 0.1)
    place.queue_if_idle("step-000000001")
    assert "" == place.copying
    place.queue_if_idle("step-000000002")
    assert "step-000000002" == place.copying
