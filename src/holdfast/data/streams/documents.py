"""Documents of tokens as Megatron-LM keeps them: NAME.bin has the tokens, NAME.idx the sizes."""

from __future__ import annotations

import os
import struct
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...errors import UsageError
from .files import Files, FileSource, Paths
from .orders import Ids

_BEGIN = struct.Struct("<9sQBQQ")  # magic, version, code of the type, sequences, documents + 1
_TYPES = dict(enumerate(("u1", "i1", "<i2", "<i4", "<i8", "<f8", "<f4", "<u2"), 1))


class Documents(FileSource):
    """Documents as arrays of tokens; each pair of files is a shard, and `Pack` knows the sizes.

    `paths`: names, with or without `.bin` or `.idx`; a glob, or a list of them.

    Source: megatron/core/datasets/indexed_dataset.py, version 1.
    """

    def __init__(self, paths: Paths) -> None:
        given = [paths] if isinstance(paths, str | os.PathLike) else paths
        names = [os.fspath(each).removesuffix(".bin").removesuffix(".idx") for each in given]
        indexes = Files([f"{name}.idx" for name in names])
        files = Files([file.path.with_suffix(".bin") for file in indexes.all])
        self._types, self._starts, sizes = [], [], [np.empty(0, np.int64)]
        for index, file in zip(indexes.all, files.all, strict=True):
            dtype, starts = _parsed(index.path)
            if int(starts[-1]) * dtype.itemsize != file.size:
                raise UsageError(
                    f"{index.path} is of {int(starts[-1])} tokens of {dtype.itemsize} bytes, and "
                    f"{file.path} has {file.size} bytes"
                )
            self._types.append(dtype)
            self._starts.append(starts * dtype.itemsize)
            sizes.append(np.diff(starts))
        self.sizes = np.concatenate(sizes)
        super().__init__(files, [len(starts) - 1 for starts in self._starts])

    def _stretches(self, shard: int, rows: Ids) -> tuple[Ids, Ids]:
        return self._starts[shard][rows], self._starts[shard][rows + 1]

    def _parse(self, shard: int, raw: bytes) -> Any:
        return np.frombuffer(raw, self._types[shard]).copy()  # which may be written to


def _parsed(path: Path) -> tuple[np.dtype[Any], Ids]:
    """Return the type of the tokens, and where each document begins, in tokens; one more."""
    data = path.read_bytes()
    try:
        magic, version, code, sequences, documents = _BEGIN.unpack_from(data)
        if magic != b"MMIDIDX\0\0" or version != 1:
            raise ValueError("it is no index of Megatron-LM, version 1")
        dtype, at = np.dtype(_TYPES[code]), _BEGIN.size
        sizes = np.frombuffer(data, "<i4", sequences, at)
        pointers = np.frombuffer(data, "<i8", sequences, at + 4 * sequences)
        firsts = np.frombuffer(data, "<i8", documents, at + 12 * sequences)
    except (ValueError, KeyError, OverflowError, struct.error) as error:
        raise UsageError(f"{path}: damaged, or of another kind: {error}") from error
    ends = np.cumsum(sizes, dtype=np.int64)
    starts: NDArray[np.int64] = np.concatenate([[0], ends])
    if (sizes < 0).any() or not np.array_equal(pointers, starts[:-1] * dtype.itemsize):
        raise UsageError(f"{path}: damaged: its sequences do not follow one another")
    # some writers leave out the end of the last document
    bounds = firsts if len(firsts) and firsts[-1] == sequences else np.append(firsts, sequences)
    if bounds[0] != 0 or (np.diff(bounds) < 0).any():
        raise UsageError(f"{path}: damaged: it has documents of sequences that it has not")
    return dtype, starts[bounds]
