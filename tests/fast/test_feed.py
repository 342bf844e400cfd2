"""Feeds of the core: a resume continues any loader after any batch."""

import random
from itertools import count
from typing import Any

import numpy as np
import pytest
import torch
from torchdata.stateful_dataloader import StatefulDataLoader

from feeds import flat, leaves_the_next_epoch_whole, resumes_anywhere, uninterrupted
from holdfast.data import Zip
from holdfast.data.digest import digest
from holdfast.data.feed import MOVES, SequenceFeed, feed_for
from holdfast.data.replay import ReplayFeed
from holdfast.data.stateful import StatefulFeed
from holdfast.errors import Mismatch, UsageError
from holdfast.torch.loader import DataLoaderFeed
from subjects import asked_of

pytestmark = pytest.mark.filterwarnings("ignore:'set_vital' is deprecated")  # torchdata's own


class Counting:
    """A loader of the user's that remembers where it is, and goes on into the next epoch."""

    def __init__(self):
        self.epoch, self.number = 0, 0

    def __iter__(self):
        while self.number < 5:
            self.number += 1
            yield self.epoch * 100 + self.number
        self.epoch, self.number = self.epoch + 1, 0

    def state_dict(self):
        return {"epoch": self.epoch, "number": self.number}

    def load_state_dict(self, state):
        self.epoch, self.number = state["epoch"], state["number"]


class Repeating:
    """An iterable that begins afresh each time."""

    def __iter__(self):
        return iter([10, 20, 30, 40])


def stateful(workers=0, generator=None):
    torch.manual_seed(7)
    if generator is not None:
        generator = torch.Generator().manual_seed(generator)
    return StatefulDataLoader(range(11), batch_size=2, shuffle=True, num_workers=workers, generator=generator)


LOADERS = {
    "list": lambda: [10, 20, 30],
    "tuple": lambda: (10, 20, 30),
    "range": lambda: range(4),
    "empty": list,
    "numpy": lambda: np.arange(6).reshape(3, 2),
    "tensor": lambda: torch.arange(6).reshape(3, 2),
    "stateful": Counting,
    "iterable": Repeating,
    "torchdata": stateful,
    "torchdata, own generator": lambda: stateful(generator=3),
}


def test_a_resume_at_any_batch_gives_the_rest():
    """For every kind of loader, at every position; each epoch is full, and the shuffled ones have their own orders."""
    for name, make in LOADERS.items():
        expected = resumes_anywhere(name, make)
        if "torchdata" in name:
            assert [sorted(flat(epoch)) for epoch in expected] == [list(range(11))] * 3
            assert expected[0] != expected[1] != expected[2]


def test_a_loader_that_was_left_early_begins_a_new_epoch():
    """After a break the next epoch is whole, in one piece and after a resume alike."""
    leaves_the_next_epoch_whole("torchdata", stateful, 11)


def test_a_position_is_a_copy():
    """What was saved does not move when the loader goes on."""

    class Aliasing(Counting):
        def __init__(self):
            super().__init__()
            self.state = {}

        def state_dict(self):
            self.state.update(super().state_dict())
            return self.state

    feed = feed_for(Aliasing(), 1)
    batches = feed.open(0, None)
    next(batches)
    position = feed.position(1)
    next(batches)
    assert position["state"] == {"epoch": 0, "number": 1}


def test_the_kind_of_feed_follows_from_what_the_loader_can_do():
    """State beats an index, an index beats iteration; only iteration replays."""
    kinds = [*[SequenceFeed] * 6, StatefulFeed, ReplayFeed, DataLoaderFeed, DataLoaderFeed]
    assert dict(zip(LOADERS, kinds, strict=True)) == {name: type(feed_for(make(), 1)) for name, make in LOADERS.items()}
    assert [feed.replays for feed in (SequenceFeed, StatefulFeed, ReplayFeed)] == [False, False, True]


def test_a_one_shot_iterator_serves_one_epoch():
    """A generator can be resumed by reading it again in a new process, but no second epoch comes out of it."""
    feed = feed_for((number for number in range(4)), 1)
    assert list(feed.open(0, {"epoch": 0, "batches": 3})) == [3]
    with pytest.raises(UsageError, match="iterated once only"):
        feed.open(1, None)


def test_an_endless_iterable_works():
    """Nothing is counted or listed beforehand."""

    class Endless:
        def __iter__(self):
            return count()

    assert next(feed_for(Endless(), 1).open(3, {"epoch": 3, "batches": 7})) == 7


def test_what_has_no_order_of_batches_is_refused():
    """A mapping, a set, a word, a number: the message names the loader and its type."""
    for loader in ({"a": 1}, {1, 2}, "abc", b"abc", 7, None):
        with pytest.raises(UsageError, match=f'"train" is a {type(loader).__name__}'):
            feed_for(loader, 1, "train")


def test_facts_that_move_the_data_position():
    """A changed length is told apart from a changed number of workers."""
    assert feed_for([1, 2], 1).describe() == {"loader": "list", "length": 2}
    described = feed_for(stateful(2), 1).describe()
    assert described["loader"] == "StatefulDataLoader"
    assert (described["workers"], described["length"], described["order"]) == (2, 11, "shuffle-1")
    assert {"length", "batch_size", "drop_last", "sampler", "accumulate", "order"} <= MOVES
    assert "workers" not in MOVES


class Shuffled:
    """An iterable that draws its order from Python's generator; `calls` counts the passes."""

    def __init__(self, calls=0):
        self.calls = calls

    def __iter__(self):
        self.calls += 1
        return iter(random.sample(range(5), 5))


def test_a_replay_sees_the_random_numbers_of_its_beginning():
    """An order drawn from a global generator comes out again, whatever has been drawn since; one more draw shows
    nothing.
    """
    random.seed(1)
    feed = feed_for(Shuffled(), 1)
    batches = feed.open(0, None)
    taken = [next(batches) for _ in range(3)]
    position, rest = feed.position(3), list(batches)
    random.seed(2)
    assert list(feed_for(Shuffled(), 1).open(0, position)) == rest
    assert sorted(taken + rest) == list(range(5))


class Numbered:
    """An iterable that counts its passes, and begins each one elsewhere."""

    def __init__(self, passes=0):
        self.passes = passes

    def __iter__(self):
        self.passes += 1
        return iter(range(10 * self.passes, 10 * self.passes + 4))


def test_an_iterable_that_counts_its_passes_is_brought_to_the_right_one():
    """In the middle of an epoch and at its end: the epochs before are begun again until the first batch is the same."""
    expected, positions = uninterrupted(Numbered, 5)
    assert [4] * 5 == [*map(len, expected)]
    for epoch, consumed in [(0, 2), (0, 4), (3, 1), (3, 4)]:
        position, fresh = positions[epoch, consumed, "step"], feed_for(Numbered(), 1)
        with asked_of(epoch, consumed):
            if consumed < 4:
                assert list(fresh.open(epoch, position)) == expected[epoch][consumed:]
                position = None
            assert list(fresh.open(epoch + 1, position)) == expected[epoch + 1]


def test_another_order_is_refused():
    """A replay that comes to another batch, or to the end too soon, is a Mismatch that says what to pass."""
    for consumed, others in [(1, [0]), (2, [1]), (4, [1, 2, 3])]:
        feed = feed_for(iter([1, 2, 3, 4]), 1)
        batches = feed.open(0, None)
        for _ in range(consumed):
            next(batches)
        with pytest.raises(Mismatch, match=r"cannot be resumed: read again, batch \d of epoch 0.*accept="):
            feed_for(iter(others), 1).open(0, feed.position(consumed))


def test_a_batch_changed_in_place_is_the_same_batch():
    """The digest is taken before the loop has the batch."""
    feed, again = (feed_for(({"x": np.arange(3), "y": [n]} for n in range(4)), 1) for _ in range(2))
    batches = feed.open(0, None)
    for _ in range(2):
        batch = next(batches)
        batch["x"] += 7
        batch["y"].clear()
    assert next(again.open(0, feed.position(2)))["y"] == [2]


class Opaque:
    """An object that Holdfast cannot save."""

    def __init__(self, **named):
        self.__dict__.update(named)


def test_the_digest_depends_on_every_value():
    """Numbers, types, shapes, texts, containers."""
    makers = [
        lambda: [np.arange(4), "a"],
        lambda: [np.arange(5), "b"],
        lambda: [np.arange(4, dtype=np.int32), "a"],
        lambda: (np.arange(4), "a"),
        lambda: [np.array([0, 1, 2, 4]), "a"],
        lambda: [Opaque(x=1), "a"],
    ]
    assert len({digest(make()) for make in makers}) == len(makers)
    assert [digest(make()) for make in makers] == [digest(make()) for make in makers]


def test_objects_that_cannot_be_saved_count_by_their_attributes():
    """A batch of the user's own class is told from another one; an object without any counts by its type."""
    made = lambda value: Opaque(x=np.arange(3), inner=Opaque(y=value, lock=object()))
    assert digest([made(1)]) == digest([made(1)]) != digest([made(2)])
    assert digest(object()) == digest(object()) != digest(Opaque())


def test_a_large_array_counts_by_its_beginning_middle_and_end():
    """Otherwise a digest would cost as much as the batch."""
    large = np.zeros(10**6)
    for place in (0, 500_000, -1):
        other = large.copy()
        other[place] = 1
        assert digest(other) != digest(large)


def test_loaders_side_by_side_each_go_on_where_they_were():
    """Zip(a, b) reads nothing again, ends with the shorter one, and its length is known."""
    made = lambda: Zip([1, 2, 3], range(5))
    feed = feed_for(made(), 1)
    assert not feed.replays
    assert list(made()) == list(feed.open(0, None)) == [(1, 0), (2, 1), (3, 2)]
    assert len(made()) == 3
    assert list(feed_for(made(), 1).open(1, {**feed.position(2), "epoch": 1})) == [(1, 0), (2, 1), (3, 2)]
    batches = feed.open(1, None)
    next(batches)
    assert list(feed_for(made(), 1).open(1, feed.position(1))) == [(2, 1), (3, 2)]


class Unstateful(Counting):
    """Has the methods, as loaders that a library has wrapped do, and no state."""

    inner: Any  # no instance has it
    base_dataloader: Any

    def state_dict(self):
        return self.inner.state_dict()


def test_a_loader_whose_state_cannot_be_had_is_refused_as_its_loop_begins():
    """One line that says what to pass, and not an AttributeError at the first safe point."""
    plain, prepared = Unstateful(), Unstateful()
    prepared.base_dataloader = [1]
    for loader, words in [(plain, "the loader that it wraps"), (prepared, r"loader\.base_dataloader")]:
        with pytest.raises(UsageError, match=rf"Unstateful.*state_dict\(\) raises AttributeError.*Pass {words}"):
            feed_for(loader, 1).open(0, None)
