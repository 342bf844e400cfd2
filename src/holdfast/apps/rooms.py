"""Rooms: a directory of its own for what one start of a program writes into the supervisor's."""

from __future__ import annotations

from pathlib import Path

from .. import disk


def emptied(room: Path) -> Path:
    """The directory `room`, with nothing in it: what an earlier start left there is in the store."""
    disk.remove_tree(room)
    disk.make_dirs(room)
    return room
