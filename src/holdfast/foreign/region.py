"""Regions: bytes of a plain file, read on demand."""

from __future__ import annotations

import io
import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO, NamedTuple

from .. import disk
from ..errors import Damaged, StoreError
from ..store.source import translate_read_errors
from .limits import READ_BYTES, TEXT_BYTES


class Region(NamedTuple):
    """The bytes from `start` on of the file `path`."""

    path: Path
    start: int
    size: int

    def pieces(self) -> Iterator[memoryview]:
        """Yield the bytes; each piece is valid until the next one is requested.

        Raises:
            Damaged: the file ends before.
            Unreadable: it cannot be read.
        """
        with translate_read_errors(self.path), open_file(self.path) as file:
            file.seek(self.start)
            buffer, left = memoryview(bytearray(min(READ_BYTES, self.size))), self.size
            while left:
                got = file.readinto(buffer[: min(left, len(buffer))])
                if not got:
                    raise Damaged(
                        f"{self.path}: ends at byte {self.start + self.size - left}, "
                        f"{left} before its time"
                    )
                left -= got
                yield buffer[:got]

    def subregion(self, offset: int, size: int) -> Region:
        return Region(self.path, self.start + offset, size)

    def slice(self, start: int, stop: int) -> Region:
        """Return the bytes from `start` to `stop`, as far as they exist."""
        inside = min(start, self.size)
        return self.subregion(inside, max(0, min(stop, self.size) - inside))

    def open(self) -> BinaryIO:
        """Return a file object that consists of these bytes only."""
        return io.BufferedReader(_Window(self))


class _Window(io.RawIOBase):
    def __init__(self, region: Region) -> None:
        self._file, self._region, self._at = open_file(region.path), region, 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        self._at = max(0, offset + (0, self._at, self._region.size)[whence])
        return self._at

    def tell(self) -> int:
        return self._at

    def readinto(self, buffer: memoryview) -> int:  # type: ignore[override]
        room = memoryview(buffer)[: max(0, self._region.size - self._at)]
        with translate_read_errors(self._region.path):
            got = (
                os.preadv(self._file.fileno(), [room], self._region.start + self._at)
                if room.nbytes
                else 0
            )
        self._at += got
        return got

    def close(self) -> None:
        with suppress(AttributeError):
            self._file.close()
        super().close()


def open_file(path: Path) -> io.FileIO:
    """Open a plain file, or a link to one: caches of models consist of links.

    Raises:
        Damaged: there is none.
        Unreadable: it cannot be opened.
    """
    try:
        with translate_read_errors(path):
            return io.FileIO(disk.open_plain(path, follow=True), "rb")
    except disk.NotPlain as error:
        raise Damaged(f"{path}: not a plain file") from error
    except FileNotFoundError as error:
        raise Damaged(f"{path}: missing") from error


def whole_file(path: Path) -> Region:
    """Return all bytes of a file."""
    with open_file(path) as file:
        return Region(path, 0, os.fstat(file.fileno()).st_size)


def read_small(region: Region) -> bytes:
    """Return all bytes of a region that holds a short text.

    Raises:
        StoreError: it is too long for that.
    """
    if region.size > TEXT_BYTES:
        raise StoreError(f"{region.path}: {region.size >> 20} MiB of text, more than is read")
    return b"".join(map(bytes, region.pieces()))
