"""Take: copies what a program has written to go on from, while the program may already be writing the next one."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

from .. import disk
from .program import ProgramCheckpoint

_BLOCK_BYTES = 1 << 20


class Look(NamedTuple):
    """What tells a file from the one that had its name before."""

    inode: int
    size_bytes: int
    mtime_ns: int


def look(path: Path) -> Look | None:
    """A plain file as it is now; None when there is none."""
    try:
        facts = os.stat(path)
    except (FileNotFoundError, NotADirectoryError):
        return None
    return Look(facts.st_ino, facts.st_size, facts.st_mtime_ns) if stat.S_ISREG(facts.st_mode) else None


def looks(files: Iterable[Path]) -> dict[Path, Look]:
    """Those of `files` that are there."""
    return {path: seen for path in files if (seen := look(path)) is not None}


def fresh(files: Iterable[Path], before: Mapping[Path, Look]) -> dict[Path, Look]:
    """Those of `files` that are there, and are not what they were `before`."""
    return {path: seen for path, seen in looks(files).items() if seen != before.get(path)}


def take(found: ProgramCheckpoint, into: Path) -> bool:
    """Copy the files of `found` into the directory `into`, durably.

    False when one of them changed, or went, while it was copied: then `into` is to be thrown away.
    """
    before = looks(found.files)
    if len(before) < len(found.files):
        return False
    for source in found.files:
        target = into / (source.relative_to(found.root) if found.root is not None else source.name)
        if target.parent != into:
            disk.make_dirs(target.parent)
        try:
            disk.write(target, _blocks(source))
        except FileNotFoundError:
            return False
    return looks(found.files) == before


def _blocks(path: Path) -> Iterator[bytes]:
    with open(disk.open_plain(path, follow=True), "rb", buffering=0) as file:
        while block := file.read(_BLOCK_BYTES):
            yield block
