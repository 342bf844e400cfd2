"""Source: reads one file through the page cache, past it or as a map, or again from the medium.

A missing file is damage, or the checkpoint was removed.
"""

from __future__ import annotations

import ctypes
import errno
import mmap
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TypeVar

from .. import disk, scan
from ..errors import Damaged, NotFound, Unreadable
from ..pages import PAGE, address, allocate_pages
from .format import MANIFEST, MOST_BYTES

T = TypeVar("T")

DIRECT_BYTES = 1 << 20  # a smaller piece is not worth a read past the cache

_LOOKS = 4  # pages of a piece that are looked for in the page cache
_MOST_VIEWS = 1024  # the kernel's limit for one call: IOV_MAX
_NORESERVE = 0x4000  # MAP_NORESERVE
_REFUSED = (errno.EINVAL, errno.ENOSYS, errno.ENOTSUP, errno.EOPNOTSUPP)
_mincore = ctypes.CDLL(None).mincore


@contextmanager
def translate_read_errors(path: Path) -> Iterator[None]:
    """Raise an OSError in the block as Unreadable, unless the file is missing or is of another
    kind.

    Libraries that read through this module would report an OSError as damage.
    """
    try:
        yield
    except (FileNotFoundError, disk.NotPlain):
        raise
    except OSError as error:
        raise Unreadable(f"{error.filename or path}: cannot be read: {error.strerror}") from error


class FileReader:
    """A file open for reading: through the cache,
    and past it if it is `large` and the file system allows that.
    """

    def __init__(self, path: Path, *, cold: bool, large: bool) -> None:
        if cold:
            drop_cache(path)
        self._path = path
        self.descriptor = open_plain(path)
        self.direct: int | None = None
        self._opened = [self.descriptor]
        self._map: memoryview | None = None
        self._mapped = self._address = 0
        if large:
            with suppress(OSError):
                self.direct = disk.open_plain(path, direct=True)
                self._opened.append(self.direct)
            self._map = map_file(path)
        if self._map is not None:
            self._mapped, self._address = self._map.nbytes, address(self._map)

    def close(self) -> None:
        for descriptor in self._opened:
            os.close(descriptor)

    def is_uncached(self, offset: int, size: int) -> bool:
        """Return whether this is a large range that is mostly not in the page cache, judged by a
        few of its pages.

        Asking for each page would take a tenth of the time of a read. A read with RWF_NOWAIT would
        also
        show it, but makes the kernel read ahead what we are about to read past the cache.
        """
        if size < DIRECT_BYTES or offset + size > self._mapped:
            return False
        looks = [offset + size * number // _LOOKS for number in range(_LOOKS)]
        return 2 * sum(map(self._is_cached, looks)) < _LOOKS

    def _is_cached(self, offset: int) -> bool:
        """Return whether the page is in the page cache; true if the system cannot tell."""
        resident = ctypes.c_ubyte()
        place = ctypes.c_void_p(self._address + offset // PAGE * PAGE)
        return (
            _mincore(place, ctypes.c_size_t(1), ctypes.byref(resident)) != 0
            or resident.value & 1 == 1
        )

    def read(self, views: Sequence[memoryview], offset: int) -> int:
        """Fill `views` one after another.
        Return the offset at which the file, or the read, ended.
        """
        rest = list(views)
        with name_file_in_errors(self._path):
            while rest and (got := os.preadv(self.descriptor, rest[:_MOST_VIEWS], offset)):
                offset += got
                rest = _skip_bytes(rest, got)
        return offset

    def read_direct(self, block: memoryview, offset: int) -> int:
        """Read past the page cache, as far as that is possible. `block` and `offset` are whole
        pages.
        """
        direct, done = self.direct, 0
        try:
            with name_file_in_errors(self._path):
                while direct is not None and done < block.nbytes and done % PAGE == 0:
                    got = os.preadv(direct, [block[done:]], offset + done)
                    done += got
                    direct = direct if got else None
        except OSError as error:
            if error.errno not in _REFUSED:
                raise
            self.direct = None
        return self.read([block[done:]] if done < block.nbytes else [], offset + done)


@contextmanager
def name_file_in_errors(path: Path) -> Iterator[None]:
    """Let an OSError in the block name the file: an error of a descriptor does not."""
    try:
        yield
    except OSError as error:
        if error.filename is not None:
            raise
        raise OSError(error.errno, error.strerror, str(path)) from error


def _skip_bytes(views: list[memoryview], count: int) -> list[memoryview]:
    """Return `views` without their first `count` bytes."""
    for index, view in enumerate(views):
        if count < view.nbytes:
            return [view[count:], *views[index + 1 :]]
        count -= view.nbytes
    return []


def read_blocks(path: Path, size: int, *, cold: bool) -> Iterator[memoryview]:
    """Yield a file in pieces of `size` bytes; the last may be shorter. Each is valid until the
    next is requested.
    """
    file = FileReader(path, cold=cold, large=cold)
    try:
        block, offset = allocate_pages(min(size, os.fstat(file.descriptor).st_size)), 0
        while (
            end := file.read_direct(block, offset) if cold else file.read([block], offset)
        ) > offset:
            yield block[: end - offset]
            offset = end
    finally:
        file.close()


def map_file(path: Path) -> memoryview | None:
    """Map the file privately: bytes are read when they are used, and writing to them does not
    change the file.

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
        if path.name == MANIFEST or not scan.exists(path.parent / MANIFEST):
            raise NotFound(f"{path.parent}: no checkpoint is there (any more)") from error
        raise Damaged(f"{path}: the file is missing") from error


def read_whole(path: Path, most: int = MOST_BYTES) -> bytes:
    """Read all of a small file.

    Raises:
        Damaged: it has more than `most` bytes. None of them was read: they may not fit into memory.
    """
    with name_file_in_errors(path), open(open_plain(path), "rb", buffering=0) as file:
        size = os.fstat(file.fileno()).st_size
        if size > most:
            raise Damaged(f"{path}: {size} bytes long; whole, it has at most {most}")
        return file.readall()


def decode_file(path: Path, decode: Callable[[bytes, Path], T], most: int = MOST_BYTES) -> T:
    """Apply `decode` to a small file. If that raises Damaged,
    read the file again from the medium.
    """
    return retry_from_medium(path, lambda: decode(read_whole(path, most), path))


def drop_cache(path: Path) -> None:
    """Ask the kernel to read `path` from the medium next time."""
    with suppress(FileNotFoundError, disk.NotPlain):
        disk.drop_cached(path)


def retry_from_medium(
    path: Path, look: Callable[[], T], accept: Callable[[T], bool] = lambda _: True
) -> T:
    """Return the result of `look`. If it raises Damaged, drop the page cache and call it again."""
    with suppress(Damaged):
        found = look()
        if accept(found):
            return found
    drop_cache(path)
    return look()
