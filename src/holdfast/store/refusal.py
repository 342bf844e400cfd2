"""Converts an error of the file system into one of Holdfast's errors: what failed, where, and what
to do next.
"""

from __future__ import annotations

import errno
import os
import shlex
import stat
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from .. import disk, scan
from ..errors import DiskError, NoSpace, StoreError

_FAILS = "the disk, or the connection to it, fails: the system's log (dmesg) tells more"
_RIGHTS = "give this user the right to write there"
_ADVICE = {
    errno.EIO: _FAILS,
    errno.ETIMEDOUT: _FAILS,
    errno.ESTALE: "the file system was taken away or replaced: mount it again",
    errno.EROFS: "mount it for writing; a file system that fails is "
    "often made read-only: see the system's log (dmesg)",
    errno.EACCES: _RIGHTS,
    errno.EFBIG: "this process may not write files of that size: "
    "see `ulimit -f`, and the limits of the file system",
    errno.EPERM: _RIGHTS,
}


def disk_error(root: Path, what: str, error: OSError) -> StoreError:
    """Return the error to raise when the run at `root` could not do `what`."""
    if error.errno == errno.ENOSPC:
        return NoSpace(
            f"{root}: no space left to {what}: {_free_space(root)}; "
            "free some, or keep fewer checkpoints"
        )
    if error.errno == errno.EDQUOT:
        return NoSpace(
            f"{root}: the disk quota is used up, cannot {what}; "
            f"of the whole file system {_free_space(root)}. Remove files "
            "of this user, group or project (`quota -s` shows whose), or keep fewer checkpoints"
        )
    if error.errno == errno.EXDEV:
        return StoreError(
            f"{root}: cannot {what}: its checkpoints lie on "
            "another file system than its attempts, and are "
            "moved between the two; link the run's whole directory there instead"
        )
    names = [
        Path(os.fsdecode(name))
        for name in (error.filename, error.filename2)
        if isinstance(name, str | bytes)
    ]
    if (
        error.errno in (errno.EACCES, errno.EPERM)
        and (bar := next(filter(None, map(find_block, names)), None)) is not None
    ):
        return DiskError(
            f"{root}: cannot {what}: {os.strerror(error.errno)}: {bar.what}; {bar.todo}"
        )
    where = error.filename2 or error.filename or root
    advice = _ADVICE.get(
        error.errno or 0, "committed checkpoints are unchanged; put that right and try again"
    )
    return DiskError(
        f"{root}: cannot {what}: {os.strerror(error.errno or 0)} ({os.fsdecode(where)}); {advice}"
    )


class BlockedDirectory(NamedTuple):
    """Why this user may not move or remove files in a directory, and what to do about it."""

    what: str
    todo: str


def find_block(path: Path) -> BlockedDirectory | None:
    """Return why this user may not move `path` out of its directory, as a claim, a commit or a
    prune does.

    The mode of the parent directory decides that, not the mode of the file. A directory that is
    moved must be writable itself.
    """
    folder = path.parent
    facts, own = _stat(folder), _stat(path)
    if facts is None:
        return None
    if not os.access(folder, os.W_OK | os.X_OK):
        return _blocked_directory(
            folder, facts, "nothing can be moved out of or removed from", "g+w"
        )
    if facts.st_mode & stat.S_ISVTX and os.geteuid() not in (
        0,
        facts.st_uid,
        own.st_uid if own else -1,
    ):
        return _blocked_directory(
            folder, facts, "its sticky bit keeps others from moving and removing what lies in", "-t"
        )
    if own is not None and stat.S_ISDIR(own.st_mode) and not os.access(path, os.W_OK | os.X_OK):
        return _blocked_directory(path, own, "nothing can be moved out of or removed from", "g+w")
    return None


def _stat(path: Path) -> os.stat_result | None:
    try:
        return os.lstat(path)
    except OSError:
        return None


def _blocked_directory(
    folder: Path, facts: os.stat_result, what: str, change: str
) -> BlockedDirectory:
    of = f"of user {facts.st_uid}, {stat.filemode(facts.st_mode)}"
    return BlockedDirectory(
        f"{what} {folder} ({of})",
        f"that user, or root, writes: chmod {change} {shlex.quote(str(folder))}",
    )


def blocked_directories(root: Path) -> Iterator[BlockedDirectory]:
    """Yield the directories of a run from which this user may not move or remove files,
    as a start or a prune must.
    """
    for folder in (
        "attempts",
        "checkpoints",
        "history",
        "quarantine",
        "attempts/*",
        "checkpoints/step-*",
    ):
        places: list[Path] = []
        with suppress(PermissionError):  # of a directory that was yielded itself
            places = scan.glob(root, folder)
        for place in places:
            inside = sorted(place.iterdir()) if os.access(place, os.R_OK | os.X_OK) else []
            found = next(filter(None, map(find_block, [*inside, place / "new"])), None)
            if found is not None and scan.is_dir(place):
                yield found


def _free_space(root: Path) -> str:
    """Return the free space, as text."""
    try:
        free = disk.free_space(root)
    except OSError:
        return "what is free is unknown"
    if free.inodes == 0:
        return f"{free.size_bytes:,} bytes are free, and no inodes: each file needs one"
    return f"{free.size_bytes:,} bytes are free" + (
        "" if free.inodes is None else f", and {free.inodes:,} inodes"
    )
