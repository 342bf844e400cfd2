"""Places: which directories of a run may be symbolic links, checked before anything is written
there.

`checkpoints` may be one, to a directory of the same user: clusters keep big files on another file
system. `attempts`, `history`, `quarantine`, `pins` and what lies below them may not: files moved
there, or removed there, must be the run's own. This module creates and removes nothing.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path

from .. import disk, modes, scan
from ..errors import UsageError

OWN = ("attempts", "history", "quarantine", "pins")


def require_safe_links(root: Path) -> None:
    """Check all directories of a run at `root` that Holdfast writes to. Missing directories are
    accepted.

    New files of this process there are as private as the run's directory.

    Raises:
        UsageError: one is a link that is not followed.
    """
    modes.inherit_mode(root)
    for name in OWN:
        refuse_link(root / name)
    checkpoints_directory(root)


def make_private(root: Path) -> None:
    """Keep all other users out of the run at `root`, and out of its checkpoints if they lie
    elsewhere.

    Raises:
        UsageError: one of the two is another user's.
    """
    for place in (root, root / "checkpoints"):
        try:
            if place == root or scan.is_symlink(place):
                disk.make_private(place)
        except PermissionError as error:
            raise UsageError(
                f"{place}: private=True cannot keep other users out "
                "of another user's directory; begin the run in one "
                "of your own"
            ) from error


def refuse_linked_attempts(root: Path) -> None:
    """Require that no attempt's directory is a link.

    Raises:
        UsageError: `attempts`, or an attempt's directory in it, is a link. Closing that attempt
            would empty its target.
    """
    rooms = root / "attempts"
    refuse_link(rooms)
    for name in scan.names(rooms):
        if name.isdecimal():
            refuse_link(rooms / name)


def refuse_link(path: Path) -> None:
    """Refuse a symbolic link.

    Raises:
        UsageError: `path` is a symbolic link.
    """
    if scan.is_symlink(path):
        raise UsageError(
            f"{path} is a symbolic link to {os.readlink(path)}: "
            "Holdfast writes through no link here; put the "
            "directory itself in its place, or remove the link. "
            "Only the run's whole directory, and its checkpoints, "
            "may lie elsewhere"
        )


def checkpoints_directory(root: Path) -> Path:
    """Return the run's `checkpoints` directory, its link resolved.

    Raises:
        UsageError: `checkpoints` is a link to a missing directory, or to another user's.
    """
    path = root / "checkpoints"
    if not scan.is_symlink(path):
        return path
    target = os.readlink(path)
    try:
        found = path.stat()
    except OSError as error:
        raise UsageError(
            f"{path} is a link to {target}, which cannot be "
            f"reached ({error.strerror}): make that directory"
        ) from error
    if not stat.S_ISDIR(found.st_mode):
        raise UsageError(f"{path} is a link to {target}, which is no directory: link to one")
    if not may_follow_link(path.lstat().st_uid, found.st_uid, root.stat().st_uid, os.geteuid()):
        raise UsageError(
            f"{path} is a link to {target}, a directory of another "
            f"user (uid {found.st_uid}): checkpoints are written "
            "and removed there; link to a directory of your own"
        )
    return path


def may_follow_link(link: int, target: int, run: int, user: int) -> bool:
    """Whether `user` may write through a link. `link`, `target` and `run` are the owners' user ids.

    The target must belong to the user, or to the run's owner. The link must belong to the user, or
    to the target's owner. Otherwise another user's link could lead root, who may write everywhere,
    into a directory of root's.
    """
    return target in (user, run) and link in (user, target)
