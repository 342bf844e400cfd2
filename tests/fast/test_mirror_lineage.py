"""Which checkpoint a start takes: none of a ghost, and the newest that is there of the present lineage."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.mirror.lineage import HERE, HeldCheckpoint, compute_lineage, merge_origins
from holdfast.mirror.records import ResumeOrigin
from holdfast.store.format import CheckpointName


def name(step):
    return str(CheckpointName(step))


def held(place, attempt, *steps):
    return [HeldCheckpoint(place, attempt, name(step), f"{attempt}-{step}") for step in steps]


def chosen(came_from, every):
    return [(each.attempt, each.name, each.places) for each in compute_lineage(came_from, every)]


def test_an_attempt_that_died_before_it_went_on_does_not_count():
    came_from = {1: ResumeOrigin(None)}
    assert chosen(came_from, held(0, 1, 10, 20)) == [(1, name(20), (0,)), (1, name(10), (0,))]


def test_stale_scratch_loses_and_the_nearest_of_equal_copies_wins():
    came_from = {1: ResumeOrigin(None)}
    every = held(2, 1, 10, 20) + held(HERE, 1, 10) + held(1, 1, 20)
    assert chosen(came_from, every) == [(1, name(20), (1, 2)), (1, name(10), (HERE, 2))]


def test_a_start_afresh_leaves_everything_older_behind():
    assert chosen({1: ResumeOrigin(None), 2: ResumeOrigin(None)}, held(0, 1, 10)) == []


def test_the_end_of_an_epoch_is_newer_than_its_last_step():
    end = HeldCheckpoint(0, 1, str(CheckpointName(10, "end")), "x")
    assert [each.name for each in compute_lineage({1: ResumeOrigin(None)}, [end, *held(0, 1, 10)])] == [
        end.name,
        name(10),
    ]


def test_two_processes_of_one_number_are_told():
    assert merge_origins([(1, None), (1, ResumeOrigin(None)), (1, ResumeOrigin(None))]) == {1: ResumeOrigin(None)}
    with pytest.raises(ValueError, match="elsewhere"):
        merge_origins([(2, ResumeOrigin(None)), (2, ResumeOrigin(1, name(10)))])


def test_a_record_that_leads_forwards_leads_nowhere():
    assert chosen({1: ResumeOrigin(1, name(5)), 2: ResumeOrigin(2, name(5))}, held(0, 1, 5) + held(0, 2, 7)) == [
        (2, name(7), (0,))
    ]


def test_an_attempt_that_goes_back_leaves_behind_what_it_went_back_from():
    """Attempt 2 had gone on from step 50 of attempt 1; attempt 3 goes on from step 40, and names attempt 2."""
    came_from = {1: ResumeOrigin(None), 2: ResumeOrigin(1, name(50)), 3: ResumeOrigin(2, name(40))}
    assert chosen(came_from, held(0, 1, 30, 40, 50) + held(0, 2, 60)) == [(1, name(40), (0,)), (1, name(30), (0,))]


class World:
    """The obvious model: a run's life as a list of events. A state knows all the states it came from."""

    def __init__(self, seed):
        self.rng = random.Random(seed)
        self.came_from = {}
        self.history = {}  # attempt -> [(attempt, step)] which led to its present, oldest first
        self.present = []
        self.copies = []  # (place, attempt, step)

    def live(self, places):
        for attempt in range(1, self.rng.randint(2, 6)):
            ghost = self.history.get(attempt - 1)
            there = {(each[1], each[2]) for each in self.copies}
            able = [state for state in self.present if state in there]
            if self.rng.random() < 0.2:
                continue  # it died before it went on
            # mostly the newest; an older one when that is damaged; or afresh
            roll = self.rng.random()
            start = None if roll < 0.1 or not able else able[-1] if roll < 0.8 else self.rng.choice(able)
            path = [] if start is None else self.present[: self.present.index(start) + 1]
            # who wrote it, or any later attempt that has it in its past
            heirs = [before for before, past in self.history.items() if start in past]
            self.came_from[attempt] = (
                ResumeOrigin(self.rng.choice(heirs), name(start[1])) if start else ResumeOrigin(None)
            )
            step = 0 if start is None else start[1]
            for _ in range(self.rng.randint(0, 3)):
                step += self.rng.randint(1, 3)
                path.append((attempt, step))
                kept = [place for place in places if self.rng.random() < 0.6]
                self.copies += [(place, attempt, step) for place in kept]
            self.present = self.history[attempt] = path
            if ghost and self.rng.random() < 0.5:  # the replaced process saves once more, too late
                last = max([each[1] for each in ghost if each[0] == attempt - 1], default=None)
                if last is not None:
                    self.copies.append((self.rng.choice(places), attempt - 1, last + 1))


@given(st.integers(0, 10**9))
def test_the_lineage_is_what_led_to_the_present(seed):
    """Against a model in which every state knows its past; several places, ghosts, restarts from older ones."""
    world = World(seed)
    world.live([HERE, 0, 1])
    every = [HeldCheckpoint(place, attempt, name(step), f"{attempt}-{step}") for place, attempt, step in world.copies]
    random.Random(seed).shuffle(every)
    expected = []
    for attempt, step in reversed(world.present):
        places = tuple(sorted({place for place, *of in world.copies if tuple(of) == (attempt, step)}))
        if places:
            expected.append((attempt, name(step), places))
    assert expected == chosen(world.came_from, every)
