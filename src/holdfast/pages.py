"""Page-aligned memory for bulk data, copies into it that let other threads run, and
`DistantBytes`.
"""

from __future__ import annotations

import ctypes
import math
import mmap
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any, Protocol

Wait = Callable[[], object]  # waits until a copy that was begun is complete

# O_DIRECT needs this alignment of addresses, lengths and offsets; no disk that we have seen needs
# more
PAGE = 4096
_HUGE = 2 << 20  # the size of a huge page
_WIPE_ON_FORK = 18  # madvise(2); Python's mmap has no name for it
_USE_HUGE = getattr(mmap, "MADV_HUGEPAGE", None)  # Linux
_FREEING_BYTES = 256 << 10  # a smaller copy is over before another thread could use the time
# glibc copies more than a core's L2 cache at once by another way, which is slower
_MOVE_BYTES = 384 << 10
# a small move that takes longer waited for other threads: each may hold the interpreter for 5 ms
_CROWDED_S = 0.002
_CROWD_S = 1.0  # how long small moves are not tried again
_crowded = {"until": 0.0}  # on time.monotonic
PIECE_BYTES = 4 << 20  # size of a copy of distant bytes on the host
_TORN = threading.Lock()  # two threads may write the two halves of one item


def allocate_pages(size: int) -> memoryview:
    """Return `size` bytes of zeros, rounded up to whole pages; the first write to each page costs a
    page fault.

    A forked child sees zeros instead, so that writes during a save copy no pages for it. With
    MADV_DONTFORK a child might map other memory at this address, and unmapping `whole` would
    destroy it.
    """
    # only a map of whole huge pages is sure to begin at one
    unit = _HUGE if size >= _HUGE else PAGE
    whole = mmap.mmap(
        -1, max(unit, -(-size // unit) * unit), flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
    )
    for advice in (
        _WIPE_ON_FORK,
        *([_USE_HUGE] if _USE_HUGE is not None and size >= _HUGE else []),
    ):
        with suppress(OSError):  # an old kernel refuses it
            whole.madvise(advice)
    return memoryview(whole)[: max(PAGE, round_to_pages(size))]


def round_to_pages(size: int) -> int:
    """Return `size` rounded up to whole pages."""
    return -(-size // PAGE) * PAGE


def address(data: Data) -> int:
    """Return the address of writable, non-empty memory. TypeError for distant bytes: they have no
    host address.
    """
    return ctypes.addressof(ctypes.c_char.from_buffer(data))  # type: ignore[arg-type]


class LeafItems(Protocol):
    """The items of a leaf where they are: on a device, or in another order than C order."""

    @property
    def itemsize(self) -> int: ...
    def gather(self, start: int, target: memoryview) -> Wait | None:
        """Copy whole items from byte `start` on into `target`, in C order. Return None if that
        is done, else a wait.
        """

    def scatter(self, start: int, source: memoryview) -> Wait | None:
        """Copy `source` over the bytes from `start` on.
        Return None if that is done, else a wait.
        """


class DistantBytes:
    """Bytes that are not on the host in C order. A slice is `DistantBytes`, too; only copying
    gathers the bytes.
    """

    __slots__ = ("_items", "_start", "nbytes", "pin")

    def __init__(
        self,
        items: LeafItems,
        nbytes: int,
        start: int = 0,
        pin: Callable[[memoryview], Wait | None] | None = None,
    ) -> None:
        self._items, self._start, self.nbytes = items, start, nbytes
        self.pin = pin  # makes copies into some memory faster; returns a function that undoes that

    def __getitem__(self, part: slice) -> DistantBytes:
        start, stop, _ = part.indices(self.nbytes)
        return DistantBytes(self._items, max(0, stop - start), self._start + start, self.pin)

    def __bytes__(self) -> bytes:
        whole = bytearray(self.nbytes)
        copy(memoryview(whole), self)
        return bytes(whole)

    def gather(self, target: memoryview) -> Wait | None:
        """Copy all bytes into `target`, which has the same length.
        Return None if that is done, else a wait.
        """
        lead, whole = self._split()
        if lead:
            self._item(self._start, target[:lead])
        if lead + whole < self.nbytes:
            self._item(self._start + lead + whole, target[lead + whole :])
        return (
            self._items.gather(self._start + lead, target[lead : lead + whole]) if whole else None
        )

    def scatter(self, source: memoryview) -> Wait | None:
        """Overwrite these bytes with `source`, which has the same length."""
        lead, whole = self._split()
        if lead:
            self._patch(self._start, source[:lead])
        if lead + whole < self.nbytes:
            self._patch(self._start + lead + whole, source[lead + whole :])
        return (
            self._items.scatter(self._start + lead, source[lead : lead + whole]) if whole else None
        )

    def _split(self) -> tuple[int, int]:
        """Return two sizes: of the rest of an item that begins before these bytes, and of the
        whole items after it.
        """
        size = self._items.itemsize
        lead = min(-self._start % size, self.nbytes)
        return lead, (self.nbytes - lead) // size * size

    def _item(self, start: int, target: memoryview) -> memoryview:
        """Copy a part of one item, from `start` on, into `target`; return the whole item."""
        size = self._items.itemsize
        item, at = memoryview(bytearray(size)), start % size
        await_copy(self._items.gather(start - at, item))
        target[:] = item[at : at + target.nbytes]
        return item

    def _patch(self, start: int, source: memoryview) -> None:
        at = start % self._items.itemsize
        with _TORN:
            item = self._item(start, memoryview(bytearray(source.nbytes)))
            item[at : at + source.nbytes] = source
            await_copy(self._items.scatter(start - at, item))


Data = memoryview | DistantBytes


def slabs(array: Any, start: int, stop: int) -> Iterator[Any]:
    """Yield views of a tensor or an array that are,
    one after another, its items `start` to `stop` in C order.
    """
    if start >= stop:
        return
    each = math.prod(array.shape[1:])
    first, last = start // each, stop // each
    if first == last:  # both are in the same row
        yield from slabs(array[first], start - first * each, stop - first * each)
        return
    if start % each:
        yield from slabs(array[first], start % each, each)
        first += 1
    if first < last:
        yield array[first:last]
    if stop % each:
        yield from slabs(array[last], 0, stop % each)


def copy(target: memoryview, source: Data) -> None:
    """Copy `source` over `target`, which has the same length. Other threads run meanwhile if the
    copy is big enough.
    """
    wait = begin_copy(target, source)
    if wait is not None:
        wait()


def begin_copy(target: memoryview, source: Data) -> Wait | None:
    """Begin to copy `source` over `target`. Return None if that is done, else a function that
    waits for the end.
    """
    if isinstance(source, DistantBytes):
        return source.gather(target)
    if source.nbytes < _FREEING_BYTES or source.readonly:
        target[:] = source
    else:
        _copy_in_moves(address(target), address(source), source.nbytes)
    return None


def _copy_in_moves(to: int, whence: int, size: int) -> None:
    """Copy in small moves; in one move while threads compute in Python, because after each move one
    of them would run first.
    """
    start = 0
    while start < size:
        began = time.monotonic()
        crowded = began < _crowded["until"]
        part = size - start if crowded else min(_MOVE_BYTES, size - start)
        ctypes.memmove(to + start, whence + start, part)
        start += part
        if not crowded and time.monotonic() - began > _CROWDED_S:
            _crowded["until"] = time.monotonic() + _CROWD_S


def copy_over(target: Data, source: memoryview) -> None:
    """Copy `source` over `target`, which may be distant."""
    if isinstance(target, DistantBytes):
        await_copy(target.scatter(source))
    else:
        copy(target, source)


def await_copy(wait: Wait | None) -> None:
    """Wait for the copy if there is a wait."""
    if wait is not None:
        wait()


def byte_pieces(data: Data) -> Iterator[memoryview]:
    """Yield the bytes in order: memory as it is, distant bytes `PIECE_BYTES` at a time, each valid
    until the next.
    """
    if isinstance(data, memoryview):
        yield data
        return
    room = memoryview(bytearray(min(PIECE_BYTES, data.nbytes)))
    for start in range(0, data.nbytes, PIECE_BYTES):
        part = data[start : start + PIECE_BYTES]
        copy(room[: part.nbytes], part)
        yield room[: part.nbytes]


def is_equal(one: Data, other: Data) -> bool:
    """Whether two writable buffers of one length hold the same bytes;
    other threads run meanwhile.
    """
    for start in range(0, one.nbytes, PIECE_BYTES):
        part = slice(start, start + PIECE_BYTES)
        for mine, its in zip(byte_pieces(one[part]), byte_pieces(other[part]), strict=True):
            if _memcmp(address(mine), address(its), mine.nbytes):
                return False
    return True


_memcmp = ctypes.CDLL(None).memcmp
_memcmp.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t]


def sample_bytes(data: Data) -> bytes:
    """Return a few of its bytes. If these differ, the rest need not be compared."""
    middle = data.nbytes // 2
    return bytes(data[:32]) + bytes(data[middle : middle + 32]) + bytes(data[-32:])
