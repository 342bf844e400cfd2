"""Fixed records of binary files, as arrays: tokens, and rows of one layout."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import DTypeLike

from ...errors import UsageError
from .files import Files, FileSource, Paths
from .orders import Ids


class Records(FileSource):
    """Records of `dtype`, which may have fields or a shape, from files of nothing else; each file
    is a shard.

    A sample is one record; with `length` it is an array of so many, and of the first `overlap` of
    the next sample: `length=1024, overlap=1` of a file of tokens gives x and y. What is left at the
    end of a file and makes no sample is dropped.
    """

    def __init__(
        self,
        paths: Paths,
        dtype: DTypeLike,
        length: int | None = None,
        overlap: int = 0,
        header_bytes: int = 0,
    ) -> None:
        self._dtype = np.dtype(dtype)
        if self._dtype.hasobject or not self._dtype.itemsize:
            raise UsageError(f"records have a fixed size, and {self._dtype} has none")
        if (length is not None and length < 1) or overlap < 0 or header_bytes < 0:
            raise UsageError("length is at least 1, overlap and header_bytes at least 0")
        self._length, self._overlap, self._header = length, overlap, header_bytes
        files, lengths = Files(paths), []
        for file in files.all:
            records, rest = divmod(max(0, file.size - header_bytes), self._dtype.itemsize)
            if rest or 0 < file.size < header_bytes:
                raise UsageError(
                    f"{file.path}: {file.size} bytes are no whole number of {self._dtype} "
                    f"behind a header of {header_bytes} bytes"
                )
            lengths.append(max(0, records - overlap) // (length or 1))
        super().__init__(files, lengths)

    def _stretches(self, shard: int, rows: Ids) -> tuple[Ids, Ids]:  # noqa: ARG002  they are alike
        each, size = self._length or 1, self._dtype.itemsize
        begins = self._header + rows * (each * size)
        return begins, begins + (each + self._overlap) * size

    def _parse(self, shard: int, raw: bytes) -> Any:  # noqa: ARG002
        sample = np.frombuffer(raw, self._dtype).copy()  # which may be written to
        return sample if self._length else sample[0]
