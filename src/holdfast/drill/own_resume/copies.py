"""Copies: each run of the drill works in a copy of the directory, so that no run finds another's
files.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from ... import disk, scan
from ...errors import UsageError
from ...legible import counted

LINKED_BYTES = 16 << 20  # a larger file is data that the program reads: the copy links to it
MOST_FILES = 5_000
_CHUNK = 1 << 20


class CheckpointState(NamedTuple):
    """What shows that a file or a folder was written again."""

    newest_ns: int
    size_bytes: int
    files: int


def copy_directory(source: Path, target: Path, checkpoints: Sequence[str]) -> None:
    """Copy a directory, without the checkpoints that lie in it. What begins with a dot, and each
    large file, becomes a symbolic link.

    Raises:
        UsageError: it holds too many files, or the checkpoints would be written through a link.
    """
    for parent in {source / parent for each in checkpoints for parent in Path(each).parents}:
        if parent != source and scan.lexists(parent) and _is_linked(parent):
            raise UsageError(
                f"{parent} is a link, or would be one in a copy of {source}: the runs of "
                "this drill would write there. Let the program save into a folder of this directory"
            )
    disk.make_dirs(target)
    count, left_out = 0, {path for each in checkpoints for path in scan.glob(source, each)}
    for folder, below, names in scan.walk(source):
        here = Path(folder).relative_to(source)
        for name in sorted(names + [each for each in below if _is_linked(Path(folder, each))]):
            path, copy = Path(folder, name), target / here / name
            if path in left_out:
                continue
            count += 1
            if count > MOST_FILES:
                raise UsageError(
                    f"{source}: more than {counted(MOST_FILES, 'file')}, and each run of this "
                    "drill works in a copy: start it in a directory with the program alone"
                )
            if _is_linked(path) or path.stat().st_size > LINKED_BYTES:
                disk.symlink(str(path.resolve()), copy)
            elif scan.is_file(path):
                disk.write(copy, _chunks(path), path.stat().st_mode & 0o777)
        below[:] = [
            each
            for each in below
            if not _is_linked(Path(folder, each)) and Path(folder, each) not in left_out
        ]
        for each in below:
            disk.make_dir(target / here / each)


def _is_linked(path: Path) -> bool:
    return path.name.startswith(".") or scan.is_symlink(path)


def _chunks(path: Path) -> Iterator[bytes]:
    with path.open("rb") as file:
        while chunk := file.read(_CHUNK):
            yield chunk


def list_checkpoints(place: Path, patterns: Sequence[str]) -> dict[Path, CheckpointState]:
    """Return the checkpoints in `place` and their states, the newest last."""
    found = {}
    for path in {path for pattern in patterns for path in scan.glob(place, pattern)}:
        with suppress(OSError):  # it is being replaced
            found[path] = file_state(path)
    return dict(sorted(found.items(), key=lambda pair: (pair[1].newest_ns, pair[0].name)))


def file_state(path: Path) -> CheckpointState:
    """Return the state of a file, or of all files below a folder."""
    if not scan.is_dir(path):
        facts = path.stat()
        return CheckpointState(facts.st_mtime_ns, facts.st_size, 1)
    inside = [Path(folder, name).stat() for folder, _, names in scan.walk(path) for name in names]
    return CheckpointState(
        max((each.st_mtime_ns for each in inside), default=path.stat().st_mtime_ns),
        sum(each.st_size for each in inside),
        len(inside),
    )


def opened_below(place: Path, processes: Iterable[int]) -> list[Path]:
    """Return the files below `place` that these processes hold open, by /proc; none without it."""
    found = list[Path]()
    for pid in processes:
        for number in scan.names(f"/proc/{pid}/fd"):
            with suppress(OSError):  # it is closed, or the process has ended
                path = Path(os.readlink(f"/proc/{pid}/fd/{number}"))
                found += [path] if path.is_relative_to(place) else []
    return found


def written_files(place: Path, before: dict[str, tuple[int, int]]) -> dict[str, Path]:
    """Return the files below `place` that are new or changed, by their relative paths."""
    found = {}
    for folder, below, names in scan.walk(place):
        below[:] = sorted(
            each for each in below if not each.startswith(".") and each != "__pycache__"
        )
        for name in names:
            path = Path(folder, name)
            relative = str(path.relative_to(place))
            with suppress(OSError):
                facts = os.lstat(path)
                if before.get(relative) != (facts.st_size, facts.st_mtime_ns):
                    found[relative] = path
    return found
