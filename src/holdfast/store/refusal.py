"""Refusal: an error of the file system as one of Holdfast's errors: what failed, where, and what to do next."""

from __future__ import annotations

import errno
import os
from pathlib import Path

from .. import disk
from ..errors import DiskError, NoSpace, StoreError

_FAILS = "the disk, or the connection to it, fails: the system's log (dmesg) tells more"
_RIGHTS = "give this user the right to write there"
_ADVICE = {
    errno.EIO: _FAILS,
    errno.ETIMEDOUT: _FAILS,
    errno.ESTALE: "the file system was taken away or replaced: mount it again",
    errno.EROFS: "mount it for writing; a file system that fails is often made read-only: see the system's log (dmesg)",
    errno.EACCES: _RIGHTS,
    errno.EFBIG: "this process may not write files of that size: see `ulimit -f`, and the limits of the file system",
    errno.EPERM: _RIGHTS,
}


def refused(root: Path, what: str, error: OSError) -> StoreError:
    """Return the error to raise when the run at `root` could not do `what`."""
    if error.errno == errno.ENOSPC:
        return NoSpace(f"{root}: no space left to {what}: {_room(root)}; free some, or keep fewer checkpoints")
    if error.errno == errno.EDQUOT:
        return NoSpace(
            f"{root}: the disk quota is used up, cannot {what}; of the whole file system {_room(root)}. Remove files "
            "of this user, group or project (`quota -s` shows whose), or keep fewer checkpoints"
        )
    if error.errno == errno.EXDEV:
        return StoreError(
            f"{root}: cannot {what}: its checkpoints lie on another file system than its attempts, and are "
            "moved between the two; link the run's whole directory there instead"
        )
    where = error.filename2 or error.filename or root
    advice = _ADVICE.get(error.errno or 0, "committed checkpoints are unchanged; put that right and try again")
    return DiskError(f"{root}: cannot {what}: {os.strerror(error.errno or 0)} ({os.fsdecode(where)}); {advice}")


def _room(root: Path) -> str:
    """Return what is free, in words."""
    try:
        free = disk.free(root)
    except OSError:
        return "what is free is unknown"
    if free.inodes == 0:
        return f"{free.size_bytes:,} bytes are free, and no inodes: each file needs one"
    return f"{free.size_bytes:,} bytes are free" + ("" if free.inodes is None else f", and {free.inodes:,} inodes")
