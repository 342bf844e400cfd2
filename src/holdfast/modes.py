"""Modes: whether files created in a directory are for this user alone. This module changes
nothing.
"""

from __future__ import annotations

import os
from pathlib import Path

OTHERS = 0o077  # all rights of the group and of other users

# a directory -> the path whose mode says whether others may see what is made in it
_mode_sources: dict[str, Path] = {}


def inherit_mode(directory: Path, of: Path | None = None) -> None:
    """Let this process create everything in `directory` without rights for other users from now on,
    while the directory's own mode, or that `of` a file, denies them.

    That mode may change at any time; other processes need not be told.
    """
    _mode_sources[os.path.abspath(directory)] = Path(os.path.abspath(of or directory))


def is_private(path: Path) -> bool:
    """Return whether the mode of `path` denies other users everything; true if that cannot be found
    out.
    """
    try:
        return not os.stat(path).st_mode & OTHERS
    except FileNotFoundError:
        return False
    except OSError:
        return True


def creation_mode(path: Path, mode: int) -> int:
    """Return `mode`, without the rights of other users inside a private directory of
    `inherit_mode`.
    """
    here = Path(os.path.abspath(path))
    around = [
        _mode_sources[place] for place in map(str, (here, *here.parents)) if place in _mode_sources
    ]
    return mode & ~OTHERS if any(map(is_private, around)) else mode
