"""Rows of Parquet files and of Arrow files, by pyarrow, which is imported when one is read."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from ...errors import UsageError
from .files import DataFile, Files, Paths, file_index, require_unchanged
from .orders import RecentValues
from .source import DamagedSample, Source, SourceShard

_OPEN = 16
_DECODED = 8  # parts: a Window has so many shards open


class _Table(NamedTuple):
    """An open file."""

    names: list[str]
    parts: list[tuple[int, int]]  # rows and bytes of each
    read: Callable[[int], Any]


class _Rows(Source):
    """Rows as dicts. Each part of a file that is decoded as a whole is a shard."""

    def __init__(self, paths: Paths, columns: Sequence[str] | None = None) -> None:
        self._columns = None if columns is None else [*columns]
        self._files = Files(paths).all
        self._opened = RecentValues(self._open, _OPEN)
        self._decoded = RecentValues(self._decode, _DECODED)
        self.shards, self._places = [], []
        for number, file in enumerate(self._files):
            for part, (rows, size) in enumerate(self._opened(number).parts):
                self.shards.append(SourceShard(f"{file.name}#{part}", rows, size))
                self._places.append((number, part))

    def read_rows(self, shard: int, rows: Sequence[int]) -> list[Any]:
        found: list[Any] = self._decoded(shard).take([*rows]).to_pylist()
        return found

    def _open(self, number: int) -> _Table:
        file = self._files[number]
        require_unchanged(file)
        try:
            import pyarrow as pa
        except ImportError as error:
            raise UsageError(
                'Parquet and Arrow files are read with pyarrow: pip install "holdfast[parquet]"'
            ) from error
        try:
            table = self._open_file(file)
        except (OSError, pa.ArrowException) as error:
            raise UsageError(f"{file.path}: {error}") from error
        missing = {*(self._columns or ())} - {*table.names}
        if missing:
            raise UsageError(f"{file.path}: no columns {sorted(missing)}; it has {table.names}")
        return table

    def _decode(self, shard: int) -> Any:
        import pyarrow as pa

        number, part = self._places[shard]
        try:
            return self._opened(number).read(part)
        except (OSError, pa.ArrowException) as error:
            require_unchanged(self._files[number])
            raise DamagedSample(f"{self._files[number].path}: part {part}: {error}") from error

    @abstractmethod
    def _open_file(self, file: DataFile) -> _Table: ...


class Parquet(_Rows):
    """Rows of Parquet files as dicts, all or some `columns`; each row group is a shard.

    A row group is decoded as a whole, and the last 8 are kept. Large ones make a resume, and a
    shuffle over all samples, slow: a `Window` has few of them open.
    """

    def _open_file(self, file: DataFile) -> _Table:
        from pyarrow import parquet

        opened = parquet.ParquetFile(file.path, page_checksum_verification=True)
        groups = [opened.metadata.row_group(part) for part in range(opened.num_row_groups)]
        parts = [(group.num_rows, group.total_byte_size) for group in groups]
        # without Arrow's own threads, which a forked worker does not have
        read = partial(opened.read_row_group, columns=self._columns, use_threads=False)
        return _Table(opened.schema_arrow.names, parts, read)


class Arrow(_Rows):
    """Rows of Arrow files (Feather V2) as dicts, all or some `columns`; each record batch is a
    shard. As `Parquet` otherwise.
    """

    def _open_file(self, file: DataFile) -> _Table:
        import pyarrow as pa

        # no memory map: the process would die where a file is cut off
        opened = pa.ipc.open_file(pa.OSFile(str(file.path)))

        def read(part: int) -> Any:
            batch = opened.get_batch(part)
            batch.validate(full=True)
            return batch if self._columns is None else batch.select(self._columns)

        def count() -> bytes:
            rows = [opened.get_batch(part).num_rows for part in range(opened.num_record_batches)]
            return np.array(rows, np.int64).tobytes()

        counts = np.frombuffer(file_index("arrow", file, count), np.int64).tolist()
        return _Table(opened.schema.names, [(rows, 0) for rows in counts], read)
