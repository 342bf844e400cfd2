"""Rows of Parquet files and of Arrow files, by pyarrow, which is imported when one is read."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np

from ...errors import UsageError
from .files import DataFile, Files, Paths, file_index, require_unchanged
from .orders import RecentValues
from .source import DamagedSample, Source, SourceShard

_OPEN = 16
_DECODED = 8  # parts: a Window has so many shards open


class _Rows(Source):
    """Rows as dicts. Each part of a file that is decoded as a whole is a shard."""

    def __init__(self, paths: Paths, columns: Sequence[str] | None = None) -> None:
        self._arrow()
        self._columns = None if columns is None else [*columns]
        self._files = Files(paths).all
        self._opened = RecentValues(self._open, _OPEN)
        self._decoded = RecentValues(self._decode, _DECODED)
        self.shards, self._places = [], []
        for number, file in enumerate(self._files):
            for part, (rows, size) in enumerate(self._parts(number)):
                self.shards.append(SourceShard(f"{file.name}#{part}", rows, size))
                self._places.append((number, part))

    def read_rows(self, shard: int, rows: Sequence[int]) -> list[Any]:
        found: list[Any] = self._decoded(shard).take([*rows]).to_pylist()
        return found

    def _open(self, number: int) -> Any:
        file = self._files[number]
        require_unchanged(file)
        try:
            opened, schema = self._open_file(file)
        except (OSError, self._arrow().ArrowException) as error:
            raise UsageError(f"{file.path}: {error}") from error
        missing = {*(self._columns or ())} - {*schema.names}
        if missing:
            raise UsageError(f"{file.path}: no columns {sorted(missing)}; it has {schema.names}")
        return opened

    def _decode(self, shard: int) -> Any:
        number, part = self._places[shard]
        opened = self._opened(number)
        try:
            return self._read_part(opened, part)
        except (OSError, self._arrow().ArrowException) as error:
            raise DamagedSample(f"{self._files[number].path}: part {part}: {error}") from error

    @staticmethod
    def _arrow() -> Any:
        try:
            import pyarrow as pa
        except ImportError as error:
            raise UsageError(
                'Parquet and Arrow files are read with pyarrow: pip install "holdfast[parquet]"'
            ) from error
        return pa

    def _parts(self, number: int) -> list[tuple[int, int]]:
        """Return rows and bytes of each part of a file."""
        raise NotImplementedError

    def _open_file(self, file: DataFile) -> tuple[Any, Any]:
        """Return the open file and its schema."""
        raise NotImplementedError

    def _read_part(self, opened: Any, part: int) -> Any:
        raise NotImplementedError


class Parquet(_Rows):
    """Rows of Parquet files as dicts, all or some `columns`; each row group is a shard.

    A row group is decoded as a whole, and the last 8 are kept. Large ones make a resume, and a
    shuffle over all samples, slow: a `Window` has few of them open.
    """

    def _open_file(self, file: DataFile) -> tuple[Any, Any]:
        from pyarrow import parquet

        opened = parquet.ParquetFile(file.path, page_checksum_verification=True)
        return opened, opened.schema_arrow

    def _parts(self, number: int) -> list[tuple[int, int]]:
        known = self._opened(number).metadata
        groups = [known.row_group(part) for part in range(known.num_row_groups)]
        return [(group.num_rows, group.total_byte_size) for group in groups]

    def _read_part(self, opened: Any, part: int) -> Any:
        # without Arrow's own threads, which a forked worker does not have
        return opened.read_row_group(part, self._columns, use_threads=False)


class Arrow(_Rows):
    """Rows of Arrow files (Feather V2) as dicts, all or some `columns`; each record batch is a
    shard. As `Parquet` otherwise.
    """

    def _open_file(self, file: DataFile) -> tuple[Any, Any]:
        arrow = self._arrow()
        # no memory map: the process would die where a file is cut off
        opened = arrow.ipc.open_file(arrow.OSFile(str(file.path)))
        return opened, opened.schema

    def _parts(self, number: int) -> list[tuple[int, int]]:
        file = self._files[number]
        self._opened(number)  # its columns are checked
        counts = np.frombuffer(file_index("arrow", file, partial(self._count, number)), np.int64)
        return [(rows, 0) for rows in counts.tolist()]

    def _count(self, number: int) -> bytes:
        opened = self._opened(number)
        counts = [opened.get_batch(part).num_rows for part in range(opened.num_record_batches)]
        return np.array(counts, np.int64).tobytes()

    def _read_part(self, opened: Any, part: int) -> Any:
        batch = opened.get_batch(part)
        batch.validate(full=True)
        return batch if self._columns is None else batch.select(self._columns)
