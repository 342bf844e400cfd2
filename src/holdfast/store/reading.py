"""Reading: reads many leaves at once in a few threads, directly into their target memory, and checks every digest.

Files are read in pieces. Pieces in the page cache are copied from there. The others are read past the cache, in large
requests, into a small page-aligned buffer. If a file system refuses that, they are read through the cache.
"""

from __future__ import annotations

import ctypes
import errno
import mmap
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple, Protocol, TypeVar

from .. import disk
from ..errors import Damaged, NotFound
from ..pages import PAGE, Data, address, pages, put, rounded
from ..threads import Condition, Hook, WorkerGroup, nothing
from . import format
from .format import MANIFEST

T = TypeVar("T")

PIECE_BYTES = 4 << 20  # of a file; each piece starts at a multiple of this
THREADS = 3  # each may need a buffer for one piece: the most memory that a read takes besides its target
DIRECT_BYTES = 1 << 20  # a smaller piece is not worth a read past the cache
ALONE_BYTES = 1 << 20  # so many bytes are read before a second thread has started

_REFUSED = (errno.EINVAL, errno.ENOSYS, errno.ENOTSUP, errno.EOPNOTSUPP)
_MOST_VIEWS = 1024  # the kernel's limit for one call: IOV_MAX
_NORESERVE = 0x4000  # MAP_NORESERVE
_mincore = ctypes.CDLL(None).mincore


class Located(Protocol):
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


Wanted = tuple[Located, Data | None]  # a leaf, and writable memory of its size; None: the leaf is only checked


def fill(wanted: Sequence[Wanted]) -> None:
    """Read all leaves into their memory. If a digest differs, the leaf is read once more from the medium.

    Raises:
        NotFound: the checkpoint was removed.
        Damaged: bytes differ from what was committed. Other leaves may have been read whole or in part.
    """
    for index in _failures(wanted, cold=False):
        for why in _failures([wanted[index]], cold=True).values():
            raise Damaged(why)


def damaged(stored: Sequence[Located], *, cold: bool, before_each: Hook = nothing) -> Iterator[Located]:
    """Yield those whose bytes differ from what was committed, in the given order; with `cold`, on the medium.

    `before_each` is called before each piece of a file; what it raises ends this.
    """
    for index in _failures([(each, None) for each in stored], cold=cold, before_each=before_each):
        if _failures([(stored[index], None)], cold=True, before_each=before_each):
            yield stored[index]


def _failures(wanted: Sequence[Wanted], *, cold: bool, before_each: Hook = nothing) -> dict[int, str]:
    """Read each once; return the errors by index. With `cold`, read from the medium and not the cache, if possible."""
    leaves = [_Leaf(stored, data) for stored, data in wanted]
    todo = list(_pieces(leaves))
    few = sum(piece.size for piece in todo) <= ALONE_BYTES
    _Reading(todo, before_each, cold=cold).run(1 if few else min(THREADS, len(todo)))
    return {index: leaf.wrong for index, leaf in enumerate(leaves) if leaf.wrong}


class _Leaf:
    """A leaf that is being read. Its bytes are digested in order, whichever thread has read them."""

    __slots__ = ("data", "digested", "hasher", "offset", "path", "size", "stored", "wrong")

    def __init__(self, stored: Located, data: Data | None) -> None:
        self.stored, self.data = stored, data
        if data is not None and data.nbytes != stored.size_bytes:
            raise ValueError(f"leaf {stored.key!r} is {stored.size_bytes} bytes long, not {data.nbytes}")
        self.path, self.offset, self.size = stored.path, stored.offset, stored.size_bytes
        self.digested = 0
        self.hasher: Any = None
        self.wrong = ""
        if not self.size:
            self.check(format.digest(b""))

    def take(self, view: memoryview) -> None:
        """Digest the bytes that follow those digested before."""
        if view.nbytes == self.size:
            self.check(format.digest(view))
            return
        if self.hasher is None:
            self.hasher = format.hasher()
        self.hasher.update(view)
        if self.digested + view.nbytes == self.size:
            self.check(self.hasher.hexdigest())

    def check(self, digest: str) -> None:
        if digest != self.stored.digest and not self.wrong:
            end = self.offset + self.size
            self.wrong = f"{self.path}: bytes {self.offset}..{end}: leaf {self.stored.key!r} changed since commit"

    def end_early(self, end: int) -> None:
        """Record that the file ends before this leaf does."""
        at = max(end, self.offset)
        left = self.offset + self.size - at
        self.wrong = self.wrong or f"{self.path}: ends at byte {at}, {left} before its time"


class _Part(NamedTuple):
    """Bytes `start` to `stop` of a leaf."""

    leaf: _Leaf
    start: int
    stop: int


class _Piece:
    """Bytes of one file that are read at once, and the leaves that they belong to."""

    __slots__ = ("offset", "parts", "path", "size")

    def __init__(self, path: Path, offset: int) -> None:
        self.path, self.offset = path, offset
        self.size = 0
        self.parts: list[_Part] = []


def _pieces(leaves: Sequence[_Leaf]) -> Iterator[_Piece]:
    """The contiguous ranges of the files, cut at multiples of `PIECE_BYTES`."""
    files: dict[Path, list[_Leaf]] = {}
    for leaf in leaves:
        files.setdefault(leaf.path, []).append(leaf)
    for path, members in files.items():
        piece = _Piece(path, 0)
        for leaf in sorted(members, key=lambda leaf: leaf.offset):
            start = 0
            while start < leaf.size:
                at = leaf.offset + start
                if at != piece.offset + piece.size or at % PIECE_BYTES == 0:
                    if piece.size:
                        yield piece
                    piece = _Piece(path, at)
                stop = min(leaf.size, start + PIECE_BYTES - at % PIECE_BYTES)
                piece.parts.append(_Part(leaf, start, stop))
                piece.size += stop - start
                start = stop
        if piece.size:
            yield piece


class _Reading:
    """Pieces that are being read. They are begun in order: no thread waits for a piece that no thread has begun."""

    def __init__(self, pieces: Sequence[_Piece], before_each: Hook, *, cold: bool) -> None:
        self._todo, self._before_each, self._cold = iter(pieces), before_each, cold
        self._left: dict[Path, list[_Piece]] = {}  # pieces of each file that are not read yet
        for piece in pieces:
            self._left.setdefault(piece.path, []).append(piece)
        self._large = {piece.path for piece in pieces if cold or piece.size >= DIRECT_BYTES}
        self._room = max((rounded(piece.offset % PAGE + piece.size) for piece in pieces), default=0)
        self._first: dict[Path, _Piece] = {}  # the piece whose thread opens the file
        self._files: dict[Path, _File] = {}
        self._moved = Condition()  # rung when a file is open, a leaf is digested further, or the reading ends
        self._stopped = False
        self._errors: list[BaseException] = []  # only the first one counts

    def run(self, threads: int) -> None:
        """Read all pieces in `threads` threads, including this one."""
        crew = WorkerGroup()
        try:
            for _ in range(threads - 1):
                # the system gives no more threads: continue with those that there are
                if not crew.begin(self._work, "holdfast-read"):
                    break
            self._work()
            crew.wait()
        finally:
            self._stopped = True
            crew.dismiss()  # the threads write into memory of the caller
            for file in self._files.values():
                file.close()
        if self._errors:
            raise self._errors.pop()  # a reference to it here would keep files and memory until Python collects cycles

    def _work(self) -> None:
        memory = cache(lambda: pages(self._room))  # one buffer for each thread, made when the thread needs it
        try:
            while (piece := self._next()) is not None and (file := self._open(piece)) is not None:
                self._take(piece, *self._read(file, piece, memory))
                self._leave(piece)
        except BaseException as error:
            self._errors = self._errors or [error]
            self._stopped = True
            self._moved.ring()

    def _next(self) -> _Piece | None:
        self._before_each()
        return None if self._stopped else next(self._todo, None)

    def _open(self, piece: _Piece) -> _File | None:
        """Return the piece's open file; None if the reading has ended."""
        if self._first.setdefault(piece.path, piece) is piece:
            self._files[piece.path] = _File(piece.path, cold=self._cold, large=piece.path in self._large)
            self._moved.ring()
        self._moved.wait_for(lambda: piece.path in self._files or self._stopped)
        return self._files.get(piece.path)

    def _leave(self, piece: _Piece) -> None:
        """Close the file after its last piece: a checkpoint may have more files than a process may have open."""
        left = self._left[piece.path]
        left.pop()
        file = None if left else self._files.pop(piece.path, None)
        if file is not None:
            file.close()

    def _read(self, file: _File, piece: _Piece, memory: Callable[[], memoryview]) -> tuple[Sequence[memoryview], int]:
        """Read a piece's bytes into their targets. Return each part's bytes, and where the read of the file ended."""
        past = file.direct is not None and (self._cold or file.is_far(piece.offset, piece.size))
        views = [leaf.data[start:stop] for leaf, start, stop in piece.parts if leaf.data is not None]
        plain = [view for view in views if isinstance(view, memoryview)]
        if len(plain) == len(piece.parts) and not past:
            return plain, file.read(plain, piece.offset)
        lead = piece.offset % PAGE
        block = memory()[: rounded(lead + piece.size)]
        body = block[lead : lead + piece.size]
        end = file.read_past(block, piece.offset - lead) if past else file.read([body], piece.offset)
        found = [body[leaf.offset + start - piece.offset :][: stop - start] for leaf, start, stop in piece.parts]
        for (leaf, start, stop), view in zip(piece.parts, found, strict=True):
            if leaf.data is not None:
                put(leaf.data[start:stop], view)
        return found, end

    def _take(self, piece: _Piece, views: Sequence[memoryview], end: int) -> None:
        """Digest the bytes that were read, up to `end` of the file. The pieces of a leaf are digested in order."""
        for (leaf, start, stop), view in zip(piece.parts, views, strict=True):
            whole = stop - start == leaf.size
            if not whole:
                self._await_turn(leaf, start)
            if leaf.offset + stop > end:
                leaf.end_early(end)
            elif whole or not self._stopped:
                leaf.take(view)
            if not whole:
                leaf.digested = stop
                self._moved.ring()

    def _await_turn(self, leaf: _Leaf, start: int) -> None:
        self._moved.wait_for(lambda: leaf.digested == start or self._stopped)


class _File:
    """A file open for reading: through the cache, and past it if it is `large` and the file system allows that."""

    def __init__(self, path: Path, *, cold: bool, large: bool) -> None:
        if cold:
            forget(path)
        self.descriptor = open_plain(path)
        self.direct: int | None = None
        self._opened = [self.descriptor]
        self._map: memoryview | None = None
        if large:
            with suppress(OSError):
                self.direct = disk.open_plain(path, direct=True)
                self._opened.append(self.direct)
            self._map = mapped(path)

    def close(self) -> None:
        for descriptor in self._opened:
            os.close(descriptor)

    def is_far(self, offset: int, size: int) -> bool:
        """Whether these are many bytes, most of them not in the page cache.

        A read with RWF_NOWAIT would tell, too. But it makes the kernel read ahead what we are about to read past the
        cache.
        """
        if size < DIRECT_BYTES or self._map is None or offset + size > self._map.nbytes:
            return False
        begin = offset // PAGE * PAGE
        resident = (ctypes.c_ubyte * (rounded(offset + size - begin) // PAGE))()
        place = ctypes.c_void_p(address(self._map[begin:]))
        unknown = _mincore(place, ctypes.c_size_t(offset + size - begin), resident)
        return not unknown and 2 * bytes(resident).count(1) < len(resident)

    def read(self, views: Sequence[memoryview], offset: int) -> int:
        """Fill `views` one after another. Return the offset at which the file, or the read, ended."""
        rest = list(views)
        while rest and (got := os.preadv(self.descriptor, rest[:_MOST_VIEWS], offset)):
            offset += got
            rest = _after(rest, got)
        return offset

    def read_past(self, block: memoryview, offset: int) -> int:
        """Read past the cache while that is possible. `block` and `offset` are whole pages."""
        direct, done = self.direct, 0
        try:
            while direct is not None and done < block.nbytes and done % PAGE == 0:
                got = os.preadv(direct, [block[done:]], offset + done)
                done += got
                direct = direct if got else None
        except OSError as error:
            if error.errno not in _REFUSED:
                raise
            self.direct = None
        return self.read([block[done:]] if done < block.nbytes else [], offset + done)


def _after(views: list[memoryview], count: int) -> list[memoryview]:
    """Return `views` without their first `count` bytes."""
    for index, view in enumerate(views):
        if count < view.nbytes:
            return [view[count:], *views[index + 1 :]]
        count -= view.nbytes
    return []


def blocks(path: Path, size: int, *, cold: bool) -> Iterator[memoryview]:
    """Yield a file in pieces of `size` bytes; the last may be shorter. Each is valid until the next is requested."""
    file = _File(path, cold=cold, large=cold)
    try:
        block, offset = pages(min(size, os.fstat(file.descriptor).st_size)), 0
        while (end := file.read_past(block, offset) if cold else file.read([block], offset)) > offset:
            yield block[: end - offset]
            offset = end
    finally:
        file.close()


def mapped(path: Path) -> memoryview | None:
    """Map the file privately: bytes are read when they are used, and writing to them does not change the file.

    Return None if the file is empty, or its file system has no maps.
    """
    descriptor = open_plain(path)
    try:
        return memoryview(mmap.mmap(descriptor, 0, flags=mmap.MAP_PRIVATE | _NORESERVE))
    except (OSError, ValueError):
        return None
    finally:
        os.close(descriptor)


def open_plain(path: Path) -> int:
    """Return a descriptor that reads `path`.

    Raises:
        NotFound: the checkpoint was removed.
        Damaged: the file is missing, or is not a plain file.
    """
    try:
        return disk.open_plain(path)
    except disk.NotPlain as error:
        raise Damaged(f"{path}: not a plain file, as was committed") from error
    except FileNotFoundError as error:
        if path.name == MANIFEST or not (path.parent / MANIFEST).exists():
            raise NotFound(f"{path.parent}: no checkpoint is there (any more)") from error
        raise Damaged(f"{path}: the file is missing") from error


def whole(path: Path) -> bytes:
    """Read all of a small file."""
    with open(open_plain(path), "rb", buffering=0) as file:
        return file.readall()


def decoded(path: Path, decode: Callable[[bytes, Path], T]) -> T:
    """Apply `decode` to a small file. If that raises Damaged, read the file again from the medium."""
    return twice(path, lambda: decode(whole(path), path))


def forget(path: Path) -> None:
    """Ask the kernel to read `path` from the medium next time."""
    with suppress(FileNotFoundError, disk.NotPlain):
        disk.forget_cached(path)


def twice(path: Path, look: Callable[[], T], accept: Callable[[T], bool] = lambda _: True) -> T:
    """Return the result of `look`. If it is damage, drop the page cache and look again."""
    with suppress(Damaged):
        found = look()
        if accept(found):
            return found
    forget(path)
    return look()
