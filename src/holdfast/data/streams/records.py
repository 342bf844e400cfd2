"""Fixed records of binary files, as arrays: tokens, and rows of one layout."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import DTypeLike

from ...errors import UsageError
from .files import Files, Paths
from .source import Source, SourceShard


class Records(Source):
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
        self._files = Files(paths)
        self.shards = []
        for file in self._files.all:
            records, rest = divmod(max(0, file.size - header_bytes), self._dtype.itemsize)
            if rest or 0 < file.size < header_bytes:
                raise UsageError(
                    f"{file.path}: {file.size} bytes are no whole number of {self._dtype} "
                    f"behind a header of {header_bytes} bytes"
                )
            samples = max(0, records - overlap) // (length or 1)
            self.shards.append(SourceShard(file.name, samples, file.size))

    def read_rows(self, shard: int, rows: Sequence[int]) -> list[Any]:
        each, size = self._length or 1, self._dtype.itemsize
        begins = self._header + np.asarray(rows, np.int64) * (each * size)
        raw = self._files.read(shard, begins, begins + (each + self._overlap) * size)
        # copies, which may be written to
        samples = [np.frombuffer(one, self._dtype).copy() for one in raw]
        return samples if self._length else [one[0] for one in samples]
