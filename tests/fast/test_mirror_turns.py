"""What is asked of a place next: copies and removals take turns, and no file is left that nobody knows of."""

import pytest

from holdfast.mirror.records import ResumeOrigin
from holdfast.retention import CheckpointFacts
from holdfast.rules import Last
from holdfast.run.mirror_place import MirrorPlace, PlaceCopy

FRESH = ResumeOrigin(None)


def facts(step):
    return CheckpointFacts(f"step-{step:09d}", step, "step", None, float(step), {}, 10, pinned=False)


class Working:
    """A place with a rule that keeps one copy, in a run that saves faster than the place copies."""

    def __init__(self):
        self.place = MirrorPlace(0, "there", Last(1), {})
        self.step, self.asked = 0, []
        self.turn()
        assert self.asked == ["begun"]

    def turn(self, *, ends="done", leaving=False):
        """A checkpoint is saved, and the next request ends like this."""
        self.step += not leaving
        self.place.saved()
        self.place._retry_s = 0.0
        request = self.place.next([facts(self.step)], FRESH, leaving=leaving)
        if request is None:
            return None
        self.asked.append(request.op if request.op != "remove" else f"remove {request.name[-1:]}")
        self.place.asked(request, 1)
        if ends == "done" and request.op == "copy":
            self.place.copied(PlaceCopy(1, facts(self.step)), 0.1)
        if ends == "done":
            self.place.done(request)
        elif ends == "dropped":
            self.place.dropped()
        else:
            self.place.failed(again=ends == "silent")
        return request


def test_outdated_copies_go_although_a_checkpoint_always_waits():
    """Otherwise a place that is slower than the saves would fill up: no copy of a busy run would ever be removed."""
    run = Working()
    for _ in range(20):
        run.turn()
        assert len(run.place.there) <= 2
    assert {"copy", "remove 2"} <= {*run.asked}


def test_a_removal_that_is_refused_holds_up_no_copy():
    """A place may forbid deletions; copies go on."""
    run = Working()
    for _ in range(20):
        request = run.turn(ends="done")
        if request.op == "remove":
            run.asked.pop()
            # as if it failed
            run.place.there = {**run.place.there, request.name: PlaceCopy(1, facts(int(request.name[-9:])))}
    assert run.asked.count("copy") >= 6


@pytest.mark.parametrize("ends", ["silent", "refused", "dropped"])
def test_what_a_copy_has_left_is_removed_if_it_is_not_copied_again(ends):
    """It may even be whole, and only its answer was lost: nobody has it in a list."""
    run = Working()
    run.turn()
    run.turn(ends=ends)
    lost = f"remove {run.step}"
    for _ in range(6):
        run.turn()
    while run.turn(leaving=True) is not None:
        pass
    assert run.asked.count(lost) == 1
    assert run.asked[-1] == "end"


def test_what_is_copied_after_all_stays():
    run = Working()
    run.turn()
    run.turn(ends="silent")
    run.step -= 1  # nothing newer was saved
    run.turn()
    while run.turn(leaving=True) is not None:
        pass
    assert f"remove {run.step}" not in run.asked
    assert [*run.place.there] == [facts(run.step).name]
