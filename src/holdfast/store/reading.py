"""Reading: reads many leaves at once in a few threads, directly into their target memory, and
checks every digest.

Files are read in pieces. Pieces in the page cache are copied from there. The others are read past
the cache, in large requests, into a small page-aligned buffer. If a file system refuses that, they
are read through the cache.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from operator import attrgetter
from pathlib import Path
from typing import Any, Protocol

from ..errors import Damaged
from ..pages import PAGE, Data, allocate_pages, copy_over, round_to_pages
from ..threads import Condition, Hook, WorkerGroup, nothing
from . import format, source
from .source import FileReader

PIECE_BYTES = 4 << 20  # the most that a thread reads at once
# each may need a buffer for one piece: the memory that a read takes
THREADS = max(2, min(3, os.cpu_count() or 1))
ALONE_BYTES = 1 << 20  # so many bytes are read before a second thread has started


class StoredBytes(Protocol):
    """Bytes of a file, with the digest that they were committed with."""

    @property
    def path(self) -> Path: ...
    @property
    def offset(self) -> int: ...
    @property
    def size_bytes(self) -> int: ...
    @property
    def digest(self) -> str: ...
    @property
    def key(self) -> str: ...


# a leaf, and writable memory of its size; None: the leaf is only checked
Wanted = tuple[StoredBytes, Data | None]


def read_leaves(wanted: Sequence[Wanted]) -> None:
    """Read all leaves into their memory. If a digest differs, the leaf is read once more from the
    medium.

    Raises:
        NotFound: the checkpoint was removed.
        Damaged: bytes differ from what was committed. Other leaves may have been read whole or in
            part.
    """
    for index in _read_errors(wanted, cold=False):
        for why in _read_errors([wanted[index]], cold=True).values():
            raise Damaged(why)


def find_damaged(
    stored: Sequence[StoredBytes], *, cold: bool, before_each: Hook = nothing
) -> Iterator[StoredBytes]:
    """Yield the leaves whose bytes differ from what was committed, in the given order; with `cold`,
    on the medium.

    `before_each` is called before each piece of a file; what it raises ends this.
    """
    for index in _read_errors(
        [(each, None) for each in stored], cold=cold, before_each=before_each
    ):
        if _read_errors([(stored[index], None)], cold=True, before_each=before_each):
            yield stored[index]


def _read_errors(
    wanted: Sequence[Wanted], *, cold: bool, before_each: Hook = nothing
) -> dict[int, str]:
    """Read each leaf once; return the errors by index. With `cold`, read from the medium and not
    the cache, if possible.
    """
    leaves = [_LeafRead(stored, data) for stored, data in wanted]
    todo = list(_file_ranges(leaves))
    few = sum(piece.size for piece in todo) <= ALONE_BYTES
    _ParallelRead(todo, before_each, cold=cold).run(1 if few else min(THREADS, len(todo)))
    return {index: leaf.wrong for index, leaf in enumerate(leaves) if leaf.wrong}


class _LeafRead:
    """A leaf that is being read. Its bytes are digested in order, whichever threads read them."""

    __slots__ = ("data", "digested", "hasher", "kind", "offset", "path", "size", "stored", "wrong")

    def __init__(self, stored: StoredBytes, data: Data | None) -> None:
        self.stored, self.data = stored, data
        if data is not None and data.nbytes != stored.size_bytes:
            raise Damaged(
                f"{stored.path}: leaf {stored.key!r} is "
                f"{stored.size_bytes} bytes long, not {data.nbytes}"
            )
        self.path, self.offset, self.size = stored.path, stored.offset, stored.size_bytes
        self.kind, self.digested = format.kind_of(stored.digest), 0
        self.hasher: Any = None
        self.wrong = ""
        if not self.size:
            self.check(format.digest(b"", self.kind))

    def digest_next(self, view: memoryview) -> None:
        """Digest the bytes that follow those digested before."""
        if view.nbytes == self.size:
            self.check(format.digest(view, self.kind))
            return
        if self.hasher is None:
            self.hasher = format.hasher(self.kind)()
        self.hasher.update(view)
        if self.digested + view.nbytes == self.size:
            self.check(self.hasher.hexdigest())

    def check(self, digest: str) -> None:
        if digest != self.stored.digest and not self.wrong:
            end = self.offset + self.size
            self.wrong = (
                f"{self.path}: bytes {self.offset}..{end}: "
                f"leaf {self.stored.key!r} changed since commit"
            )

    def end_early(self, end: int) -> None:
        """Record that the file ends before this leaf does."""
        at = max(end, self.offset)
        left = self.offset + self.size - at
        self.wrong = self.wrong or f"{self.path}: ends at byte {at}, {left} before its time"


_Part = tuple[_LeafRead, int, int]  # of a leaf: the bytes from the first to the second place


class _FileRange:
    """A range of one file that is read at once, and the leaves to which its bytes belong."""

    __slots__ = ("offset", "parts", "path", "size")

    def __init__(self, path: Path, offset: int) -> None:
        self.path, self.offset = path, offset
        self.size = 0
        self.parts: list[_Part] = []


def _file_ranges(leaves: Sequence[_LeafRead]) -> Iterator[_FileRange]:
    """Yield the contiguous ranges of the files, in order. A leaf is divided only if it needs more
    than one.
    """
    files: dict[Path, list[_LeafRead]] = {}
    for leaf in leaves:
        files.setdefault(leaf.path, []).append(leaf)
    for path, members in files.items():
        piece = _FileRange(path, 0)
        for leaf in sorted(members, key=attrgetter("offset")):
            start = 0
            while start < leaf.size:
                at = leaf.offset + start
                # whole pages: they are read once
                stop = min(leaf.size, start + PIECE_BYTES - at % PAGE)
                whole = piece.offset % PAGE + piece.size + stop - start
                if at != piece.offset + piece.size or whole > PIECE_BYTES:
                    if piece.size:
                        yield piece
                    piece = _FileRange(path, at)
                piece.parts.append((leaf, start, stop))
                piece.size += stop - start
                start = stop
        if piece.size:
            yield piece


class _ParallelRead:
    """Reads file ranges in several threads. Ranges begin in order: no thread waits for a range that
    no thread has begun.
    """

    def __init__(self, pieces: Sequence[_FileRange], before_each: Hook, *, cold: bool) -> None:
        self._todo, self._before_each, self._cold = iter(pieces), before_each, cold
        self._left: dict[Path, list[_FileRange]] = {}  # pieces of each file that are not read yet
        for piece in pieces:
            self._left.setdefault(piece.path, []).append(piece)
        self._large = {piece.path for piece in pieces if cold or piece.size >= source.DIRECT_BYTES}
        self._room = max(
            (round_to_pages(piece.offset % PAGE + piece.size) for piece in pieces), default=0
        )
        self._first: dict[Path, _FileRange] = {}  # the piece whose thread opens the file
        self._files: dict[Path, FileReader] = {}
        # rung when a file is open, a leaf is digested further, or the reading ends
        self._moved = Condition()
        self._stopped = False
        self._errors: list[BaseException] = []  # only the first one counts

    def run(self, threads: int) -> None:
        """Read all pieces in `threads` threads, including this one."""
        crew = WorkerGroup()
        try:
            for _ in range(threads - 1):
                # the system gives no more threads: continue with those that there are
                if not crew.start_worker(self._read_ranges, "holdfast-read"):
                    break
            self._read_ranges()
            crew.wait()
        finally:
            self._stopped = True
            crew.dismiss()  # the threads write into memory of the caller
            for file in self._files.values():
                file.close()
        if self._errors:
            # a reference to it here would keep files and memory until Python collects cycles
            raise self._errors.pop()

    def _read_ranges(self) -> None:
        # one buffer for each thread, made when the thread needs it
        memory = cache(lambda: allocate_pages(self._room))
        try:
            while (piece := self._next_range()) is not None and (
                file := self._open_file(piece)
            ) is not None:
                self._digest_in_order(piece, *self._read(file, piece, memory))
                self._close_after_last(piece)
        except BaseException as error:
            self._errors = self._errors or [error]
            self._stopped = True
            self._moved.notify_all()

    def _next_range(self) -> _FileRange | None:
        self._before_each()
        return None if self._stopped else next(self._todo, None)

    def _open_file(self, piece: _FileRange) -> FileReader | None:
        """Return the open file of this range; None if the reading has ended."""
        if self._first.setdefault(piece.path, piece) is piece:
            self._files[piece.path] = FileReader(
                piece.path, cold=self._cold, large=piece.path in self._large
            )
            self._moved.notify_all()
        self._moved.wait_for(lambda: piece.path in self._files or self._stopped)
        return self._files.get(piece.path)

    def _close_after_last(self, piece: _FileRange) -> None:
        """Close the file after its last piece:
        a checkpoint may have more files than a process may have open.
        """
        left = self._left[piece.path]
        left.pop()
        file = None if left else self._files.pop(piece.path, None)
        if file is not None:
            file.close()

    def _read(
        self, file: FileReader, piece: _FileRange, memory: Callable[[], memoryview]
    ) -> tuple[Sequence[memoryview], int]:
        """Read a piece's bytes into their targets.
        Return each part's bytes, and where the read of the file ended.
        """
        past = file.direct is not None and (
            self._cold or file.is_uncached(piece.offset, piece.size)
        )
        views = [
            leaf.data[start:stop] for leaf, start, stop in piece.parts if leaf.data is not None
        ]
        plain = [view for view in views if isinstance(view, memoryview)]
        if len(plain) == len(piece.parts) and not past:
            return plain, file.read(plain, piece.offset)
        lead = piece.offset % PAGE
        with source.name_file_in_errors(piece.path):  # the system may have no memory for the buffer
            block = memory()[: round_to_pages(lead + piece.size)]
        body = block[lead : lead + piece.size]
        end = (
            file.read_direct(block, piece.offset - lead)
            if past
            else file.read([body], piece.offset)
        )
        found = [
            body[leaf.offset + start - piece.offset :][: stop - start]
            for leaf, start, stop in piece.parts
        ]
        for (leaf, start, stop), view in zip(piece.parts, found, strict=True):
            if leaf.data is not None:
                copy_over(leaf.data[start:stop], view)
        return found, end

    def _digest_in_order(self, piece: _FileRange, views: Sequence[memoryview], end: int) -> None:
        """Digest the bytes that were read, up to `end` of the file. The pieces of a leaf are
        digested in order.
        """
        for (leaf, start, stop), view in zip(piece.parts, views, strict=True):
            whole = stop - start == leaf.size
            if not whole:
                self._await_turn(leaf, start)
            if leaf.offset + stop > end:
                leaf.end_early(end)
            elif whole or not self._stopped:
                leaf.digest_next(view)
            if not whole:
                leaf.digested = stop
                self._moved.notify_all()

    def _await_turn(self, leaf: _LeafRead, start: int) -> None:
        self._moved.wait_for(lambda: leaf.digested == start or self._stopped)
