"""Bulk I/O: writes big files past the page cache in several threads, and digests them meanwhile.

Besides `disk`, this is the only module that changes files. If a file system refuses O_DIRECT or
preallocation, it works without them. The bytes survive a power loss once `write` has returned, with
or without them.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import os
from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextvars import copy_context
from functools import partial
from itertools import accumulate, islice
from pathlib import Path
from typing import NamedTuple, Protocol, TypeGuard

from . import disk, modes
from .pages import PAGE, Data, address, allocate_pages, copy
from .threads import Hook, WorkerPool, nothing

CHUNK_BYTES = 4 << 20  # size of one request
THREADS = min(4, 2 * (os.cpu_count() or 1))  # requests under way at the same time
# chunks of our own at most, besides the caller's memory: 24 MiB, kept for the next file
BUFFERS = THREADS + 2
DIRECT_BYTES = 4 << 20  # a smaller file is written through the page cache, without threads

_REFUSED = (errno.EINVAL, errno.ENOSYS, errno.ENOTSUP, errno.EOPNOTSUPP)
_fallocate = getattr(ctypes.CDLL(None, use_errno=True), "fallocate", None)
# chunks of files that are written: fresh memory is slow to fill
_idle: deque[memoryview] = deque(maxlen=BUFFERS)


class Hash(Protocol):
    def update(self, data: memoryview, /) -> None: ...
    def hexdigest(self) -> str: ...


class MemoryRun(NamedTuple):
    """Pieces of a file that are adjacent in memory, or are distant and are gathered while they are
    written.

    `await_first` returns when so many of the bytes are there. It returns whether other threads are
    still filling the memory: while they are, digests are postponed.
    """

    data: Data
    sizes: Sequence[int]
    await_first: Callable[[int], bool] = lambda _: False


def write(
    path: Path,
    runs: Iterable[MemoryRun | Data],
    size: int,
    hasher: Callable[..., Hash],
    before_each: Hook = nothing,
) -> list[str]:
    """Create `path` with the `size` bytes of all runs, flushed to the device. Return the digests of
    its pieces.

    A run is an extent, or one piece that lies by itself. The digests are of the bytes that are
    given to the disk. `before_each` is called before each request; what it raises ends the write.

    Raises:
        FileExistsError: the name is in use.
        OSError: the file may exist, incomplete.
    """
    mode = modes.creation_mode(path, disk.FILE_MODE)
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode)
    writing = _FileWrite(descriptor, hasher, before_each)
    try:
        if size >= DIRECT_BYTES:
            _preallocate(descriptor, size, path)
            writing.start_direct_writes(THREADS)
        for run in runs:
            writing.add(run)
        writing.finish()
        os.fsync(descriptor)
    finally:
        writing.close()
        os.close(descriptor)
    return writing.digests


def release_chunks() -> None:
    """Free the chunks of memory that are kept between files."""
    _idle.clear()


class _FileWrite:
    """One file that is being written: `add` takes pieces, and chunks are sent to the disk."""

    def __init__(self, descriptor: int, hasher: Callable[..., Hash], before_each: Hook) -> None:
        self.digests: list[str] = []
        # a request returns our chunk, which is free again
        self._pool: WorkerPool[memoryview] | None = None
        self._direct = False
        self._descriptor, self._hasher, self._before_each = descriptor, hasher, before_each
        self._end = 0  # bytes that were sent
        self._chunk, self._filled = memoryview(b""), 0
        self._made, self._unused = 0, deque[memoryview]()  # chunks of our own, page-aligned

    def start_direct_writes(self, threads: int) -> None:
        """Write whole pages past the page cache from here on;
        if there are no threads, one request after the other.
        """
        self._direct = True
        _set_direct(self._descriptor, wanted=True)
        pool = WorkerPool[memoryview](threads)
        self._pool = (
            pool if pool.start_thread() else None
        )  # None if the system gives no more threads

    def close(self) -> None:
        if self._pool is not None:
            self._pool.close()

    def add(self, run: MemoryRun | Data) -> None:
        """Write the next pieces: directly from their memory if it starts at a page, else through
        a chunk of our own.
        """
        if not isinstance(run, MemoryRun):
            if 0 < run.nbytes < CHUNK_BYTES:
                self._gather(run, 0)
                return
            run = MemoryRun(run, [run.nbytes])
        as_it_lies = run.data if self._is_page_aligned(run.data) else memoryview(b"")
        whole = as_it_lies.nbytes // CHUNK_BYTES * CHUNK_BYTES
        ends = [*accumulate(run.sizes)]
        count = bisect_right(ends, whole)
        digesting = self._digest(as_it_lies, run.sizes[:count])
        for start in range(0, whole, CHUNK_BYTES):
            busy = run.await_first(start + CHUNK_BYTES)
            self._submit_write(as_it_lies[start : start + CHUNK_BYTES])
            # two for each request, until no digest is owed
            for _ in islice(digesting, 0 if busy else 2):
                pass
        for _ in digesting:
            pass
        start = ends[count - 1] if count else 0
        for end in ends[count:]:
            run.await_first(end)
            self._gather(run.data[start:end], max(0, whole - start))
            start = end

    def _digest(self, data: memoryview, sizes: Sequence[int]) -> Iterator[None]:
        """Digest pieces that lie one after another; yield after about each `CHUNK_BYTES`."""
        start = done = 0
        for size in sizes:
            piece = data[start : start + size]
            start, done = start + size, done + size
            digest = self._hasher(piece[:CHUNK_BYTES])
            for part in range(CHUNK_BYTES, size, CHUNK_BYTES):
                yield
                digest.update(piece[part : part + CHUNK_BYTES])
            self.digests.append(digest.hexdigest())
            if done >= CHUNK_BYTES:
                done = 0
                yield

    def _is_page_aligned(self, data: Data) -> TypeGuard[memoryview]:
        """Return whether the disk can read these bytes where they are: whole pages, at a page
        boundary of the file.
        """
        at_page = self._direct and not self._filled and self._end % PAGE == 0
        if not at_page or not isinstance(data, memoryview) or data.nbytes < CHUNK_BYTES:
            return False
        return not data.readonly and address(data) % PAGE == 0

    def _gather(self, piece: Data, sent: int) -> None:
        """Copy a piece, except its first `sent` bytes,
        into our chunk; send the chunk whenever it is full.
        """
        room = len(self._chunk) - self._filled
        if not sent and piece.nbytes <= room:
            self.digests.append(self._hasher(self._copy_to_chunk(piece)).hexdigest())
            return
        digest = self._hasher(*([piece[:sent]] if sent else []))
        while sent < piece.nbytes:
            if self._filled == len(self._chunk):
                self._next_chunk()
            part = self._copy_to_chunk(piece[sent : sent + len(self._chunk) - self._filled])
            digest.update(part)
            sent += part.nbytes
        self.digests.append(digest.hexdigest())

    def _copy_to_chunk(self, part: Data) -> memoryview:
        place = self._chunk[self._filled : self._filled + part.nbytes]
        copy(place, part)
        self._filled += part.nbytes
        return place

    def _next_chunk(self) -> None:
        if self._filled:
            self._submit_write(self._chunk, ours=True)
        if not self._unused and self._made < BUFFERS:
            self._made += 1
            try:
                chunk = _idle.pop()
            except IndexError:
                chunk = allocate_pages(CHUNK_BYTES)
            self._unused.append(chunk[:CHUNK_BYTES])
        while not self._unused:  # all chunks are being written
            self._await_writes()
        self._chunk, self._filled = self._unused.popleft(), 0

    def _submit_write(self, data: memoryview, *, ours: bool = False) -> None:
        self._before_each()
        offset, self._end = self._end, self._end + data.nbytes
        if self._pool is None:
            self._free(self._write_and_return(data, offset, ours=ours))
            return
        while self._pool.under_way >= 2 * THREADS:
            self._await_writes()
        self._pool.submit(
            partial(copy_context().run, self._write_and_return, data, offset, ours=ours)
        )

    def _await_writes(self, *, everything: bool = False) -> None:
        if self._pool is not None:
            for chunk in self._pool.results(everything=everything):
                self._free(chunk)

    def _free(self, chunk: memoryview) -> None:
        self._unused.extend([chunk] if chunk else [])

    def _write_and_return(self, data: memoryview, offset: int, *, ours: bool) -> memoryview:
        self._write(data, offset)
        return data if ours else memoryview(b"")

    def _write(self, data: memoryview, offset: int) -> None:
        refused = False
        while data:
            try:
                done = os.pwrite(self._descriptor, data, offset)
            except OSError as error:
                if refused or error.errno != errno.EINVAL:
                    raise
                # the file system refuses O_DIRECT after all, or after a short write: use the cache
                refused = True
                _set_direct(self._descriptor, wanted=False)
                continue
            data, offset = data[done:], offset + done

    def finish(self) -> None:
        """Write the last chunk. Its end, which does not fill a page,
        is written through the page cache.
        """
        aligned = self._filled // PAGE * PAGE if self._direct else 0
        tail = self._chunk[aligned : self._filled]
        if aligned:
            self._submit_write(self._chunk[:aligned])
        self._await_writes(everything=True)
        _set_direct(self._descriptor, wanted=False)
        if tail:
            self._submit_tail(tail)
        # after an error some may be in use
        _idle.extend(chunk for chunk in (*self._unused, self._chunk) if chunk)

    def _submit_tail(self, tail: memoryview) -> None:
        self._before_each()
        self._write(tail, self._end)


def _preallocate(descriptor: int, size: int, path: Path) -> None:
    """Reserve the file's bytes: a full disk is found now,
    and requests need not wait to extend the file.
    """
    while (
        _fallocate is not None
        and _fallocate(descriptor, 0, ctypes.c_int64(0), ctypes.c_int64(size)) != 0
    ):
        code = ctypes.get_errno()
        if code in _REFUSED:
            return
        if code != errno.EINTR:
            raise OSError(code, os.strerror(code), str(path))


def _set_direct(descriptor: int, *, wanted: bool) -> bool:
    """Turn O_DIRECT on or off. Return whether that changed anything."""
    flags, direct = fcntl.fcntl(descriptor, fcntl.F_GETFL), getattr(os, "O_DIRECT", 0)
    if not direct or bool(flags & direct) == wanted:
        return False
    try:
        fcntl.fcntl(descriptor, fcntl.F_SETFL, flags ^ direct)
    except OSError as error:
        if not wanted or error.errno not in _REFUSED:
            raise
        return False
    return True
