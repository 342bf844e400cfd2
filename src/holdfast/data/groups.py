"""Batches of one group each: images of similar shape, sentences of similar length. Grouped over all
ranks at once.

A batch is made of as many samples as all ranks together take in a step, so every rank has the same
group in the same step, and what was consumed does not depend on how many ranks there were. The rest
of a group comes last, as one short batch. After a change of the batch's size the samples that are
left are grouped anew, in the same order.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from itertools import chain

from .split import RankSplit

Taken = Sequence[tuple[int, int]]  # a position: (size, number of batches) pairs, in order


def group_batches(
    order: Iterable[int], group_of: Sequence[Hashable], size: int, *, drop_last: bool = False
) -> list[list[int]]:
    """Return batches in the order in which they fill up,
    then the rest of each group, unless `drop_last`.
    """
    full: list[list[int]] = []
    filling: dict[Hashable, list[int]] = {}
    for index in order:
        group = group_of[index]
        batch = filling.setdefault(group, [])
        batch.append(index)
        if len(batch) == size:
            full.append(filling.pop(group))
    return full if drop_last else [*full, *filling.values()]


def remaining_samples(
    order: Iterable[int], group_of: Sequence[Hashable], taken: Taken
) -> list[int]:
    """Return the samples of `order` that are in none of the batches `taken`."""
    left = list(order)
    for size, number in taken:
        gone = set(chain.from_iterable(group_batches(left, group_of, size)[:number]))
        left = [index for index in left if index not in gone]
    return left


def add_batches(taken: Taken, size: int, number: int) -> list[tuple[int, int]]:
    """Return `taken` with `number` batches of `size` added."""
    before, done = split_by_size(taken, size)
    return [*before, (size, done + number)] if done + number else list(before)


def split_by_size(taken: Taken, size: int) -> tuple[Taken, int]:
    """Return the batches taken before they had this size,
    and the number of this size taken after.
    """
    if taken and taken[-1][0] == size:
        return taken[:-1], taken[-1][1]
    return taken, 0


def part_of_rank(batch: Sequence[int], world: int, rank: int) -> list[int]:
    """Return the part of a batch for rank `rank`;
    if it does not divide evenly, some samples appear twice.
    """
    return [
        batch[place % len(batch)] for place in RankSplit(len(batch), world, rank).remaining_places()
    ]
