"""Rooms: a directory of its own for what one start of a program writes into the supervisor's."""

from __future__ import annotations

from pathlib import Path

from .. import disk


def fresh(room: Path) -> Path:
    """An empty directory `start-N` in `room`; those of earlier starts are removed, for what they held is in the store."""
    used = [int(path.name[6:]) for path in room.glob("start-*") if path.name[6:].isdecimal()]
    for number in used:
        disk.remove_tree(room / f"start-{number}")
    path = room / f"start-{max(used, default=0) + 1}"
    disk.make_dirs(path)
    return path
