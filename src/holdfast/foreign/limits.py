"""Limits: how much of a file is read, so that a hostile one costs little memory and time."""

from __future__ import annotations

from typing import BinaryIO

from ..errors import StoreError

TEXT_BYTES = 64 << 20  # of a JSON text: far more than any that describes tensors
PICKLE_BYTES = 128 << 20
DIRECTORY_BYTES = 16 << 20  # of a zip file's directory: about 200,000 members
INFLATED_BYTES = 1 << 30  # of all compressed members of one file
VALUES = 1_000_000  # in one state, with those that a pickle repeats
OPCODES = 4_000_000  # of one pickle: some seconds
READ_BYTES = 1 << 20  # at once, of bytes that are only checked


class Bounded:
    """Wraps a file; at most `PICKLE_BYTES` bytes can be read from it."""

    def __init__(self, file: BinaryIO, where: object) -> None:
        self._file, self._left, self._where = file, PICKLE_BYTES, where

    def read(self, size: int = -1) -> bytes:
        wanted = self._left + 1 if size < 0 else min(size, self._left + 1)
        return self._counted(self._file.read(wanted))

    def readline(self) -> bytes:
        return self._counted(self._file.readline(self._left + 1))

    def _counted(self, data: bytes) -> bytes:
        self._left -= len(data)
        if self._left < 0:
            raise StoreError(
                f"{self._where}: more than {PICKLE_BYTES >> 20} "
                "MiB of what is no tensor; it is not read"
            )
        return data
