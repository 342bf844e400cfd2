"""The only module that lists directories and checks whether a name is in use; it repeats reads that
fail.

`Path.glob` and `os.walk` report nothing also if the disk fails, and `exists` returns False on some
versions of Python. A caller that trusted them could delete a pinned checkpoint, or begin from
scratch. Here a name is absent only if it does not exist; all other errors are raised.
"""

from __future__ import annotations

import errno
import fnmatch
import os
import stat
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeVar

# Nothing is behind a link that leads to itself; nothing has a name that is too long.
_ABSENT = (errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.ENAMETOOLONG)
_WILD = frozenset("*?[")
# A file server, or the connection to it, fails so for a while.
_FAILING = {
    getattr(errno, name)
    for name in ("EIO", "ESTALE", "ETIMEDOUT", "EREMOTEIO", "ENOTCONN", "ENOMEM")
    if hasattr(errno, name)
}
READ_PAUSES_S = (0.1, 0.9, 3.0)  # before the second, third and fourth try

T = TypeVar("T")

AnyPath = str | os.PathLike[str]


def exists(path: AnyPath) -> bool:
    """Return whether something is at `path`, its links followed."""
    return _mode(path) is not None


def lexists(path: AnyPath) -> bool:
    """Return whether the name is in use, by a dangling link, too."""
    return _mode(path, follow=False) is not None


def is_dir(path: AnyPath) -> bool:
    return stat.S_ISDIR(_mode(path) or 0)


def is_file(path: AnyPath) -> bool:
    return stat.S_ISREG(_mode(path) or 0)


def is_symlink(path: AnyPath) -> bool:
    return stat.S_ISLNK(_mode(path, follow=False) or 0)


def names(path: AnyPath) -> list[str]:
    """Return the names in the directory `path`, sorted; none if it is not a directory or was
    removed.
    """
    try:
        return sorted(os.listdir(path))
    except OSError as error:
        _require_absent(error)
        return []


def glob(root: Path, pattern: str) -> list[Path]:
    """Return the paths below `root` that match, sorted: `*` also matches hidden names, `**` any
    folders but links.
    """
    found = [root]
    for part in Path(pattern).parts:
        if part == "**":
            found = [Path(folder) for each in found for folder, _, _ in walk(each)]
        elif _WILD.isdisjoint(part):
            found = [each / part for each in found if lexists(each / part)]
        else:
            found = [
                each / name
                for each in found
                for name in names(each)
                if fnmatch.fnmatchcase(name, part)
            ]
    return sorted({*found})


def walk(root: AnyPath) -> Iterator[tuple[str, list[str], list[str]]]:
    """Yield what `os.walk` yields; directories that are removed meanwhile are left out."""
    return os.walk(root, onerror=_require_absent)


def _mode(path: AnyPath, *, follow: bool = True) -> int | None:
    try:
        return os.stat(path, follow_symlinks=follow).st_mode
    except OSError as error:
        _require_absent(error)
    except ValueError:  # no name has a null character
        pass
    return None


def _require_absent(error: OSError) -> None:
    if error.errno not in _ABSENT:
        raise error


def repeat_read(path: AnyPath, read: Callable[[], T]) -> T:
    """Return what `read` returns, which opens and reads the small file `path`; repeat it while the
    disk fails. What the last try raises has the file's name.
    """
    pauses_s = iter(READ_PAUSES_S)
    while True:
        try:
            return read()
        except OSError as error:
            pause_s = next(pauses_s, None) if error.errno in _FAILING else None
            if pause_s is None:
                error.filename = error.filename or os.fspath(path)
                raise
        time.sleep(pause_s)
