"""ShardedItems: the items of an array in the memory of its devices, one piece on each."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

import jax
import numpy as np

from ..store.boxes import Box, index_within, intersection

_PLAIN: dict[int, Any] = {
    1: np.dtype("u1"),
    2: np.dtype("u2"),
    4: np.dtype("u4"),
    8: np.dtype("u8"),
    16: np.dtype("c16"),
}


class ShardedItems:
    """The bytes of an array on its devices. A device's piece is accessed only while items of it are
    copied.

    A view of an array's memory that lived longer would keep the array from being donated.
    """

    def __init__(self, array: Any) -> None:
        self.itemsize: int = array.dtype.itemsize
        self._shape: tuple[int, ...] = array.shape
        found = {
            _box_of_index(shard.index, array.shape): _alias(shard.data)
            for shard in array.addressable_shards
        }
        self._pieces = list(found.items())  # what several devices hold is copied once

    def gather(self, start: int, target: memoryview) -> None:
        """Copy whole items from byte `start` on into `target`, in C order."""
        items = np.frombuffer(target, _PLAIN[self.itemsize])
        first, at = start // self.itemsize, 0
        for run in contiguous_boxes(self._shape, first, first + items.size):
            room = items[at : at + run.volume].reshape(run.shape)
            at += run.volume
            for box, data in self._pieces:
                both = intersection(run, box)
                if both is not None:
                    room[index_within(run, both)] = _host_view(data)[index_within(box, both)]

    def scatter(self, _: int, __: memoryview) -> None:
        """Refuse: restored arrays are always new."""
        raise TypeError("JAX's arrays cannot be changed in place")


def contiguous_boxes(shape: Sequence[int], start: int, stop: int) -> Iterator[Box]:
    """Yield as few boxes as possible that are, one after another, the items `start` to `stop` of an
    array in C order.
    """
    if start >= stop:
        return
    if not shape:
        yield Box((), ())
        return
    inner = tuple(shape[1:])
    each = math.prod(inner)
    first, last = start // each, stop // each
    if first == last:  # both are in the same row
        yield from _in_row(first, inner, start - first * each, stop - first * each)
        return
    if start % each:
        yield from _in_row(first, inner, start % each, each)
        first += 1
    if first < last:
        yield Box((first, *(0 for _ in inner)), (last - first, *inner))
    yield from _in_row(last, inner, 0, stop % each)


def _in_row(row: int, inner: Sequence[int], start: int, stop: int) -> Iterator[Box]:
    for at, shape in contiguous_boxes(inner, start, stop):
        yield Box((row, *at), (1, *shape))


def _alias(data: Any) -> Any:
    """Return another array of the same memory: JAX keeps a host copy with the array object that is
    converted.
    """
    return jax.make_array_from_single_device_arrays(data.shape, data.sharding, [data])


def _host_view(data: Any) -> Any:
    """Return a view of one device's piece,
    as items that NumPy copies without a change of their bits.
    """
    host = np.asarray(data)
    return host.view(_PLAIN[host.dtype.itemsize])


def _box_of_index(index: tuple[slice, ...], shape: Sequence[int]) -> Box:
    ends = [part.indices(extent)[:2] for part, extent in zip(index, shape, strict=True)]
    return Box(tuple(start for start, _ in ends), tuple(stop - start for start, stop in ends))
