"""A folder on an SSH server. A file is written under another name, synced if the server can,
renamed and read back.

SFTP has no request that makes a name durable: whether a renamed file survives a power loss of the
server at once is decided by its file system.
"""

from __future__ import annotations

import errno
import os
import posixpath
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any
from urllib.parse import unquote, urlsplit

import paramiko

from ..errors import UsageError
from ..store.format import MANIFEST
from .place import (
    Full,
    Pieces,
    Refused,
    Silent,
    read_small,
    redact_error,
    redact_url,
    split_path,
)
from .sent import PlaceWithoutChecksums, UploadPieces
from .sftp_connection import ANSWER_S, Connection
from .sftp_requests import PipelinedRequests, SftpClient

_PIECE_BYTES = 1 << 20
_NO_FILE = (errno.ENOENT, errno.ENOTDIR)


class SftpPlace(PlaceWithoutChecksums):
    told, own = (OSError, EOFError, paramiko.SSHException), (Silent, Full, FileExistsError)

    def __init__(self, url: str) -> None:
        self.shown, self.atomic = redact_url(url), True
        parts = urlsplit(url)
        if not parts.hostname or not parts.path.strip("/") or parts.query or parts.fragment:
            raise UsageError(
                f"{self.shown}: write sftp://USER@HOST/PATH, "
                "or sftp://USER@HOST/~/PATH for the home"
            )
        path = unquote(parts.path).rstrip("/")
        self._root = path.removeprefix("/~/")  # a server starts at the user's home
        self._url = url
        self._connection: Connection | None = None

    def close(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()

    def read(self, path: str) -> bytes:
        return read_small(self.get(path))

    def names(self, path: str) -> list[str]:
        with self._connected_client() as client:
            try:
                found = client.listdir(self._path_of(path))
            except OSError as error:
                if error.errno not in _NO_FILE:
                    raise
                self._require_parent(client)
                return []
            return sorted(
                name for name in found if not (name.startswith(".") and name.endswith(".new"))
            )

    def get(self, path: str) -> Iterator[bytes]:
        with self._connected_client() as client, client.open(self._path_of(path), "rb") as file:
            piece = bytearray()
            for part in PipelinedRequests(client, file.handle).read(file.stat().st_size):
                piece += part
                if len(piece) >= _PIECE_BYTES:
                    yield bytes(piece)
                    piece.clear()
            if piece:
                yield bytes(piece)

    def create(self, path: str, data: bytes) -> None:
        file = self._path_of(path)
        fresh = _sibling_path(file, os.urandom(8).hex())
        with self._connected_client() as client:
            self._make_folder(client, posixpath.dirname(file))
            if _exists(client, file):
                raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), file)
            try:
                self._write(client, fresh, "wx", [data])
                self._link_or_write(client, fresh, file, data)
            finally:
                _remove_unfinished(client, fresh)

    def put(self, path: str, size_bytes: int, pieces: Pieces) -> str:
        file, sent = self._path_of(path), UploadPieces(size_bytes, pieces)
        fresh = _sibling_path(file)
        with self._connected_client(sent) as client:
            self._make_folder(client, posixpath.dirname(file))
            try:
                self._write(client, fresh, "w", sent)
                client.posix_rename(fresh, file)
            except BaseException as error:
                _remove_unfinished(client, fresh)
                self._require_room(client, size_bytes, error)
                raise
        return ""

    def copy(self, source: str, path: str) -> bool:
        """Link the file under a second name. Both checkpoints share it; its space is freed
        with the last of them.
        """
        old, file = self._path_of(source), self._path_of(path)
        fresh = _sibling_path(file)
        with self._connected_client() as client:
            client.lstat(old)
            self._make_folder(client, posixpath.dirname(file))
            _remove_file(client, fresh)
            try:
                client.extended("hardlink@openssh.com", old, fresh)
            except OSError:  # not offered, or its file system has no links
                return False
            client.posix_rename(fresh, file)
            _remove_file(client, fresh)  # a rename between two names of one file does nothing
        return True

    def remove(self, path: str) -> None:
        with self._connected_client() as client:
            _remove_tree(client, self._path_of(path))

    def _path_of(self, path: str) -> str:
        return "/".join([self._root, *split_path(path)])

    def _require_parent(self, client: SftpClient) -> None:
        """Require the parent folder: an unmounted file system must not be taken for an empty
        place.
        """
        parent = posixpath.dirname(self._root) or "."
        if not _exists(client, parent):
            raise Silent(
                f"{self.shown}: {parent}: no such folder: "
                "mount it, or create it if the mirror is new"
            )

    def _make_folder(self, client: SftpClient, folder: str) -> None:
        if _exists(client, folder):
            return
        self._require_parent(client)
        missing = [folder]
        while missing[-1] != self._root and not _exists(client, posixpath.dirname(missing[-1])):
            missing.append(posixpath.dirname(missing[-1]))
        for each in reversed(missing):
            try:
                client.mkdir(each)
            except OSError:
                if not _exists(client, each):
                    raise

    @staticmethod
    def _write(client: SftpClient, file: str, mode: str, pieces: Any) -> None:
        with client.open(file, mode) as opened:
            PipelinedRequests(client, opened.handle).write(pieces)
            try:
                client.extended("fsync@openssh.com", opened.handle)
            except OSError as error:
                if error.errno != errno.ENOTSUP:
                    raise

    @staticmethod
    def _link_or_write(client: SftpClient, fresh: str, file: str, data: bytes) -> None:
        """Create `file` from `fresh` unless it exists. Without hard links a crash here
        leaves an incomplete file.
        """
        try:
            client.extended("hardlink@openssh.com", fresh, file)
        except OSError:
            if _exists(client, file):
                raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), file) from None
            try:
                SftpPlace._write(client, file, "wx", [data])
            except OSError:
                if _exists(client, file):
                    raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), file) from None
                raise

    def _require_room(self, client: SftpClient, size_bytes: int, error: BaseException) -> None:
        """Raise Full if the disk is full. SFTP does not say why a write failed, so ask for
        the free space.
        """
        if isinstance(error, OSError) and error.errno == errno.EIO:
            free = _free_bytes(client, posixpath.dirname(self._root) or ".")
            if 0 <= free < size_bytes:
                raise Full(
                    f"{self.shown}: {free} bytes are free there; "
                    "make room, or let its rule keep fewer copies"
                )

    @contextmanager
    def _connected_client(self, sent: UploadPieces | None = None) -> Iterator[SftpClient]:
        """Yield the connection, and translate its errors. It is closed after a call without
        an answer.
        """
        if self._connection is None:
            self._connection = Connection(self._url)
        with self.translating_errors(sent):
            yield self._connection.client

    def translate_error(self, error: Exception) -> Exception:
        silent = isinstance(error, TimeoutError)
        text = (
            f"{self.shown}: "
            f"{f'no answer for {ANSWER_S:.0f} s' if silent else redact_error(error, self._url)}"
        )
        code = error.errno if isinstance(error, OSError) else None
        if code in _NO_FILE:
            return FileNotFoundError(errno.ENOENT, text)
        if code in {errno.EACCES, errno.ENOTSUP}:
            return Refused(f"{text}; give this user the right to write there")
        if code != errno.EIO:  # EIO is an answer, all else is silence
            self.close()
        return Silent(errno.EIO, text)


def _sibling_path(file: str, word: str = "") -> str:
    folder, name = posixpath.split(file)
    return f"{folder}/.{name}{'.' if word else ''}{word}.new"


def _exists(client: SftpClient, path: str) -> bool:
    with suppress(FileNotFoundError):
        client.lstat(path)
        return True
    return False


def _remove_file(client: SftpClient, path: str) -> None:
    with suppress(FileNotFoundError):
        client.remove(path)


def _remove_unfinished(client: SftpClient, path: str) -> None:
    """Remove an unfinished file, if the server still answers."""
    with suppress(OSError, EOFError, paramiko.SSHException):
        client.remove(path)


def _remove_tree(client: SftpClient, path: str) -> None:
    try:
        if not stat.S_ISDIR(client.lstat(path).st_mode or 0):
            client.remove(path)
            return
        for name in sorted(client.listdir(path), key=lambda name: name != MANIFEST):
            _remove_tree(client, f"{path}/{name}")
        client.rmdir(path)
    except FileNotFoundError:
        return


def _free_bytes(client: SftpClient, path: str) -> int:
    """The free bytes at `path`; -1 if the server does not tell."""
    try:
        facts = client.extended("statvfs@openssh.com", path)
        _, fragment, _, _, available, *_ = (facts.get_int64() for _ in range(11))
    except OSError:
        return -1
    return int(fragment) * int(available)
