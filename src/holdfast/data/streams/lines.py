"""Files of lines: text, JSON, CSV. Where each record begins is found once, and kept."""

from __future__ import annotations

import csv
import io
import os
from functools import partial
from typing import Any

import msgspec
import numpy as np

from ... import legible
from ...errors import UsageError
from .files import DataFile, Files, FileSource, Paths, file_index, progress
from .orders import Ids, RecentValues

_CHUNK = 1 << 22
_BOM = b"\xef\xbb\xbf"


class Lines(FileSource):
    r"""Lines of UTF-8 text, as str without their ends (`\n` or `\r\n`).

    `paths`: a path, a glob, or a list of them; each file is a shard. Each is read once to find its
    lines, at about 1 GB/s; the index (8 bytes a line) is kept for later runs.
    """

    _kind, _quotes, _blank, _header_rows = "lines", False, b"", 0

    def __init__(self, paths: Paths) -> None:
        files = Files(paths)
        self._starts = [
            np.frombuffer(file_index(self._kind, file, partial(self._build, file)), np.int64)
            for file in files.all
        ]
        super().__init__(
            files, [max(0, len(starts) - 1 - self._header_rows) for starts in self._starts]
        )

    def _stretches(self, shard: int, rows: Ids) -> tuple[Ids, Ids]:
        at = rows + self._header_rows
        return self._starts[shard][at], self._starts[shard][at + 1]

    def _parse(self, shard: int, raw: bytes) -> Any:  # noqa: ARG002  rows of CSV need their header
        return raw.removesuffix(b"\n").removesuffix(b"\r").decode()

    def _build(self, file: DataFile) -> bytes:
        return record_starts(file, quotes=self._quotes, blank=self._blank).tobytes()


class JsonLines(Lines):
    """Values of JSON, one a line; blank lines are no samples. As `Lines` otherwise."""

    _kind, _blank = "json-lines", b" \t\r\n"

    def _parse(self, shard: int, raw: bytes) -> Any:  # noqa: ARG002
        return msgspec.json.decode(raw)


class CsvRows(Lines):
    """Rows of CSV files as dicts of str; the first row of each file has the names.

    A field in quotes may have line ends in it. Fields are quoted as RFC 4180 has it: a quote within
    a field without quotes is an error. As `Lines` otherwise.
    """

    _kind, _quotes, _blank, _header_rows = "csv", True, b"\r\n", 1

    def __init__(self, paths: Paths, delimiter: str = ",") -> None:
        self._delimiter = delimiter
        self._names = RecentValues(self._read_names, 64)
        super().__init__(paths)

    def _parse(self, shard: int, raw: bytes) -> Any:
        names, row = self._names(shard), self._fields(raw)
        if len(row) != len(names):
            raise ValueError(f"a row of {len(row)} fields, where the header has {len(names)}")
        return dict(zip(names, row, strict=True))

    def _fields(self, raw: bytes) -> list[str]:
        text = io.StringIO(raw.decode(), newline="")
        rows = [*filter(None, csv.reader(text, delimiter=self._delimiter, strict=True))]
        if len(rows) != 1:
            raise ValueError(
                "a quote is within a field without quotes, or a line ends with \\r alone"
            )
        return rows[0]

    def _read_names(self, shard: int) -> list[str]:
        starts = self._starts[shard]
        [raw] = self._files.read(shard, starts[:1], starts[1:2])
        try:
            return self._fields(raw)
        except (ValueError, csv.Error) as error:
            raise UsageError(str(self._files.damaged(shard, int(starts[0]), error))) from error


def record_starts(file: DataFile, *, quotes: bool, blank: bytes) -> Ids:
    """Return where each record of a file of lines begins, and where the last one ends.

    `quotes`: a line end after an odd number of quotes is within a record. `blank`: a line of these
    bytes alone is no record.
    """
    buffer, found, doubtful = np.empty(_CHUNK, np.uint8), [], []
    count, begins = 0, True
    with (
        open(file.path, "rb", buffering=0) as raw,
        progress(f"{file.name} ({legible.size(file.size)})", file.size) as done,
    ):
        at = len(_BOM) if os.pread(raw.fileno(), len(_BOM), 0) == _BOM else 0
        while size := os.preadv(raw.fileno(), [buffer.data], at):
            piece = buffer[:size]
            ends = np.flatnonzero(piece == ord("\n"))
            if quotes:
                marks = np.flatnonzero(piece == ord('"'))
                ends = ends[(np.searchsorted(marks, ends) + count) % 2 == 0]
                count += len(marks)
            starts = np.concatenate([np.zeros(int(begins), np.int64), ends + 1])
            begins = bool(len(starts)) and int(starts[-1]) == size
            starts = starts[: len(starts) - begins]
            found.append(starts + at)
            if blank:
                doubtful.append(starts[np.isin(piece[starts], [*blank])] + at)
            at += size
            done(at)
        starts = np.concatenate([*found, np.array([at])])
        return _without_blank(raw.fileno(), starts, doubtful, blank)


def _without_blank(descriptor: int, starts: Ids, doubtful: list[Ids], blank: bytes) -> Ids:
    """Leave out lines of blank bytes alone; those at `doubtful` begin with one."""
    places = np.searchsorted(starts, np.concatenate([np.empty(0, np.int64), *doubtful]))
    sizes = starts[places + 1] - starts[places]
    longer = places[sizes > 1]
    keeps = [
        bool(os.pread(descriptor, end - begin, begin).strip(blank))
        for begin, end in zip(starts[longer].tolist(), starts[longer + 1].tolist(), strict=True)
    ]
    kept = np.ones(len(starts), bool)
    kept[places] = False
    kept[longer] = keeps
    return starts[kept]
