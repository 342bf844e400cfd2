"""Values: what is in the files that a program left, and how two runs of it differ there.

Checkpoints of known formats are read as data, tensor by tensor; nothing in them is executed. JSON,
CSV and JSON lines are compared by value; other files by their bytes.
"""

from __future__ import annotations

import csv
import json
import re
import zipfile
import zlib
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from ...errors import HoldfastError
from ...foreign import table
from ...foreign.checkpoint import ForeignCheckpoint
from ...inspect import diff

_CHUNK = 1 << 20
_MOST_TEXT = 32 << 20  # bytes of a text that is read value by value
_LISTS = (".jsonl", ".ndjson")


class ValueDifference(NamedTuple):
    """One value that two runs left differently."""

    file: str
    where: str  # the leaf, the JSON path or the row; empty: the whole file
    what: str

    def __str__(self) -> str:
        return f"{self.file}{f' {self.where}' if self.where else ''}: {self.what}"


class Comparison(NamedTuple):
    """What was compared, and what differs."""

    differences: list[ValueDifference]
    files: int  # of which something was compared


def compare_runs(
    first: Mapping[str, Path], second: Mapping[str, Path], killed: Mapping[str, Path]
) -> Comparison:
    """Compare what the killed run left with the first run's. What already differs between the
    two undisturbed runs is not compared.
    """
    found, compared = list[ValueDifference](), 0
    for name in sorted(first.keys() & second.keys()):
        varying = _varying(name, first[name], second[name])
        if "" in varying:
            continue
        compared += 1
        if name not in killed:
            found.append(ValueDifference(name, "", "is not there"))
            continue
        found += (
            each
            for each in compare_files(name, first[name], killed[name])
            if each.where not in varying
        )
    return Comparison(found, compared)


def _varying(name: str, a: Path, b: Path) -> set[str]:
    """Return where two undisturbed runs differ, and the rest of each column that mostly does: of
    two times, some are equal by chance.
    """
    found = {each.where for each in compare_files(name, a, b)}
    if not found or "" in found or table.is_foreign(a, named=True):
        return found
    places = _values(a) or {}
    rows, varying = Counter(map(_column, places)), Counter(map(_column, found))
    return found | {each for each in places if 2 * varying[_column(each)] > rows[_column(each)]}


def _column(where: str) -> str:
    """Return the place of a value without its row."""
    return re.sub(r"(^|/)\d+(?=/)", r"\1", where, count=1)


def compare_files(name: str, a: Path, b: Path) -> list[ValueDifference]:
    """Return how two files differ; a difference of the whole file has no `where`."""
    if _crc(a) == _crc(b):
        return []
    try:
        if table.is_foreign(a, named=True):
            compared = diff.compare(ForeignCheckpoint(a), ForeignCheckpoint(b), read=True)
            return [ValueDifference(name, each.where, each.what) for each in compared]
        mine, theirs = _values(a), _values(b)
    except (HoldfastError, ValueError, OSError, zipfile.BadZipFile, csv.Error) as error:
        return [ValueDifference(name, "", f"its bytes differ ({error})")]
    if mine is None or theirs is None:
        return [ValueDifference(name, "", "its bytes differ")]
    return [*_differing(name, mine, theirs)]


def _differing(
    name: str, mine: Mapping[str, Any], theirs: Mapping[str, Any]
) -> Iterator[ValueDifference]:
    if len(mine) != len(theirs):
        rows = f"{len(mine):,} values became {len(theirs):,}"
        yield (
            ValueDifference(name, "", rows)
            if not mine or not theirs
            else ValueDifference(name, "length", rows)
        )
    for where in mine.keys() & theirs.keys():
        if repr(mine[where]) != repr(theirs[where]):
            yield ValueDifference(name, where, f"{mine[where]!r} became {theirs[where]!r}")


def _values(path: Path) -> dict[str, Any] | None:
    """Return the values in a file by their places; None: only its bytes can be compared."""
    if path.stat().st_size > _MOST_TEXT:
        return None
    if path.suffix == ".json":
        return dict(_flatten("", json.loads(path.read_text())))
    if path.suffix in _LISTS:
        lines = [json.loads(line) for line in path.read_text().splitlines() if line.strip()]
        return dict(_flatten("", lines))
    if path.suffix in (".csv", ".tsv"):
        with path.open(newline="") as file:
            rows = [*csv.reader(file, delimiter="\t" if path.suffix == ".tsv" else ",")]
        return dict(_flatten("", rows))
    if zipfile.is_zipfile(path):  # of NumPy: the members have times, and the contents have not
        with zipfile.ZipFile(path) as archive:
            return {each.filename: each.CRC for each in archive.infolist()}
    return None


def _flatten(where: str, value: Any) -> Iterator[tuple[str, Any]]:
    members: Any = ()
    if isinstance(value, dict):
        members = value.items()
    elif isinstance(value, list):
        members = enumerate(value)
    else:
        yield where, value
    for key, inner in members:
        yield from _flatten(f"{where}/{key}" if where else str(key), inner)


def _crc(path: Path) -> tuple[int, int]:
    found, size = 0, 0
    with path.open("rb") as file:
        while data := file.read(_CHUNK):
            found, size = zlib.crc32(data, found), size + len(data)
    return found, size
