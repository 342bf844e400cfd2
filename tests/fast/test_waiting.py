"""What waits to be copied to a place, and which of its copies may go: pure functions of what lies where."""

import itertools

import pytest

from holdfast import Best, Every, Last
from holdfast.mirror.waiting import checkpoints_to_copy, copies_to_remove
from holdfast.retention import CheckpointFacts
from holdfast.rules import Within
from holdfast.store.format import CheckpointName


def facts(step, phase="step", acc=None, epoch=None, pinned=False, finite=True):
    metrics = {} if acc is None else {"acc": acc}
    return CheckpointFacts(
        str(CheckpointName(step, phase)), step, phase, epoch, float(step), metrics, 10, pinned, finite
    )


def steps(names):
    return [int(name.split("-")[1]) for name in names]


def saved(*numbers):
    return [facts(number) for number in numbers]


@pytest.mark.parametrize(
    ("local", "there", "wanted"),
    [
        ([], [], []),
        ([1], [], [1]),
        ([1, 2, 3], [], [3]),
        ([1, 2, 3], [1], [3]),
        ([1, 2, 3], [3], []),
        ([1, 2, 3], [2], [3]),
        ([2, 3], [1, 4], []),  # the place has a newer one
    ],
)
@pytest.mark.parametrize("rule", [Last(1), Last(3), Within(1e9)])
def test_only_the_newest_waits(local, there, wanted, rule):
    """A newer one takes the place of the one that waited, whatever number of the newest the rule keeps."""
    assert wanted == steps(checkpoints_to_copy(saved(*local), saved(*there), rule))


def test_what_the_rule_names_waits_behind_the_newest():
    """Of Best the best, of Every the first of each group, and each pinned one; from the newest to the oldest."""
    local = [facts(1, acc=0.9), facts(2, acc=0.2), facts(3, acc=0.1), facts(4, acc=0.3)]
    assert [4, 1] == steps(checkpoints_to_copy(local, [], Best("acc", max) | Last(2)))
    assert [4, 3] == steps(checkpoints_to_copy(local, [], Best("acc", min)))
    assert [4, 2] == steps(checkpoints_to_copy(local, saved(1), Every(steps=2)))
    assert [4, 2] == steps(checkpoints_to_copy([local[0], facts(2, pinned=True), *local[2:]], [], Last(1)))
    ends = [facts(2, "end", epoch=0), facts(4, "end", epoch=1), facts(6, "end", epoch=2), facts(7, epoch=3)]
    assert [7, 6, 4, 2] == steps(checkpoints_to_copy(ends, [], Every(epochs=1)))


def test_a_best_that_was_beaten_waits_no_more():
    """By a local one, or by a copy."""
    worse, better, newest = facts(1, acc=0.5), facts(2, acc=0.6), facts(3)
    assert [3, 1] == steps(checkpoints_to_copy([worse, newest], [], Best("acc", max)))
    assert [3, 2] == steps(checkpoints_to_copy([worse, better, newest], [], Best("acc", max)))
    assert [3] == steps(checkpoints_to_copy([worse, newest], [better], Best("acc", max)))


def test_the_newest_with_finite_weights_waits_behind_the_newest_and_stays_there():
    """A new machine must find it, however many saves without come later; one that is newer takes its turn."""
    local = [facts(1), facts(2), facts(3, finite=False), facts(4, finite=False)]
    assert [4, 2] == steps(checkpoints_to_copy(local, saved(1), Last(1)))
    assert [4] == steps(checkpoints_to_copy(local, saved(1, 2), Last(1)))
    assert [4] == steps(checkpoints_to_copy(local[2:], [], Last(3)))
    there = [*local, facts(5, finite=False)]
    assert [1, 3, 4] == steps(copies_to_remove(there, Last(1), [each.name for each in there]))


def test_a_copy_goes_only_after_a_newer_one_was_verified():
    """What the rule does not keep stays until this attempt has verified a newer copy there."""
    there = saved(1, 2, 3, 4)
    assert [] == copies_to_remove(there, Last(1), [])
    assert [1] == steps(copies_to_remove(there, Last(1), ["step-000000002"]))
    assert [1, 2, 3] == steps(copies_to_remove(there, Last(1), ["step-000000004"]))
    assert [1, 2] == steps(copies_to_remove(there, Last(2), ["step-000000004"]))
    assert [1, 3] == steps(copies_to_remove([there[0], facts(2, pinned=True), *there[2:]], Last(1), ["step-000000004"]))


def test_a_run_of_many_saves_leaves_at_the_place_what_the_rule_keeps():
    """Whatever number of saves come while one copy is made: at the end all that the rule keeps is there, and no more.

    What waits is never pruned, as the run's owner spares it.
    """
    rule = Every(steps=10) | Best("acc", max) | Last(2)
    for pace, seed in itertools.product((1, 2, 3, 7), range(5)):
        local, there = [], []
        for step in range(1, 60):
            local.append(facts(step, acc=float((step * 7919 + seed) % 101)))
            queue = checkpoints_to_copy(local, there, rule)
            assert queue[0] == local[-1].name
            if step % pace == 0:
                there, local = copied(local, there, queue[0], rule)
            spared = {*checkpoints_to_copy(local, there, rule), local[-1].name}
            local = [each for each in local if each.name in spared]
        while queue := checkpoints_to_copy(local, there, rule):
            there, local = copied(local, there, queue[0], rule)
        best = max((facts(step, acc=float((step * 7919 + seed) % 101)) for step in range(1, 60)), key=acc)
        assert {1, *range(10, 60, 10), best.step, 59} <= {each.step for each in there}
        assert len(there) <= 9


def acc(each):
    return each.metrics["acc"]


def copied(local, there, name, rule):
    there = [*there, next(each for each in local if each.name == name)]
    gone = copies_to_remove(there, rule, [each.name for each in there])
    return [each for each in there if each.name not in gone], local
