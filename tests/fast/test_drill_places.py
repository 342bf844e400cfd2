"""From which safe points a drill resumes a run: each kind of place that the script has, and none that hides what it counts."""

import json
import sys
from itertools import combinations, pairwise
from math import gcd
from pathlib import Path

import pytest
from test_drill import a_course, control, quiet

from holdfast import Stopped, drill
from holdfast.drill import report
from holdfast.drill.aim import Options
from holdfast.drill.evidence import Place
from holdfast.drill.places import AGAIN, EARLY, END, FIRST, FURTHER, LAST, LATE, LATER, Course, Spot
from toy import Toy, events, new_run

SHAPES = [(2, 10), (3, 8), (12, 30), (2, 18), (5, 4), (40, 3)]


def by_steps(total):
    """The safe points of `run.steps(total)`."""
    return Course(Spot(Place(step), 0) for step in range(1, total + 1))


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("seed", range(8))
def test_five_kills_cover_every_kind_of_place(shape, seed):
    """The first epoch, a later one in the middle, an epoch's last batch, its end, and a resume soon after a resume."""
    epochs, batches = shape
    found = a_course(epochs, batches).choose(5, seed)
    assert {each.kind for each in found} == {FIRST, LATER, LAST, END, AGAIN}
    assert [each.place for each in found] == sorted((each.place for each in found), key=lambda place: place.order)
    at = {each.kind: each.place for each in found}
    assert 0 < at[FIRST].step < batches
    assert at[LATER].step > batches
    assert at[LATER].step % batches != 0
    assert (at[LAST].step % batches, at[LAST].phase) == (0, "step")
    assert (at[END].step % batches, at[END].phase) == (0, "end")
    before = max(number for number, each in enumerate(found) if each.place.order < at[AGAIN].order)
    assert at[AGAIN].step - found[before].place.step <= 3
    assert Place(epochs * batches, "end") not in at.values()


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("first", [1, 7])
def test_epochs_that_are_not_counted_from_zero_have_the_same_places(shape, first):
    """`run.epochs(range(1, 11))`: epoch 1 is the first one, and the middle of epoch 2 that of a later one."""
    for kills in (1, 2, 4, 5, 9):
        assert a_course(*shape, count_from=first).choose(kills, 0) == a_course(*shape).choose(kills, 0)
    course = a_course(*shape, count_from=first)
    assert [course.kind(place) for place in course.places] == [a_course(*shape).kind(place) for place in course.places]


@pytest.mark.parametrize("shape", [shape for shape in SHAPES if shape[1] > 3])
@pytest.mark.parametrize("seed", range(8))
def test_steps_and_counts_within_an_epoch_have_no_divisor_in_common(shape, seed):
    """A loop that does something at each nth index begins it anew at a resume: that shows only where n does not divide it."""
    _, batches = shape
    for kills in (2, 3, 5, 8):
        inside = [each for each in a_course(*shape).choose(kills, seed) if each.kind in (FIRST, LATER, FURTHER)]
        assert gcd(*(each.place.step for each in inside)) == 1
        assert gcd(*(each.place.step % batches for each in inside)) == 1


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("kills", [1, 2, 5, 20])
def test_a_run_without_epochs_is_resumed_in_both_halves(kills, seed):
    """It has fewer kinds of places; further ones fill the widest gaps."""
    found = by_steps(100).choose(kills, seed)
    assert len({each.place for each in found}) == kills
    assert {each.kind for each in found} <= {EARLY, LATE, AGAIN, FURTHER}
    if kills > 1:
        assert gcd(*(each.place.step for each in found)) == 1
    if kills >= 20:
        steps = [0, *(each.place.step for each in found), 100]
        assert max(later - sooner for sooner, later in pairwise(steps)) < 25


@pytest.mark.parametrize("course", [by_steps(4), a_course(1, 3), a_course(3, 1)])
def test_a_short_run_is_resumed_from_each_of_its_places(course):
    """All safe points but the last one, after which nothing is left to do."""
    assert [each.place for each in course.choose(50, 0)] == course.places
    assert by_steps(1).choose(5, 0) == [] == Course([]).choose(5, 0)


def test_places_are_a_function_of_the_seed_and_seeds_differ():
    """The same seed, the same places."""
    chosen = [tuple(a_course(12, 30).choose(5, seed)) for seed in range(10)]
    assert chosen == [tuple(a_course(12, 30).choose(5, seed)) for seed in range(10)]
    assert sum(one != other for one, other in combinations(chosen, 2)) > 40


# What a run does for it -------------------------------------------------------------------------------------------


def aimed(monkeypatch, *aims, **wishes):
    monkeypatch.setenv("HOLDFAST_DRILL", json.dumps({"aims": aims, "digests": True, **wishes}))


def saved(path):
    return [(event["step"], event["phase"]) for event in events(path, "saved")]


def train(path, **options):
    with new_run(path, Toy(), **options) as run:
        for _ in run.epochs(2):
            for _ in run.batches([1, 2, 3, 4]):
                pass


def test_a_run_saves_exactly_where_it_is_told(tmp_path, monkeypatch):
    """Instead of at its own interval: also at the last batch, and at an epoch's end; and at its own end."""
    aimed(monkeypatch, {"place": [3, "step"], "saves": [[3, "step"], [4, "step"], [4, "end"]], "exact": True})
    train(tmp_path)
    assert saved(tmp_path) == [(3, "step"), (4, "step"), (4, "end"), (8, "end")]
    epochs = [(event["step"], event["epoch"]) for event in events(tmp_path, "digests")]
    assert epochs == [*((step, 0) for step in (1, 2, 3, 4, 4)), *((step, 1) for step in (5, 6, 7, 8, 8))]


@pytest.mark.parametrize(("every", "saves"), [(None, [(4, "step")]), (2, [(2, "step"), (4, "step")])])
def test_an_interval_that_the_user_gave_ends_at_the_place(tmp_path, monkeypatch, every, saves):
    """Its saves lie before the place: a later one would lead the next attempt elsewhere."""
    aimed(monkeypatch, {"place": [4, "step"], "saves": [[4, "step"]]}, save_every_steps=every)
    train(tmp_path)
    assert saved(tmp_path) == [*saves, (8, "end")]


def test_a_resumed_run_takes_up_the_next_aim(tmp_path, monkeypatch):
    """The first beyond its checkpoint; beyond all of them its own interval holds again."""
    for place in ([3, "step"], [6, "step"]):
        aimed(
            monkeypatch, {"place": [3, "step"], "saves": [[3, "step"]]}, {"place": [6, "step"], "saves": [[6, "step"]]}
        )
        with pytest.raises(Stopped), new_run(tmp_path, Toy()) as run:
            for _ in run.steps(8):
                if run.step == place[0]:
                    raise Stopped("killed")
    aimed(monkeypatch)
    with new_run(tmp_path, Toy()) as run:
        list(run.steps(8))
    assert saved(tmp_path) == [(3, "step"), (6, "step"), (7, "step"), (8, "step")]


# Whole drills -------------------------------------------------------------------------------------------------------


def script(path, *lines):
    """A program that trains a Toy; its path."""
    head = [
        "import random, sys",
        f"sys.path.insert(0, {str(Path(__file__).parents[1])!r})",
        "from toy import Toy, new_run",
        "random.seed(1)",
        "toy = Toy()",
        f"with new_run({str(path / 'run')!r}, toy) as run:",
    ]
    program = path / "train.py"
    program.write_text("\n".join([*head, *(f"    {line}" for line in lines), ""]))
    return [sys.executable, str(program)]


@pytest.mark.slow
@pytest.mark.drill
@pytest.mark.parametrize("every", ["6", "7"])
def test_what_a_loop_counts_from_a_resume_is_found_whatever_it_saves_by(every):
    """Every third index of `enumerate` does more: with saves at multiples of 6 this was called identical."""
    found = drill.drill(control("thirds", every), Options(kills=3), quiet)
    assert (found.verdict, found.kills_proven) == (report.DIFFERENT, 3)
    assert any(leaf.startswith(("norm", "tree:norm")) for leaf in found.divergence.leaves)


@pytest.mark.slow
@pytest.mark.drill
def test_the_same_loop_with_its_index_kept_is_identical():
    """So that the index was what the drill found."""
    found = drill.drill(control("thirds", "6", "--repaired"), Options(kills=3), quiet)
    assert (found.verdict, found.kills_proven, found.places) == (report.IDENTICAL, 3, 37)


@pytest.mark.slow
@pytest.mark.drill
def test_crops_in_workers_without_seeds_are_found_though_the_script_saves_at_its_epochs_end():
    """Resumed at an epoch's end only, workers begin anew in both runs, and this was called identical."""
    found = drill.drill(control("crops"), Options(kills=1, signals=("KILL",), damage=False), quiet)
    assert (found.verdict, found.divergence.cause) == (report.DIFFERENT, "augmentation")


@pytest.mark.slow
@pytest.mark.drill
def test_each_place_of_a_quick_run_is_hit_exactly(tmp_path):
    """Its steps take no time: the run waits at its place, and at its brink, for the signal."""
    lines = (
        "for _ in run.epochs(3):",
        "    for batch in run.batches([1, 2, 3, 4, 5, 6, 7]):",
        "        toy.learn(batch)",
    )
    found = drill.drill(script(tmp_path, *lines), Options(kills=6, seed=3), quiet)
    assert (found.verdict, found.kills_proven, found.places) == (report.IDENTICAL, 6, 23)
    assert {FIRST, LATER, LAST, END, AGAIN} <= {each.kind for each in found.resumed}
    assert sum(each.signal is not None for each in found.attempts) == 6
    assert len([each for each in found.attempts if each.damage]) == 2


@pytest.mark.slow
@pytest.mark.drill
def test_a_run_with_fewer_places_than_kills_is_identical_at_all_of_them(tmp_path):
    """Nothing more can be asked of it; and of a run of one step, nothing at all."""
    found = drill.drill(script(tmp_path, "for step in run.steps(3):", "    toy.learn(step)"), Options(kills=5), quiet)
    assert (found.verdict_line, found.kills_proven, found.exit_code) == ("identical (all 2 places)", 2, 0)
    one = drill.drill(script(tmp_path, "for step in run.steps(1):", "    toy.learn(step)"), Options(kills=5), quiet)
    assert (one.verdict, one.places, one.exit_code) == (report.NOT_PROVEN, 0, 1)
    assert "--steps" in " ".join(one.notes)
