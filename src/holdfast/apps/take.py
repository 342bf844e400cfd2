"""Take: copies a program's checkpoint files,
while the program may already be writing the next one.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

from .. import disk
from .program import ProgramCheckpoint

_BLOCK_BYTES = 1 << 20


class FileState(NamedTuple):
    """The facts that distinguish a file from an earlier one of the same name."""

    inode: int
    size_bytes: int
    mtime_ns: int


def file_state(path: Path) -> FileState | None:
    """Return the present state of a plain file; None if there is none."""
    try:
        facts = os.stat(path)
    except (FileNotFoundError, NotADirectoryError):
        return None
    return (
        FileState(facts.st_ino, facts.st_size, facts.st_mtime_ns)
        if stat.S_ISREG(facts.st_mode)
        else None
    )


def file_states(files: Iterable[Path]) -> dict[Path, FileState]:
    """Return the state of each of `files` that exists."""
    return {path: seen for path in files if (seen := file_state(path)) is not None}


def changed_files(files: Iterable[Path], before: Mapping[Path, FileState]) -> dict[Path, FileState]:
    """Return the state of each of `files` that exists and is not as it was `before`."""
    return {path: seen for path, seen in file_states(files).items() if seen != before.get(path)}


def copy_if_unchanged(found: ProgramCheckpoint, into: Path) -> bool:
    """Copy the files of `found` into the directory `into`, durably.

    Returns False if one of them changed or disappeared during the copy: then `into` must be thrown
    away.
    """
    before = file_states(found.files)
    if len(before) < len(found.files):
        return False
    for source in found.files:
        target = into / (source.relative_to(found.root) if found.root is not None else source.name)
        if target.parent != into:
            disk.make_dirs(target.parent)
        try:
            disk.write(target, read_blocks(source), file_mode(source))
        except FileNotFoundError:
            return False
    return file_states(found.files) == before


def file_mode(path: Path) -> int:
    """Return who may read and write the file: a private one stays private in the store."""
    return stat.S_IMODE(os.stat(path).st_mode) & 0o777


def read_blocks(path: Path) -> Iterator[bytes]:
    """Yield the bytes of a plain file."""
    with open(disk.open_plain(path, follow=True), "rb", buffering=0) as file:
        while block := file.read(_BLOCK_BYTES):
            yield block
