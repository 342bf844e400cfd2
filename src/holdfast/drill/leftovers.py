"""Leftovers:
files outside the run's directory that one run of the drill wrote and another one read.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec

from .. import disk, scan
from ..legible import UNREADABLE
from ..run.alive import SUPERVISOR

NAMES = {"first": "undisturbed run 1", "second": "undisturbed run 2", "killed": "the killed run"}
DIRECTORY = "opened"


class Leftover(msgspec.Struct, frozen=True):
    """A file that one run of the drill read after another run had changed it."""

    path: str
    writer: str  # one of NAMES
    written_at: str  # `train.py:12`; empty if it was not opened by Python
    reader: str
    read_at: str

    def __str__(self) -> str:
        wrote = f" at {self.written_at}" if self.written_at else ""
        read = f" at {self.read_at}" if self.read_at else ""
        return (
            f"{self.path}, which {NAMES[self.writer]} "
            f"wrote{wrote} and {NAMES[self.reader]} read{read}"
        )


def prepare_file_log(place: Path, run: str, began_ns: int) -> Path:
    """Return the file in which the processes of that run note the files that they open."""
    disk.make_dirs(place / DIRECTORY)
    path = place / DIRECTORY / f"{run}.jsonl"
    disk.write(path, [msgspec.json.encode({"began_ns": began_ns}) + b"\n"])
    return path


def find_leftovers(place: Path) -> list[Leftover]:
    """Return the files that runs have read from each other, in the order of the runs."""
    lines = {run: _read_file_log(place / DIRECTORY / f"{run}.jsonl") for run in NAMES}
    left: dict[tuple[str, str], Leftover] = {}
    for run in NAMES:
        for line in lines[run]:
            if "read" in line and not _is_supervisor_file(line["read"]):
                path, before = line["read"], [each for each in NAMES if lines[each]]
                writer = [
                    each for each in before if lines[each][0]["began_ns"] <= line["written_ns"]
                ][-1]
                wrote = {each["wrote"]: each["at"] for each in lines[writer] if "wrote" in each}
                left.setdefault(
                    (run, path), Leftover(path, writer, wrote.get(path, ""), run, line["at"])
                )
    return list(left.values())


def written_files(place: Path) -> set[str]:
    """Return the files that any run has written until now."""
    lines = (line for run in NAMES for line in _read_file_log(place / DIRECTORY / f"{run}.jsonl"))
    return {
        line["wrote"]
        for line in lines
        if "wrote" in line and not _is_supervisor_file(line["wrote"])
    }


def _is_supervisor_file(path: str) -> bool:
    """Whether the file belongs to `holdfast run`, which may be the drilled command."""
    return scan.exists(Path(path).with_name(SUPERVISOR))


def _read_file_log(path: Path) -> list[Mapping[str, Any]]:
    if not scan.exists(path):
        return []
    found = []
    for line in path.read_bytes().split(b"\n"):
        with suppress(*UNREADABLE):  # cut off by a kill
            found.append(msgspec.json.decode(line))
    return found
