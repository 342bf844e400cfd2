"""An epoch's order, split over ranks: which places each rank takes, from any place on, for any
number of ranks.

The order is taken in rounds: one sample for each rank, next to each other. So what all ranks
together have consumed is always the order's beginning, and one number, the same on every rank, says
how much of it: the *position*. After a resume any number of ranks takes the rest, in rounds of the
new size.

The last round may be short. Then the round is filled with samples from the order's beginning (some
samples come twice), or it is left out (`drop_last`).
"""

from __future__ import annotations

from itertools import chain, islice
from typing import NamedTuple


class RankSplit(NamedTuple):
    """The places of an order of `length` samples that rank `rank` of `world` takes. Place `p`
    beyond the end means place `p % length`.
    """

    length: int
    world: int = 1
    rank: int = 0
    drop_last: bool = False

    def samples_left(self, position: int = 0) -> int:
        """Return the number of samples that each rank still takes when `position` places are
        consumed.
        """
        left = max(0, self.length - position)
        return left // self.world if self.drop_last else -(-left // self.world)

    def remaining_places(self, position: int = 0) -> range:
        """Return the places that this rank still takes."""
        first = position + self.rank
        return range(first, first + self.samples_left(position) * self.world, self.world)


def assign_places(split: RankSplit, count: int) -> list[int]:
    """Return `count` different places for this rank to keep: its own share first, then those of the
    ranks after it.

    With `count` = length / world the ranks have each place once between them, with `count` = length
    each has all.
    """
    owners = ((split.rank + turn) % split.world for turn in range(split.world))
    shares = (range(owner, split.length, split.world) for owner in owners)
    return list(islice(chain.from_iterable(shares), count))
