"""Feeds of the core: any loader can be come back to, after any batch."""

import subprocess
import sys
from itertools import chain, count

import numpy as np
import pytest
import torch
from torchdata.stateful_dataloader import StatefulDataLoader

from holdfast.data.feed import MOVES, ReplayFeed, SequenceFeed, StatefulFeed, feed_for
from holdfast.errors import UsageError

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


def stateful(workers=0, generator=None, **settings):
    torch.manual_seed(7)
    if generator is not None:
        generator = torch.Generator().manual_seed(generator)
    return StatefulDataLoader(
        list(range(11)), batch_size=2, shuffle=True, num_workers=workers, generator=generator, **settings
    )


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
    "torchdata, workers": lambda: stateful(2),
    "torchdata, persistent": lambda: stateful(2, generator=3, persistent_workers=True),
}
SLOW = [pytest.param(name, marks=pytest.mark.slow) for name in ("torchdata, workers", "torchdata, persistent")]


def flat(batches):
    return list(chain.from_iterable(batches))


def plain(batches):
    return [batch.tolist() if hasattr(batch, "tolist") else batch for batch in batches]


def uninterrupted(make, epochs=3):
    """The batches of each epoch, and what was saved after each: {(epoch, batches, phase): position}."""
    feed, batches, positions = feed_for(make(), 1), [], {}
    for epoch in range(epochs):
        batches.append([])
        walk = feed.open(epoch, None)
        positions[epoch, 0, "step"] = feed.position(0)
        for batch in walk:
            batches[-1] += plain([batch])
            positions[epoch, len(batches[-1]), "step"] = feed.position(len(batches[-1]))
        positions[epoch, len(batches[-1]), "end"] = feed.position(len(batches[-1]))
    return batches, positions


@pytest.mark.parametrize("name", [*list(LOADERS)[:-2], *SLOW])
def test_a_resume_at_any_batch_gives_the_rest(name):
    """A new process that opens a saved position sees the batches that were left, and then the same epochs."""
    expected, positions = uninterrupted(LOADERS[name])
    for (epoch, taken, _), position in positions.items():
        feed = feed_for(LOADERS[name](), 1)
        torch.manual_seed(99)  # whatever else the new process has drawn
        assert plain(feed.open(epoch, position)) == expected[epoch][taken:]
        if epoch < 2:
            assert plain(feed.open(epoch + 1, None)) == expected[epoch + 1]


@pytest.mark.parametrize("name", LOADERS)
def test_a_resume_after_an_epoch_gives_the_next_one_whole(name):
    """The position at an epoch's end carries into the next epoch what the loader itself carries over."""
    expected, positions = uninterrupted(LOADERS[name])
    for (epoch, taken, _), position in positions.items():
        if taken == len(expected[epoch]) and epoch < 2:
            assert plain(feed_for(LOADERS[name](), 1).open(epoch + 1, position)) == expected[epoch + 1]


@pytest.mark.parametrize("workers", [0, 2])
def test_every_epoch_of_a_stateful_loader_is_full(workers):
    """torchdata's state after the last batch would give an empty epoch; ours are permutations, each another one."""
    batches, _ = uninterrupted(lambda: stateful(workers))
    assert [sorted(flat(epoch)) for epoch in batches] == [list(range(11))] * 3
    assert batches[0] != batches[1] != batches[2]


def test_a_loader_that_was_left_early_begins_a_new_epoch():
    """After a break the next epoch is whole, in one piece and after a resume alike."""

    def left_early(feed):
        for number, _ in enumerate(feed.open(0, None), 1):
            if number == 2:
                return feed.position(2)
        return None

    feed = feed_for(stateful(), 1)
    position = left_early(feed)
    expected = plain(feed.open(1, None))
    assert sorted(flat(expected)) == list(range(11))
    assert plain(feed_for(stateful(), 1).open(1, position)) == expected


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
    kinds = {name: type(feed_for(make(), 1)) for name, make in LOADERS.items()}
    assert {kinds[name] for name in ("list", "tuple", "range", "empty", "numpy", "tensor")} == {SequenceFeed}
    assert kinds["iterable"] is ReplayFeed
    assert {kinds[name] for name in kinds if "torchdata" in name} | {kinds["stateful"]} == {StatefulFeed}
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


@pytest.mark.parametrize("loader", [{"a": 1}, {1, 2}, "abc", b"abc", 7, None], ids=repr)
def test_what_has_no_order_of_batches_is_refused(loader):
    """A mapping, a set, a word, a number: the message names the loader and its type."""
    with pytest.raises(UsageError, match=f'"train" is a {type(loader).__name__}'):
        feed_for(loader, 1, "train")


def test_facts_that_move_the_data_position():
    """A changed length is told apart from a changed number of workers."""
    assert feed_for([1, 2], 1).describe() == {"loader": "list", "length": 2}
    described = feed_for(stateful(2), 1).describe()
    assert described == {"loader": "StatefulDataLoader", "batch_size": 2, "drop_last": False, "workers": 2, "length": 6}
    assert {"length", "batch_size", "drop_last", "sampler", "accumulate", "order"} <= MOVES
    assert "workers" not in MOVES


def test_a_plain_loop_needs_no_framework():
    """A list is walked without torch and NumPy."""
    script = (
        "import sys; from holdfast.data.feed import feed_for\n"
        "assert list(feed_for([1, 2, 3], 1).open(0, {'epoch': 0, 'batches': 1})) == [2, 3]\n"
        "assert not {'torch', 'numpy'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", script], check=True)
