"""Feeds and what they hand out: of a run of one piece, and after a resume at any of its positions."""

from itertools import chain
from typing import Any

import torch

from holdfast.data.feed import feed_for
from subjects import asked_of


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


def resumes_anywhere(name, make, every=1):
    """Law: a new process that opens a saved position sees the batches that were left, and then the same epochs. A
    position at an epoch's end carries into the next one what the loader itself carries over. Asked of each `every`th
    position from the last one on.
    """
    expected, positions = uninterrupted(make)
    for (epoch, taken, phase), position in [*positions.items()][::-every]:
        with asked_of(name, epoch, taken, phase):
            feed = feed_for(make(), 1)
            torch.manual_seed(99)  # whatever else the new process has drawn
            assert plain(feed.open(epoch, position)) == expected[epoch][taken:]
            if epoch < 2:
                assert plain(feed.open(epoch + 1, None)) == expected[epoch + 1]
            if epoch < 2 and taken == len(expected[epoch]):
                assert plain(feed_for(make(), 1).open(epoch + 1, position)) == expected[epoch + 1]
    return expected


def leaves_the_next_epoch_whole(name, make, length, resumed=None):
    """Law: after a break the next epoch is the same, in the same process and from its position in another one."""
    feed = feed_for(make(), 1)
    batches: Any = feed.open(0, None)
    next(batches), next(batches)
    position = feed.position(2)
    batches.close()
    expected = plain(feed.open(1, None))
    with asked_of(name):
        assert sorted(flat(expected)) == list(range(length))
        assert plain(feed_for((resumed or make)(), 1).open(1, position)) == expected
