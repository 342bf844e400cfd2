"""Files: what each run of a drill added to the files that the script itself writes, and whether a
kill changed that.

All runs of a drill share these files, and so do the attempts of one run. A file that both
undisturbed runs leave with the same bytes is compared as a whole. Of one that grows, what a run
added is compared: a row that a killed attempt had written, and that the next one wrote again, is
there twice.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterable, Mapping
from contextlib import closing, suppress
from pathlib import Path
from typing import NamedTuple

from .. import scan
from ..legible import counted
from ..store import format
from .output import split_numbers

MOST_BYTES = 32 << 20  # of one file; a longer one is compared only as a whole
MOST_LISTED, MOST_NAMED = 20_000, 5
_SQLITE = b"SQLite format 3\x00"


class FileContent(NamedTuple):
    """The content of a file when a run ended."""

    digest: str
    data: bytes  # empty if it is too long, or a database
    rows: Mapping[str, int]  # of a database: the number of rows in each table


class FileDifference(NamedTuple):
    path: str
    what: str

    def __str__(self) -> str:
        return f"{self.path}: {self.what}"


def list_files(root: Path) -> dict[str, tuple[int, int]]:
    """Return the sizes and times of the files below `root`, without hidden directories; of a large
    tree those that come first.
    """
    found: dict[str, tuple[int, int]] = {}
    for folder, below, names in scan.walk(root):
        below[:] = sorted(each for each in below if not each.startswith("."))
        for name in names:
            with suppress(OSError):
                facts = os.lstat(os.path.join(folder, name))
                found[os.path.relpath(os.path.join(folder, name), root)] = (
                    facts.st_size,
                    facts.st_mtime_ns,
                )
        if len(found) > MOST_LISTED:
            break
    return found


def describe_overwritten(root: Path, before: Mapping[str, tuple[int, int]]) -> str:
    """Return a line about the files that were there before and have changed; "" if none has."""
    now = list_files(root)
    changed = sorted(name for name, facts in before.items() if now.get(name, facts) != facts)
    if not changed:
        return ""
    more = f" and {len(changed) - MOST_NAMED:,} more" if len(changed) > MOST_NAMED else ""
    return (
        "the script has written over files that were here: "
        f"{', '.join(changed[:MOST_NAMED])}{more}; they hold what a drilled run wrote"
    )


def read_files(paths: Iterable[str]) -> dict[str, FileContent]:
    """Return the content of these files, except pipes and files that are gone or cannot be read."""
    found = {}
    for path in map(Path, paths):
        with suppress(OSError, sqlite3.Error):
            if scan.is_file(path):  # a pipe has no end
                found[str(path)] = _read(path)
    return found


def _read(path: Path) -> FileContent:
    digest = format.hasher()()
    with path.open("rb") as file:
        data = file.read(MOST_BYTES + 1)
        digest.update(data)
        while more := file.read(MOST_BYTES):  # no more of a long file is in memory at once
            digest.update(more)
    is_database = data.startswith(_SQLITE)
    text = b"" if is_database or len(data) > MOST_BYTES else data
    return FileContent(digest.hexdigest(), text, _count_rows(path) if is_database else {})


def _count_rows(path: Path) -> dict[str, int]:
    with closing(sqlite3.connect(f"{path.as_uri()}?mode=ro", uri=True)) as database:
        names = [
            name
            for (name,) in database.execute("SELECT name FROM sqlite_master WHERE type = 'table'")
        ]
        quoted = {name: name.replace('"', '""') for name in names}
        count = 'SELECT count(*) FROM "{}"'  # a table's name cannot be a parameter
        return {name: database.execute(count.format(quoted[name])).fetchone()[0] for name in names}


Contents = Mapping[str, FileContent]


def compare_files(
    first: Contents, second: Contents, killed: Contents
) -> tuple[list[FileDifference], int]:
    """Return the files that differ after the killed run and an undisturbed one,
    and how many were compared.
    """
    found, compared = list[FileDifference](), 0
    for path in sorted(first.keys() & second.keys()):
        a, b, c = first[path], second[path], killed.get(path)
        if c is None:
            found.append(FileDifference(path, "is gone"))
            continue
        said = _compare_file(a, b, c)
        compared += said is not None
        found += [FileDifference(path, said)] if said else []
    return found, compared


def _compare_file(first: FileContent, second: FileContent, killed: FileContent) -> str | None:
    """Return the difference; "": there is none; None: two undisturbed runs differ so much that no
    comparison is possible.
    """
    if first.digest == second.digest:
        return (
            ""
            if killed.digest == second.digest
            else "its content is not that of an undisturbed run"
        )
    if second.rows:
        return _extra_rows(first.rows, second.rows, killed.rows)
    if not first.data or not second.data.startswith(first.data):
        return None
    added, again = second.data[len(first.data) :], killed.data[len(second.data) :]
    if not killed.data.startswith(second.data):
        return "what earlier runs had written is not there any more"
    return _describe_extra_rows(added, again, exact=first.data.endswith(added))


def _extra_rows(
    first: Mapping[str, int], second: Mapping[str, int], killed: Mapping[str, int]
) -> str:
    for table, count in second.items():
        added, again = count - first.get(table, 0), killed.get(table, 0) - count
        if added != again:
            return (
                f"an undisturbed run added {counted(added, 'row')} to {table}, "
                f"and the killed one {again}"
            )
    return ""


def _describe_extra_rows(added: bytes, again: bytes, *, exact: bool) -> str:
    """`exact`: two undisturbed runs have added the same bytes."""
    mine, theirs = (text.decode(errors="replace").splitlines() for text in (added, again))
    if len(mine) != len(theirs):
        return (
            f"an undisturbed run added {counted(len(mine), 'line')}, "
            f"and the killed one {len(theirs)}"
        )
    unlike = [
        pair
        for pair in zip(mine, theirs, strict=True)
        if split_numbers(pair[0]) != split_numbers(pair[1])
    ]
    return f"{unlike[0][0]!r} became {unlike[0][1]!r}" if exact and unlike else ""
