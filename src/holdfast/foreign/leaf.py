"""Leaves of other programs' checkpoints:
handles with the attributes of our own, whose bytes no digest proves.
"""

from __future__ import annotations

import itertools
import math
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Literal, NamedTuple

from ..errors import Damaged, StoreError
from ..state.codec import ITEMSIZE, c_stride
from ..store.boxes import Box, byte_ranges
from ..store.format import hasher
from .limits import READ_BYTES
from .region import Region

REPEATED, REPEATED_BYTES = 16, 1 << 20  # a view may be so many times larger than the bytes under it
# the kind of a leaf that no framework owns; it may be compared with every other kind
ANY = "tensor"

Place = Region | bytes  # where bytes are: in a file, or in memory if a pickle itself contains them


class LeafChunk(NamedTuple):
    """A rectangular part of a leaf, starting at item `at`."""

    at: tuple[int, ...]
    shape: tuple[int, ...]
    path: Path
    find: Callable[[], Place]  # its bytes in C order


class ForeignLeaf:
    """One tensor, or a long piece of bytes, of another program's checkpoint. `offset` and `stride`
    are in items of `place`; no stride: C order.
    """

    attrs: Mapping[str, object] = MappingProxyType({})

    def __init__(
        self,
        key: str,
        dtype: str,
        shape: tuple[int, ...],
        place: Place | Sequence[LeafChunk],
        stride: Sequence[int] = (),
    ) -> None:
        self.key, self.dtype, self.shape, self._place = key, dtype, shape, place
        self.kind = "bytes" if dtype == "bytes" else ANY
        self._stride = () if tuple(stride) == c_stride(shape) else tuple(stride)

    @property
    def itemsize(self) -> int:
        return ITEMSIZE.get(self.dtype, 1)

    @property
    def size_bytes(self) -> int:
        """The size of the leaf's items; of an unknown type the size of its bytes, if they are
        contiguous.
        """
        if self.dtype not in ITEMSIZE:
            return _place_size(self._place) if isinstance(self._place, Region | bytes) else 0
        return math.prod(self.shape) * self.itemsize

    def with_key(self, key: str) -> ForeignLeaf:
        return ForeignLeaf(key, self.dtype, self.shape, self._place, self._stride)

    def why_too_short(self) -> str | None:
        """Return why the file is too short for its bytes; None if it is not."""
        if not isinstance(self._place, Region | bytes) or self.dtype not in ITEMSIZE:
            return None
        last = (
            sum((extent - 1) * step for extent, step in zip(self.shape, self._stride, strict=True))
            if self._stride
            else 0
        )
        items = math.prod(self.shape) if not self._stride or not math.prod(self.shape) else 1 + last
        need, have = items * self.itemsize, _place_size(self._place)
        return None if have >= need else f"needs {need} bytes, and {have} are there"

    @property
    def path(self) -> Path:
        """The file with the leaf's bytes; of a leaf in pieces the first one. Bytes in a pickle have
        none.
        """
        if isinstance(self._place, Region | bytes):
            return self._place.path if isinstance(self._place, Region) else Path()
        return next((each.path for each in self._place), Path())

    @property
    def digest(self) -> str:
        """The digest that Holdfast's own checkpoints would record for these bytes; this
        reads them.
        """
        found = hasher()()
        for chunk in self.chunks():
            found.update(chunk)
        return str(found.hexdigest())

    def chunks(self) -> Iterator[bytearray]:
        """Yield the bytes in C order, a mebibyte at a time; only a leaf in one piece is not read as
        a whole for it.

        Raises:
            Damaged, StoreError: as `read`.
        """
        if isinstance(self._place, Region) and not self._stride and not self.why_too_short():
            yield from map(bytearray, self._place.pieces())
            return
        data = self.read()
        yield from (data[start : start + READ_BYTES] for start in range(0, len(data), READ_BYTES))

    def read(self) -> bytearray:
        """Return the bytes in C order, in fresh memory.

        Raises:
            Damaged: the file ends before.
            StoreError: this machine has less memory than that.
        """
        if self.size_bytes > _memory_bytes():
            raise StoreError(
                f"{self.path}: leaf {self.key!r} needs {self.size_bytes >> 20} MiB, more than this "
                "machine's memory; read it on a machine with more"
            )
        if lacking := self.why_too_short():
            raise Damaged(f"{self.path}: leaf {self.key!r}: {lacking}")
        if isinstance(self._place, Region | bytes):
            if self._stride and self.size_bytes > REPEATED * max(
                _place_size(self._place), REPEATED_BYTES
            ):
                raise StoreError(
                    f"leaf {self.key!r}: a view that repeats its "
                    f"bytes {REPEATED} times and more; not read"
                )
            data = _read_place(self._place)
            return (
                _gather_items(data, self.shape, self._stride, self.itemsize)
                if self._stride
                else data
            )
        found = _allocate(self.size_bytes)
        for piece in self._place:
            data = _read_place(piece.find())
            box = Box(piece.at, piece.shape)
            if len(data) != box.volume * self.itemsize:
                raise Damaged(
                    f"leaf {self.key!r}: the piece at {list(piece.at)} "
                    f"has {len(data)} bytes, not its shape's"
                )
            for start, offset, size in byte_ranges(self.shape, box, self.itemsize):
                found[start : start + size] = data[offset : offset + size]
        return found


def _place_size(place: Place) -> int:
    return place.size if isinstance(place, Region) else len(place)


def _read_place(place: Place) -> bytearray:
    if not isinstance(place, Region):
        return bytearray(place)
    data, at = _allocate(place.size), 0
    for piece in place.pieces():
        data[at : at + len(piece)] = piece
        at += len(piece)
    return data


def _gather_items(
    data: bytearray, shape: Sequence[int], stride: Sequence[int], item: int
) -> bytearray:
    """Return the items in C order."""
    if item == 16:  # no machine word: two halves, one after the other
        shape, stride, item = (*shape, 2), (*(2 * step for step in stride), 1), 8
    found, count = _allocate(math.prod(shape) * item), shape[-1]
    source, target = (memoryview(each).cast("B").cast(_WORDS[item]) for each in (data, found))
    for number, index in enumerate(itertools.product(*map(range, shape[:-1]))):
        start = sum(each * step for each, step in zip(index, stride, strict=False))
        row = target[number * count :][:count]
        if stride[-1]:
            row[:] = source[start :: stride[-1]][:count]
        else:
            row[:] = memoryview(bytes(source[start : start + 1]) * count).cast(_WORDS[item])
    return found


_WORDS: dict[int, Literal["B", "H", "I", "Q"]] = {1: "B", 2: "H", 4: "I", 8: "Q"}


def _allocate(size_bytes: int) -> bytearray:
    """Allocate memory for a tensor.

    Raises:
        StoreError: there is not so much memory.
    """
    try:
        return bytearray(size_bytes)
    except MemoryError as error:
        raise StoreError(f"{size_bytes >> 20} MiB of a tensor do not fit into memory") from error


def _memory_bytes() -> int:
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
