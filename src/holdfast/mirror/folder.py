"""A folder that this machine has mounted: NFS, Lustre, another disk. Files are synced, and read
back from the medium.

A hard NFS mount whose server is gone blocks a call without limit; the caller has its own time
limit.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from .. import bulk, disk, modes, scan
from ..errors import Damaged, NotFound
from ..store import source
from ..store.format import MANIFEST
from .place import (
    Full,
    NotKept,
    Pieces,
    Refused,
    Silent,
    read_small,
    redact_error,
    split_path,
)
from .sent import PlaceWithoutChecksums, UploadPieces

_PIECE_BYTES = 4 << 20
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_REFUSED = (
    errno.EACCES,
    errno.EPERM,
    errno.EROFS,
    errno.ENOTDIR,
    errno.EISDIR,
    errno.ENAMETOOLONG,
    errno.ELOOP,
)
_NO_LINKS = (errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK, errno.EXDEV)


class FolderPlace(PlaceWithoutChecksums):
    told, own = (OSError,), (Silent, FileNotFoundError, FileExistsError)

    def __init__(self, root: Path, *, private: bool = False) -> None:
        self.shown = str(root)
        # a link, or O_EXCL where there are no links: both are exclusive on NFS, too
        self.atomic = True
        self._root, self._private = root, private
        modes.inherit_mode(root)

    def close(self) -> None:
        pass

    def read(self, path: str) -> bytes:
        return read_small(self.get(path))

    def names(self, path: str) -> list[str]:
        with self.translating_errors():
            self._require_parent()
            try:
                found = os.listdir(self._path_of(path))
            except FileNotFoundError:
                return []
            return sorted(name for name in found if not _is_unfinished(name))

    def get(self, path: str) -> Iterator[bytes]:
        file = self._path_of(path)
        with self.translating_errors():
            self._require_parent()
            os.lstat(file)
            for block in _blocks(file):
                yield bytes(block)

    def create(self, path: str, data: bytes) -> None:
        file = self._writable_path(path)
        fresh = file.with_name(f".{file.name}.{os.urandom(8).hex()}.new")
        with self.translating_errors():
            self._make_folder(file.parent)
            if scan.lexists(file):
                raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), str(file))
            try:
                disk.write(fresh, [data])
                # before it has its name: nobody is to see a damaged manifest
                if b"".join(_blocks(fresh)) != data:
                    raise NotKept(f"{self.shown}/{path}: differs from what was sent")
                _link_or_write(fresh, file, data)
            finally:
                disk.remove_tree(fresh)
            disk.sync_dir(file.parent)

    def put(self, path: str, size_bytes: int, pieces: Pieces) -> str:
        file, sent = self._writable_path(path), UploadPieces(size_bytes, pieces)
        with self.translating_errors(sent), self._replacing(file) as fresh:
            bulk.write(fresh, map(memoryview, sent), size_bytes, _NoDigest)
        return ""

    def copy(self, source: str, path: str) -> bool:
        """Link the file under a second name. Both checkpoints share it; its space is freed
        with the last of them.
        """
        file, old = self._writable_path(path), self._writable_path(source)
        with self.translating_errors():
            self._require_parent()
            os.lstat(old)
            try:
                with self._replacing(file) as fresh:
                    disk.link(old, fresh)
            except OSError as error:
                if error.errno not in _NO_LINKS:
                    raise
                return False
        return True

    def remove(self, path: str) -> None:
        target = self._writable_path(path)
        with self.translating_errors():
            self._require_parent()
            with suppress(FileNotFoundError, NotADirectoryError):
                if scan.is_symlink(target):  # only the link goes
                    raise NotADirectoryError
                disk.remove_file(target / MANIFEST)
                disk.sync_dir(target)  # before any other file goes
            disk.remove_tree(target)
            with suppress(FileNotFoundError):
                disk.sync_dir(target.parent)

    def _path_of(self, path: str) -> Path:
        return self._root.joinpath(*split_path(path))

    def _writable_path(self, path: str) -> Path:
        """Return where `path` is written or removed.

        Raises:
            Refused: a folder on the way there is a link. What it leads to is not the mirror's.
        """
        file = self._path_of(path)
        for folder in file.parents[: len(split_path(path)) - 1]:
            if scan.is_symlink(folder):
                raise Refused(
                    f"{folder} is a symbolic link to {os.readlink(folder)}: "
                    "a mirror writes through no link; put the "
                    "folder itself in its place. Only the mirror's whole folder may be a link"
                )
        return file

    def _require_parent(self) -> None:
        """Require the parent folder: an unmounted file system must not be taken for an empty
        place.
        """
        if not scan.is_dir(self._root.parent):
            raise Silent(
                f"{self._root.parent}: no such folder: mount it, or create it if the mirror is new"
            )

    def _make_folder(self, folder: Path) -> None:
        self._require_parent()
        if self._private:
            disk.make_private(self._root)
        disk.make_dirs(folder)

    @contextmanager
    def _replacing(self, file: Path) -> Iterator[Path]:
        """Yield a name beside `file` for a new one,
        which replaces it at the end of the block, durably.
        """
        self._make_folder(file.parent)
        # only one process writes here: files of a killed one are removed
        fresh = file.with_name(f".{file.name}.new")
        disk.remove_tree(fresh)
        try:
            yield fresh
            disk.replace(fresh, file)
        finally:
            # also after a rename between two names of one file, which does nothing
            disk.remove_tree(fresh)
        disk.sync_dir(file.parent)

    def translate_error(self, error: OSError) -> Exception:
        text = redact_error(f"{error.strerror or error}: {error.filename or self.shown}")
        if error.errno in _FULL:
            return Full(
                f"{self.shown}: no space is left ({text}); "
                "make room, or let its rule keep fewer copies"
            )
        if error.errno in _REFUSED:
            return Refused(
                f"{self.shown}: not allowed ({text}); give this user the right to write there"
            )
        return Silent(f"{self.shown}: {text}")


def _is_unfinished(name: str) -> bool:
    return name.startswith(".") and name.endswith(".new")


def _link_or_write(fresh: Path, file: Path, data: bytes) -> None:
    """Create `file` from `fresh` unless it exists. Without hard links a crash here leaves an
    incomplete file.
    """
    try:
        disk.link(fresh, file)
    except FileExistsError:
        if os.stat(fresh).st_nlink == 1:  # 2: an NFS server had done it, and its answer was lost
            raise
    except OSError as error:
        if error.errno not in _NO_LINKS:
            raise
        disk.write(file, [data])


def _blocks(file: Path) -> Iterator[memoryview]:
    try:
        yield from source.read_blocks(file, _PIECE_BYTES, cold=True)
    except NotFound as error:
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(file)) from error
    except Damaged as error:
        if not scan.lexists(file):
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(file)) from error
        raise


class _NoDigest:
    """Computes no digest, where `bulk` wants an object that digests each piece."""

    def __init__(self, *data: memoryview) -> None:
        pass

    def update(self, data: memoryview) -> None:
        pass

    def hexdigest(self) -> str:
        return ""
