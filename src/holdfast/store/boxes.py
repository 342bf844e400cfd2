"""Boxes: rectangular pieces of a leaf, and where their bytes lie in the whole leaf. Pure."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from typing import NamedTuple

_MOST_PAIRS = 1 << 22  # pairs of boxes to compare if the boxes form no grid


class Box(NamedTuple):
    """The items from `at` to `at + shape` of a leaf, in each dimension."""

    at: tuple[int, ...]
    shape: tuple[int, ...]

    @property
    def volume(self) -> int:
        return math.prod(self.shape)


class ByteRange(NamedTuple):
    """A range of bytes of a box that is contiguous in the whole leaf, too."""

    start: int  # in bytes of the whole leaf
    offset: int  # in bytes of the box
    size: int


def intersection(a: Box, b: Box) -> Box | None:
    """Return the intersection; None if it is empty."""
    at = tuple(map(max, a.at, b.at))
    shape = tuple(min(x + m, y + n) - max(x, y) for x, m, y, n in zip(*a, *b, strict=True))
    return Box(at, shape) if min(shape, default=1) > 0 else None


def index_within(outer: Box, inner: Box) -> tuple[slice, ...]:
    """Return the index of `inner` in an array that holds `outer`."""
    starts = (at - start for at, start in zip(inner.at, outer.at, strict=True))
    return tuple(
        slice(start, start + extent) for start, extent in zip(starts, inner.shape, strict=True)
    )


def byte_ranges(whole: Sequence[int], box: Box, itemsize: int) -> Iterator[ByteRange]:
    """Yield as few contiguous byte ranges of `box` as possible, in C order, with their offsets in a
    leaf of shape `whole`.
    """
    if box.volume == 0:
        return
    # from this dimension on, each is covered whole, or all dimensions before it have one item
    last = len(whole)
    while last and box.shape[last - 1] == whole[last - 1]:
        last -= 1
    size = itemsize * math.prod(box.shape[max(0, last - 1) :])
    steps = [itemsize * math.prod(whole[axis + 1 :]) for axis in range(len(whole))]
    begin = sum(at * step for at, step in zip(box.at, steps, strict=True))
    offset = 0
    for index in itertools.product(*map(range, box.shape[: max(0, last - 1)])):
        yield ByteRange(
            begin + sum(at * step for at, step in zip(index, steps, strict=False)), offset, size
        )
        offset += size


def is_tiled(whole: Sequence[int], boxes: Sequence[Box]) -> bool:
    """Whether every item of `whole` is in exactly one of `boxes`."""
    inside = all(
        len(box.at) == len(box.shape) == len(whole)
        and all(
            0 <= at <= at + extent <= most
            for at, extent, most in zip(box.at, box.shape, whole, strict=True)
        )
        for box in boxes
    )
    if not inside or sum(box.volume for box in boxes) != math.prod(whole):
        return False
    full = [box for box in boxes if box.volume]
    return _is_grid(whole, full, 0) or _are_disjoint(full)


def _is_grid(whole: Sequence[int], boxes: Sequence[Box], axis: int) -> bool:
    """Return whether the boxes form a grid from this axis on: adjacent along it, without gaps."""
    if axis == len(whole):
        return len(boxes) == 1
    rows: dict[tuple[int, int], list[Box]] = {}
    for box in boxes:
        rows.setdefault((box.at[axis], box.shape[axis]), []).append(box)
    end = 0
    for at, extent in sorted(rows):
        if at != end:
            return False
        end += extent
    return end == whole[axis] and all(_is_grid(whole, row, axis + 1) for row in rows.values())


def _are_disjoint(boxes: Sequence[Box]) -> bool:
    if len(boxes) ** 2 > 2 * _MOST_PAIRS:
        return False
    return not any(_overlap(a, b) for a, b in itertools.combinations(boxes, 2))


def _overlap(a: Box, b: Box) -> bool:
    return all(
        max(start, other) < min(start + extent, other + size)
        for start, extent, other, size in zip(a.at, a.shape, b.at, b.shape, strict=True)
    )
