"""Durable file operations: the only module that changes the file system.

Each call is one small step, so that a test can simulate a crash before, during and after it. After
`write` and `append(sync=True)` the bytes survive a power loss; a *name* survives it only after
`sync_dir` on its directory.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import os
import stat
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from itertools import takewhile
from pathlib import Path
from typing import NamedTuple

from . import modes, scan

Chunk = bytes | bytearray | memoryview

FILE_MODE, DIRECTORY_MODE = 0o666, 0o777  # less the process's umask

_AT_FDCWD = -100
_RENAME_NOREPLACE = 1
# on NFS, some FUSE file systems and old kernels
_NO_SUCH_FLAG = (errno.EINVAL, errno.ENOSYS, errno.ENOTSUP)
_renameat2 = getattr(ctypes.CDLL(None, use_errno=True), "renameat2", None)


class NotPlain(OSError):
    """The name belongs to something other than a plain file:
    a directory, a link, a pipe or a device.
    """


def open_plain(path: Path, *, follow: bool = False, direct: bool = False) -> int:
    """Return a descriptor that reads the plain file `path`. Other kinds are refused at once; a pipe
    would block.

    With `direct` it reads whole pages into whole pages, past the page cache; not every file system
    supports that.

    Raises:
        NotPlain: it is not a plain file. A link is refused, too, unless `follow`.
    """
    try:
        flags = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | (0 if follow else os.O_NOFOLLOW)
        if direct and not hasattr(os, "O_DIRECT"):  # Linux
            raise OSError(errno.ENOTSUP, os.strerror(errno.ENOTSUP), str(path))
        flags |= os.O_DIRECT if direct else 0
        descriptor = os.open(path, flags)
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.ENXIO):  # a link; a socket
            raise NotPlain(errno.EINVAL, "not a plain file", str(path)) from error
        raise
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise NotPlain(errno.EINVAL, "not a plain file", str(path))
    # some file systems that fetch from tape return an error instead of waiting otherwise
    os.set_blocking(descriptor, True)
    return descriptor


def write(path: Path, chunks: Iterable[Chunk], mode: int = FILE_MODE) -> None:
    """Create `path` with the concatenated chunks, flushed to the device. Its name is not: see
    `sync_dir`.

    Raises:
        FileExistsError: the name is in use.
        OSError: the file may exist, incomplete.
    """
    descriptor = os.open(
        path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, modes.creation_mode(path, mode)
    )
    try:
        for chunk in chunks:
            _write_all(descriptor, chunk)
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def append(path: Path, data: bytes, *, sync: bool) -> None:
    """Add `data` to the end of an existing file; never create it.

    Raises:
        NotPlain: it is a link, which is not followed.
    """
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise NotPlain(errno.EINVAL, "not a plain file", str(path)) from error
        raise
    try:
        _write_all(descriptor, data)
        if sync:
            os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _write_all(descriptor: int, chunk: Chunk) -> None:
    rest = memoryview(chunk).cast("B") if memoryview(chunk).nbytes else memoryview(b"")
    while rest:
        rest = rest[os.write(descriptor, rest) :]


def rename_new(source: Path, target: Path) -> None:
    """Rename a file or directory to a name that is not in use.

    Raises:
        FileExistsError: the name is in use; `source` is unchanged.
        FileNotFoundError: `source`, or the directory of either, is missing.
    """
    if _renameat2 is not None:
        flag = _RENAME_NOREPLACE
        if _renameat2(_AT_FDCWD, os.fsencode(source), _AT_FDCWD, os.fsencode(target), flag) == 0:
            return
        code = ctypes.get_errno()
        if code not in _NO_SUCH_FLAG:
            raise OSError(code, os.strerror(code), str(source), None, str(target))
    if scan.lexists(target):  # a plain rename would silently replace a file or an empty directory
        raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), str(target))
    try:
        os.rename(source, target)
    except OSError as error:
        if error.errno == errno.ENOTEMPTY:
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), str(target)) from error
        raise


def replace(source: Path, target: Path) -> None:
    """Rename a file or link, replacing any file with the new name."""
    os.replace(source, target)


def symlink(text: str, path: Path) -> None:
    path.symlink_to(text)


def link(source: Path, target: Path) -> None:
    """Give a file a second name, which must not be in use.
    Neither its bytes nor the name are synced.
    """
    os.link(source, target, follow_symlinks=False)


def make_dir(path: Path) -> None:
    path.mkdir(modes.creation_mode(path, DIRECTORY_MODE))


def remove_file(path: Path) -> None:
    path.unlink()


def remove_dir(path: Path) -> None:
    """Remove an *empty* directory."""
    path.rmdir()


def truncate(path: Path, size_bytes: int) -> None:
    """Cut an existing file off at `size_bytes`, durably.

    Raises:
        OSError: it is a link, which is not followed.
    """
    descriptor = os.open(path, os.O_WRONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        os.ftruncate(descriptor, size_bytes)
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def sync_file(path: Path) -> None:
    """Flush a file that another process or library has written."""
    descriptor = open_plain(path)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def sync_dir(path: Path) -> None:
    """Make all changes of names in `path` survive a power loss: creations, renames and removals."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def make_dirs(path: Path) -> None:
    """Create `path` and its missing ancestors, durably. Existing names are synced, too: their
    maker may have died.
    """
    missing = [*takewhile(lambda each: not scan.is_dir(each), (path, *path.parents))]
    if missing:
        with suppress(FileNotFoundError, NotADirectoryError):
            os.stat(path)  # a path that is too long is refused before any part of it is made
    there = missing[-1].parent if missing else path
    for each in (there, *reversed(missing)):
        if each is not there:
            try:
                make_dir(each)
            except FileExistsError:
                if not scan.is_dir(each):
                    raise
        # a parent directory without read permission cannot be opened; its owner must sync it
        with suppress(PermissionError):
            sync_dir(each.parent)


def remove_tree(path: Path) -> None:
    """Remove a file, a link or a whole directory; a missing one is accepted."""
    try:
        if not stat.S_ISDIR(os.lstat(path).st_mode):
            remove_file(path)
            return
        for child in sorted(os.listdir(path)):
            remove_tree(path / child)
        remove_dir(path)
    except FileNotFoundError:
        return


def replace_with(path: Path, chunks: Iterable[Chunk], mode: int = FILE_MODE) -> None:
    """Write a whole durable file, then replace `path` with it in one step."""
    with open_replacement(path, mode) as put:
        for chunk in chunks:
            put(chunk)


@contextmanager
def open_replacement(path: Path, mode: int = FILE_MODE) -> Iterator[Callable[[Chunk], None]]:
    """Yield a function that writes. At the end of the block all that it wrote replaces `path` in
    one step, durably.

    Any number of processes may replace the same file: the last one wins. Files that a killed
    process left beside it are removed.
    """
    for name in os.listdir(path.parent):
        if name.startswith(f".{path.name}.") and name.endswith(".new"):
            _remove_abandoned(path.parent / name)
    # a pid would not be unique among containers
    fresh = path.with_name(f".{path.name}.{os.urandom(8).hex()}.new")
    descriptor = _create_locked(fresh, mode)
    try:
        yield lambda chunk: _write_all(descriptor, chunk)
        os.fsync(descriptor)
        replace(fresh, path)
    except BaseException:
        remove_tree(fresh)
        raise
    finally:
        os.close(descriptor)
    sync_dir(path.parent)


def _create_locked(path: Path, mode: int) -> int:
    """Create a file and lock it;
    the kernel drops the lock when this process ends, however it ends.
    """
    while True:
        descriptor = os.open(
            path,
            os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC,
            modes.creation_mode(path, mode),
        )
        with suppress(OSError):  # without locks, no file is ever treated as abandoned
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        if os.fstat(descriptor).st_nlink:
            return descriptor
        os.close(descriptor)  # another process removed it before we locked it


def is_abandoned(path: Path) -> bool:
    """Return whether the process that was writing this file of `open_replacement` is gone. False if
    locks do not work here.
    """
    return _act_if_abandoned(path, lambda: None)


def _remove_abandoned(path: Path) -> None:
    # under the lock: a process that has created it and not locked it yet will see that it is gone
    _act_if_abandoned(path, lambda: remove_file(path))


def _act_if_abandoned(path: Path, act: Callable[[], None]) -> bool:
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        act()
    except OSError:
        return False
    finally:
        os.close(descriptor)
    return True


def lock(path: Path) -> int | None:
    """Lock a file, which is created if need be, until this process ends; None: another process
    holds the lock. Without locks on this file system the file counts as locked.
    """
    flags = os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
    descriptor = os.open(path, flags, modes.creation_mode(path, FILE_MODE))
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        return None
    except OSError:
        pass
    return descriptor


def make_private(directory: Path) -> None:
    """Keep all other users out of `directory`, which is created if need be, and of all that is in
    it.

    Raises:
        PermissionError: it is another user's.
    """
    if not scan.is_dir(directory):
        make_dirs(directory.parent)
        with suppress(FileExistsError):
            directory.mkdir(DIRECTORY_MODE & ~modes.OTHERS)
    modes.inherit_mode(directory)
    directory = Path(os.path.realpath(directory))  # below it no link is followed
    if modes.is_private(directory):
        return
    for folder, folders, files in scan.walk(directory):
        for name in (*folders, *files):
            # another user's; a link; gone meanwhile
            with suppress(PermissionError, FileNotFoundError, NotPlain):
                restrict_to_owner(Path(folder, name))
    restrict_to_owner(directory)  # last: if this is cut short, the next call begins again


def restrict_if_private(path: Path) -> None:
    """Take other users' rights from a file that another program wrote in a private directory
    (`modes`).
    """
    if not modes.creation_mode(path, modes.OTHERS):
        restrict_to_owner(path)


def restrict_to_owner(path: Path) -> None:
    """Take all rights from other users.

    Raises:
        NotPlain: it is neither a file nor a directory.
    """
    is_dir = stat.S_ISDIR(os.lstat(path).st_mode)
    flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
    descriptor = os.open(path, flags) if is_dir else open_plain(path)
    try:
        os.fchmod(descriptor, stat.S_IMODE(os.fstat(descriptor).st_mode) & ~modes.OTHERS)
    finally:
        os.close(descriptor)


def create_shared(name: str, size_bytes: int) -> int:
    """Return a descriptor of memory that other processes open through /proc; it is freed with its
    last user.

    Raises:
        OSError: there is no such memory, as on macOS.
    """
    if not hasattr(os, "memfd_create"):
        raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS), name)
    descriptor = os.memfd_create(name)
    try:
        os.ftruncate(descriptor, size_bytes)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def open_shared(path: Path, *, append: bool = False) -> int:
    """Open, for reading and writing, memory that another process has created with `create_shared`.

    Raises:
        NotPlain: there is something else.
    """
    if not stat.S_ISREG(os.stat(path).st_mode):
        raise NotPlain(errno.EINVAL, "not memory", str(path))
    return os.open(path, os.O_RDWR | os.O_CLOEXEC | (os.O_APPEND if append else 0))


def open_null() -> int:
    """Return a descriptor that discards everything that is written to it."""
    return os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)


def empty_shared(descriptor: int) -> None:
    """Discard the content of memory from `create_shared`."""
    os.ftruncate(descriptor, 0)


class FreeSpace(NamedTuple):
    """The free space of a file system for this user."""

    size_bytes: int
    inodes: int | None  # files and directories; None: it has no limit


def free_space(path: Path) -> FreeSpace:
    """Return the free space on the file system of `path`. Quotas are not counted."""
    facts = os.statvfs(path)
    return FreeSpace(facts.f_bavail * facts.f_frsize, facts.f_favail if facts.f_files else None)


def free_bytes(path: Path) -> int:
    """Return the bytes that this user may still write on the file system of `path`."""
    return free_space(path).size_bytes


def drop_cached(path: Path) -> None:
    """Ask the kernel to drop its cached pages of `path`, so that the next read comes from the
    medium.

    This is only a hint: tmpfs has no medium, pages that another process has mapped stay, and macOS
    has no such call.
    """
    if not hasattr(os, "posix_fadvise"):
        return
    descriptor = open_plain(path)
    try:
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
    finally:
        os.close(descriptor)
