"""Pages: page-aligned memory for bulk data, and copies into it that let other threads run."""

from __future__ import annotations

import ctypes
import mmap
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import TypeVar

T = TypeVar("T")
R = TypeVar("R")

PAGE = 4096  # what O_DIRECT wants of addresses, lengths and offsets; more on no disk that we have seen
_HUGE = 2 << 20  # below this there is no huge page to have
_WIPE_ON_FORK = 18  # madvise(2); mmap has no name for it
_FREEING_BYTES = 256 << 10  # a smaller copy is over before another thread could use the time


def pages(size: int) -> memoryview:
    """`size` bytes of zeros, rounded up to whole pages; the first write to each page costs a fault.

    Forked children get zeros in their place: a save in flight would pay for every page that it writes meanwhile. (Kept
    from them altogether, the place would go to something else of theirs, which the end of `whole` would take away.)
    """
    whole = mmap.mmap(-1, max(PAGE, rounded(size)), flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    for advice in (_WIPE_ON_FORK, *([mmap.MADV_HUGEPAGE] if size >= _HUGE and hasattr(mmap, "MADV_HUGEPAGE") else [])):
        with suppress(OSError):  # a kernel without it
            whole.madvise(advice)
    return memoryview(whole)


def rounded(size: int) -> int:
    """`size` rounded up to whole pages."""
    return -(-size // PAGE) * PAGE


def address(view: memoryview) -> int:
    """Where writable, non-empty memory begins."""
    return ctypes.addressof(ctypes.c_char.from_buffer(view))


def copy(target: memoryview, source: memoryview) -> None:
    """Copy `source` over `target`, which is as long; other threads run meanwhile when that is worth it."""
    if source.nbytes < _FREEING_BYTES or source.readonly:
        target[:] = source
    else:
        ctypes.memmove(address(target), address(source), source.nbytes)


def same(one: memoryview, other: memoryview) -> bool:
    """Whether two writable pieces of memory of one length hold the same bytes; other threads run meanwhile."""
    return not one.nbytes or _memcmp(address(one), address(other), one.nbytes) == 0


_memcmp = ctypes.CDLL(None).memcmp
_memcmp.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t]


def sample(data: memoryview) -> bytes:
    """A few bytes of it: where these differ, all need not be compared."""
    middle = data.nbytes // 2
    return bytes(data[:32]) + bytes(data[middle : middle + 32]) + bytes(data[-32:])


def side_by_side(function: Callable[[T], R], items: Sequence[T], threads: int) -> list[R]:
    """What `function` makes of each, by several threads if the system gives them."""
    from concurrent.futures import ThreadPoolExecutor

    with ThreadPoolExecutor(threads) as pool, suppress(RuntimeError):  # can't start new thread
        return list(pool.map(function, items))
    return list(map(function, items))
