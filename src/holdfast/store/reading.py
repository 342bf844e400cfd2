"""Reading: many leaves at once, by a few threads, straight into the memory where they belong, every digest checked.

Files are read in pieces. Pieces in the page cache are copied from there. The others are read past the cache, in large
requests, into a little page-aligned memory. Where a file system refuses that, they are read through the cache.
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

PIECE_BYTES = 4 << 20  # of a file, from a multiple of this on
THREADS = 3  # each may need the memory of one piece: the most that a reading takes besides its target
DIRECT_BYTES = 1 << 20  # a smaller piece is not worth the way past the cache
ALONE_BYTES = 1 << 20  # are read before a second thread has started

_REFUSED = (errno.EINVAL, errno.ENOSYS, errno.ENOTSUP, errno.EOPNOTSUPP)
_MOST_VIEWS = 1024  # that the kernel takes at once: IOV_MAX
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


Wanted = tuple[Located, Data | None]  # a leaf, and writable memory of its size; None: it is only checked


def fill(wanted: Sequence[Wanted]) -> None:
    """Read all of them into their memory. What lacks its digest is read once more, cold, before it counts as damage.

    Raises:
        NotFound: the checkpoint is there no more.
        Damaged: bytes differ from what was committed. Other leaves may be in place, or be half so.
    """
    for index in _failures(wanted, cold=False):
        for why in _failures([wanted[index]], cold=True).values():
            raise Damaged(why)


def damaged(stored: Sequence[Located], *, cold: bool, before_each: Hook = nothing) -> Iterator[Located]:
    """Those whose bytes are not what was committed, in the order given; with `cold`, on the medium.

    What `before_each` piece of a file raises ends it.
    """
    for index in _failures([(each, None) for each in stored], cold=cold, before_each=before_each):
        if _failures([(stored[index], None)], cold=True, before_each=before_each):
            yield stored[index]


def _failures(wanted: Sequence[Wanted], *, cold: bool, before_each: Hook = nothing) -> dict[int, str]:
    """Read each once; by index, what is wrong. With `cold`, from the medium and not the cache, if possible."""
    leaves = [_Leaf(stored, data) for stored, data in wanted]
    todo = list(_pieces(leaves))
    few = sum(piece.size for piece in todo) <= ALONE_BYTES
    _Reading(todo, before_each, cold=cold).run(1 if few else min(THREADS, len(todo)))
    return {index: leaf.wrong for index, leaf in enumerate(leaves) if leaf.wrong}


class _Leaf:
    """A leaf on its way into memory: its digest follows its bytes in order, whichever thread has read them."""

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
        """The bytes that follow on those that were taken before."""
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
        """The file ends before this leaf does."""
        at = max(end, self.offset)
        left = self.offset + self.size - at
        self.wrong = self.wrong or f"{self.path}: ends at byte {at}, {left} before its time"


class _Part(NamedTuple):
    """Bytes `start` to `stop` of a leaf."""

    leaf: _Leaf
    start: int
    stop: int


class _Piece:
    """Bytes of one file that are read at once, and whose they are."""

    __slots__ = ("offset", "parts", "path", "size")

    def __init__(self, path: Path, offset: int) -> None:
        self.path, self.offset = path, offset
        self.size = 0
        self.parts: list[_Part] = []


def _pieces(leaves: Sequence[_Leaf]) -> Iterator[_Piece]:
    """The files' stretches without a gap, cut at multiples of `PIECE_BYTES`."""
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
    """Pieces that are being read. They are begun in order, so that no thread waits for a piece that none has begun."""

    def __init__(self, pieces: Sequence[_Piece], before_each: Hook, *, cold: bool) -> None:
        self._todo, self._before_each, self._cold = iter(pieces), before_each, cold
        self._left: dict[Path, list[_Piece]] = {}  # of each file: as many as were not read
        for piece in pieces:
            self._left.setdefault(piece.path, []).append(piece)
        self._large = {piece.path for piece in pieces if cold or piece.size >= DIRECT_BYTES}
        self._room = max((rounded(piece.offset % PAGE + piece.size) for piece in pieces), default=0)
        self._first: dict[Path, _Piece] = {}  # whose thread opens the file
        self._files: dict[Path, _File] = {}
        self._moved = Condition()  # a file is open, a leaf digested further, or all is over
        self._stopped = False
        self._errors: list[BaseException] = []  # the first

    def run(self, threads: int) -> None:
        """Read all pieces, in so many threads, of which this is one."""
        crew = WorkerGroup()
        try:
            for _ in range(threads - 1):
                if not crew.begin(self._work, "holdfast-read"):  # those that there are will do
                    break
            self._work()
            crew.wait()
        finally:
            self._stopped = True
            crew.dismiss()  # they write into memory that is the caller's
            for file in self._files.values():
                file.close()
        if self._errors:
            raise self._errors.pop()  # a reference to it here would keep files and memory until Python collects cycles

    def _work(self) -> None:
        memory = cache(lambda: pages(self._room))  # of one thread, once it needs it
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
        """The piece's file; None: all is over."""
        if self._first.setdefault(piece.path, piece) is piece:
            self._files[piece.path] = _File(piece.path, cold=self._cold, large=piece.path in self._large)
            self._moved.ring()
        self._moved.wait_for(lambda: piece.path in self._files or self._stopped)
        return self._files.get(piece.path)

    def _leave(self, piece: _Piece) -> None:
        """A checkpoint may have more files than a process may have open."""
        left = self._left[piece.path]
        left.pop()
        file = None if left else self._files.pop(piece.path, None)
        if file is not None:
            file.close()

    def _read(self, file: _File, piece: _Piece, memory: Callable[[], memoryview]) -> tuple[Sequence[memoryview], int]:
        """Bring a piece's bytes to where they belong; those of each part, and where in the file the reading ended."""
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
        """Digest what was read, up to `end` of the file; leaves in several pieces wait for their turn."""
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
    """A file open for reading: through the cache, and past it where it is `large` and that is possible."""

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
        """Whether this is much, and most of it is not in the page cache.

        A read with RWF_NOWAIT would tell, too, and make the kernel read ahead what we are about to read past it.
        """
        if size < DIRECT_BYTES or self._map is None or offset + size > self._map.nbytes:
            return False
        begin = offset // PAGE * PAGE
        resident = (ctypes.c_ubyte * (rounded(offset + size - begin) // PAGE))()
        place = ctypes.c_void_p(address(self._map[begin:]))
        unknown = _mincore(place, ctypes.c_size_t(offset + size - begin), resident)
        return not unknown and 2 * bytes(resident).count(1) < len(resident)

    def read(self, views: Sequence[memoryview], offset: int) -> int:
        """Fill `views` one after another; where the file ended, or the reading."""
        rest = list(views)
        while rest and (got := os.preadv(self.descriptor, rest[:_MOST_VIEWS], offset)):
            offset += got
            rest = _after(rest, got)
        return offset

    def read_past(self, block: memoryview, offset: int) -> int:
        """As `read`, past the cache while that goes; `block` and `offset` are whole pages."""
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
    """`views` without their first `count` bytes."""
    for index, view in enumerate(views):
        if count < view.nbytes:
            return [view[count:], *views[index + 1 :]]
        count -= view.nbytes
    return []


def blocks(path: Path, size: int, *, cold: bool) -> Iterator[memoryview]:
    """The pieces of a file, `size` bytes long but for the last; each is good until the next is asked for."""
    file = _File(path, cold=cold, large=cold)
    try:
        block, offset = pages(min(size, os.fstat(file.descriptor).st_size)), 0
        while (end := file.read_past(block, offset) if cold else file.read([block], offset)) > offset:
            yield block[: end - offset]
            offset = end
    finally:
        file.close()


def mapped(path: Path) -> memoryview | None:
    """The file's bytes, private: none is read before it is looked at, and what is written to them stays here.

    None: the file is empty, or its file system has no maps.
    """
    descriptor = open_plain(path)
    try:
        return memoryview(mmap.mmap(descriptor, 0, flags=mmap.MAP_PRIVATE | _NORESERVE))
    except (OSError, ValueError):
        return None
    finally:
        os.close(descriptor)


def open_plain(path: Path) -> int:
    """A descriptor that reads `path`.

    Raises:
        NotFound: no checkpoint is there any more.
        Damaged: the file is missing, or no plain file.
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
    """All of a small file."""
    with open(open_plain(path), "rb", buffering=0) as file:
        return file.readall()


def decoded(path: Path, decode: Callable[[bytes, Path], T]) -> T:
    """What `decode` makes of a small file; if that is damage, of its bytes on the medium."""
    return twice(path, lambda: decode(whole(path), path))


def forget(path: Path) -> None:
    """Ask that the next read of `path` comes from the medium."""
    with suppress(FileNotFoundError, disk.NotPlain):
        disk.forget_cached(path)


def twice(path: Path, look: Callable[[], T], accept: Callable[[T], bool] = lambda _: True) -> T:
    """The result of `look`. If that is damage, its result on the medium instead of in the page cache."""
    with suppress(Damaged):
        found = look()
        if accept(found):
            return found
    forget(path)
    return look()
