"""From which safe points a drill resumes a run: each kind of place that the script has, and none that hides what it
counts.
"""

import json
from itertools import combinations, pairwise, product
from math import gcd

import pytest
from test_drill import a_course

from holdfast import Stopped
from holdfast.drill.evidence import SafePoint, StateRecord
from holdfast.drill.places import AGAIN, EARLY, END, FIRST, FURTHER, LAST, LATE, LATER, SafePointSequence
from toy import Toy, events, new_run

SHAPES = [(2, 10), (3, 8), (12, 30), (2, 18), (5, 4), (40, 3)]


def by_steps(total):
    """The safe points of `run.steps(total)`."""
    return SafePointSequence([StateRecord(SafePoint(step), 1, {}) for step in range(1, total + 1)])


def shapes_and_seeds():
    return [(*shape, seed) for shape in SHAPES for seed in range(8)]


def test_five_kills_cover_every_kind_of_place():
    """The first epoch, a later one in the middle, an epoch's last batch, its end, and a resume soon after a resume."""
    for epochs, batches, seed in shapes_and_seeds():
        found = a_course(epochs, batches).choose_targets(5, seed)
        assert {each.kind for each in found} == {FIRST, LATER, LAST, END, AGAIN}
        assert [each.place for each in found] == sorted((each.place for each in found), key=lambda place: place.order)
        at = {each.kind: each.place for each in found}
        assert 0 < at[FIRST].step < batches < at[LATER].step
        assert at[LATER].step % batches != 0
        assert (at[LAST].step % batches, at[LAST].phase) == (0, "step")
        assert (at[END].step % batches, at[END].phase) == (0, "end")
        before = max(number for number, each in enumerate(found) if each.place.order < at[AGAIN].order)
        assert at[AGAIN].step - found[before].place.step <= 3
        assert SafePoint(epochs * batches, "end") not in at.values()


def test_epochs_that_are_not_counted_from_zero_have_the_same_places():
    """`run.epochs(range(1, 11))`: epoch 1 is the first one, and the middle of epoch 2 that of a later one."""
    for shape, first in product(SHAPES, (1, 7)):
        course, usual = a_course(*shape, count_from=first), a_course(*shape)
        assert all(course.choose_targets(kills, 0) == usual.choose_targets(kills, 0) for kills in (1, 2, 4, 5, 9))
        assert [course.kind_of_place(place) for place in course.places] == [
            usual.kind_of_place(place) for place in usual.places
        ]


def test_steps_and_counts_within_an_epoch_have_no_divisor_in_common():
    """A loop that does something at each nth index begins it anew at a resume: that shows only where n does not divide
    it.
    """
    for (epochs, batches, seed), kills in product(shapes_and_seeds(), (2, 3, 5, 8)):
        chosen = a_course(epochs, batches).choose_targets(kills, seed)
        steps = [each.place.step for each in chosen if each.kind in (FIRST, LATER, FURTHER)]
        assert batches <= 3 or gcd(*steps) == gcd(*(step % batches for step in steps)) == 1


def test_a_run_without_epochs_is_resumed_in_both_halves():
    """It has fewer kinds of places; further ones fill the widest gaps."""
    for kills, seed in product((1, 2, 5, 20), range(8)):
        found = by_steps(100).choose_targets(kills, seed)
        assert len({each.place for each in found}) == kills
        assert {each.kind for each in found} <= {EARLY, LATE, AGAIN, FURTHER}
        steps = [each.place.step for each in found]
        assert kills == 1 or gcd(*steps) == 1
        assert kills < 20 or max(later - sooner for sooner, later in pairwise([0, *steps, 100])) < 25


def test_a_short_run_is_resumed_from_each_of_its_places():
    """All safe points but the last one, after which nothing is left to do."""
    for course in (by_steps(4), a_course(1, 3), a_course(3, 1)):
        assert [each.place for each in course.choose_targets(50, 0)] == course.places
    assert by_steps(1).choose_targets(5, 0) == [] == SafePointSequence([]).choose_targets(5, 0)


def test_places_are_a_function_of_the_seed_and_seeds_differ():
    """The same seed, the same places."""
    chosen = [tuple(a_course(12, 30).choose_targets(5, seed)) for seed in range(10)]
    assert chosen == [tuple(a_course(12, 30).choose_targets(5, seed)) for seed in range(10)]
    assert sum(one != other for one, other in combinations(chosen, 2)) > 40


# What a run does for it -------------------------------------------------------------------------------------------


def aimed(monkeypatch, *aims, **wishes):
    """Each aim: where to save, first at the place, and more of its fields."""
    told = [{"place": saves[0], "saves": saves, **more} for *saves, more in aims]
    monkeypatch.setenv("HOLDFAST_DRILL", json.dumps({"aims": told, "digests": True, **wishes}))


def saved(path):
    return [(event["step"], event["phase"]) for event in events(path, "saved")]


def train(path, **options):
    with new_run(path, Toy(), **options) as run:
        for _ in run.epochs(2):
            for _ in run.batches([1, 2, 3, 4]):
                pass


def test_a_run_saves_exactly_where_it_is_told(tmp_path, monkeypatch):
    """Instead of at its own interval: also at the last batch, and at an epoch's end; and at its own end."""
    aimed(monkeypatch, ((3, "step"), (4, "step"), (4, "end"), {"exact": True}))
    train(tmp_path)
    assert saved(tmp_path) == [(3, "step"), (4, "step"), (4, "end"), (8, "end")]
    epochs = [(event["step"], event["epoch"]) for event in events(tmp_path, "digests")]
    assert epochs == [*((step, 0) for step in (1, 2, 3, 4, 4)), *((step, 1) for step in (5, 6, 7, 8, 8))]


def test_an_interval_that_the_user_gave_ends_at_the_place(tmp_path, monkeypatch):
    """Its saves lie before the place: a later one would lead the next attempt elsewhere."""
    for every, saves in ((None, [(4, "step")]), (2, [(2, "step"), (4, "step")])):
        aimed(monkeypatch, ((4, "step"), {}), save_every_steps=every)
        train(tmp_path / str(every))
        assert saved(tmp_path / str(every)) == [*saves, (8, "end")]


def test_a_resumed_run_takes_up_the_next_aim(tmp_path, monkeypatch):
    """The first beyond its checkpoint; beyond all of them its own interval holds again."""
    for stop in (3, 6):
        aimed(monkeypatch, ((3, "step"), {}), ((6, "step"), {}))
        with pytest.raises(Stopped), new_run(tmp_path, Toy()) as run:
            for _ in run.steps(8):
                if run.step == stop:
                    raise Stopped("killed")
    aimed(monkeypatch)
    with new_run(tmp_path, Toy()) as run:
        list(run.steps(8))
    assert saved(tmp_path) == [(3, "step"), (6, "step"), (7, "step"), (8, "step")]
