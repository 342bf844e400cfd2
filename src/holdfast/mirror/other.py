"""Any other file system that fsspec knows: Google Cloud Storage by gcsfs, Azure by adlfs. Files are
read back.

A call that lasts too long is given up, and counts as silence. Two limits depend on the file system.
If it has no exclusive create (`atomic` is False, at the latest after the first `create`), two
machines that claim at the same moment may both win. If it is no object store, a file is seen while
it is written. A manifest goes in one call.
"""

from __future__ import annotations

import errno
import inspect
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from typing import Any, TypeVar

import fsspec
from fsspec.core import url_to_fs

from ..errors import HoldfastError, UsageError
from ..store.format import MANIFEST
from ..threads import Worker
from .place import (
    Full,
    Pieces,
    Refused,
    Silent,
    redact_error,
    redact_url,
    split_path,
)
from .sent import PlaceWithoutChecksums, UploadPieces, has_exclusive_create

T = TypeVar("T")

# whose service has one winner, if the package asks for it
_ATOMIC = {"s3", "s3a", "gs", "gcs", "az", "abfs", "abfss"}
_WHOLE_BYTES = 16 << 20  # a file of up to so many bytes is sent with one call
_PIECE_BYTES = 4 << 20
_REFUSED = {400, 401, 403, 405}


class FsspecPlace(PlaceWithoutChecksums):
    told, own = (Exception,), (HoldfastError, Silent)
    limit_s = 30.0  # for one call
    slowest = 1 << 16  # bytes per second: a slower server counts as silent

    def __init__(self, url: str) -> None:
        self.shown, self._url = redact_url(url), url
        self._scheme = url.partition("://")[0]
        try:
            kind = fsspec.get_filesystem_class(self._scheme)
        except ValueError:
            raise UsageError(f"{self.shown}: fsspec knows no such kind of place") from None
        except ImportError as error:
            raise UsageError(f"{self.shown}: {redact_error(error)}") from None
        self._root = str(kind._strip_protocol(url)).rstrip("/")  # noqa: SLF001  fsspec's rule for what a class offers
        self._exclusive = _exclusive_option(kind)
        self.atomic = self._scheme in _ATOMIC and bool(self._exclusive)
        self._known_to_be_atomic = self._bucket_seen = False
        self._opened: Any = None

    def close(self) -> None:
        self._opened = None

    def read(self, path: str) -> bytes:
        with self.translating_errors():
            return self._call_with_limit(lambda files: bytes(files.cat_file(self._path_of(path))))

    def names(self, path: str) -> list[str]:
        folder = self._path_of(path)
        with self.translating_errors():
            try:
                found = self._call_with_limit(lambda files: files.ls(folder, detail=False))
            except FileNotFoundError:
                self._require_bucket()
                return []
            names = {
                each.rstrip("/").rpartition("/")[2]
                for each in found
                if each.strip("/") != folder.strip("/")
            }
            return sorted(names)

    def get(self, path: str) -> Iterator[bytes]:
        with self.translating_errors():
            file = self._call_with_limit(
                lambda files: files.open(self._path_of(path), "rb", block_size=_PIECE_BYTES)
            )
            try:
                while piece := self._call_with_limit(
                    lambda _: file.read(_PIECE_BYTES), _PIECE_BYTES
                ):
                    yield bytes(piece)
            finally:
                file.close()

    def create(self, path: str, data: bytes) -> None:
        file = self._path_of(path)
        with self.translating_errors():
            if self._call_with_limit(lambda files: files.exists(file)):
                raise FileExistsError(errno.EEXIST, f"{self.shown}/{path} exists")
            self._make_folder(file)
        self._create_exclusively(file, data)
        if self.atomic and not self._known_to_be_atomic:
            self.atomic = self._known_to_be_atomic = has_exclusive_create(
                partial(self._create_exclusively, file, data)
            )

    def put(self, path: str, size_bytes: int, pieces: Pieces) -> str:
        file, sent = self._path_of(path), UploadPieces(size_bytes, pieces)
        with self.translating_errors(sent):
            if size_bytes <= _WHOLE_BYTES:
                data = b"".join(sent)
                self._make_folder(file)
                self._call_with_limit(lambda files: files.pipe_file(file, data), size_bytes)
            else:
                self._make_folder(file)
                self._write(file, sent)
        return ""

    def copy(self, source: str, path: str) -> bool:
        old, file = self._path_of(source), self._path_of(path)
        with self.translating_errors():
            if not self._call_with_limit(lambda files: files.exists(old)):
                raise FileNotFoundError(errno.ENOENT, f"{self.shown}/{source} is missing")
            self._make_folder(file)
            try:
                self._call_with_limit(lambda files: files.cp_file(old, file))
            except NotImplementedError:
                return False
        return True

    def remove(self, path: str) -> None:
        target = self._path_of(path)
        with self.translating_errors(), suppress(FileNotFoundError):
            if self._call_with_limit(lambda files: files.isdir(target)):
                with suppress(FileNotFoundError):
                    self._call_with_limit(lambda files: files.rm_file(f"{target}/{MANIFEST}"))
            self._call_with_limit(lambda files: files.rm(target, recursive=True))

    def _path_of(self, path: str) -> str:
        return "/".join([self._root, *split_path(path)])

    def _require_bucket(self) -> None:
        """Raise an error if the bucket is missing:
        the packages report that like a missing folder.
        """
        bucket = self._root.strip("/").partition("/")[0]
        if self._scheme not in _ATOMIC or self._bucket_seen:
            return
        try:
            self._call_with_limit(lambda files: files.ls(bucket, detail=False))
        except FileNotFoundError:
            raise Refused(
                f"{self.shown}: there is no {bucket!r}; create it, or correct the URL"
            ) from None
        except Exception as error:
            # a user who may list it knows that it exists
            if not isinstance(self.translate_error(error), Refused):
                raise
        self._bucket_seen = True

    def _create_exclusively(self, file: str, data: bytes) -> None:
        with self.translating_errors():
            self._call_with_limit(lambda files: files.pipe_file(file, data, **self._exclusive))

    def _make_folder(self, file: str) -> None:
        """Make the folder. Object stores have no folders, and report that in different ways."""
        with suppress(FileExistsError, NotImplementedError):
            self._call_with_limit(
                lambda files: files.makedirs(file.rpartition("/")[0], exist_ok=True)
            )

    def _write(self, file: str, sent: UploadPieces) -> None:
        opened = self._call_with_limit(
            lambda files: files.open(file, "wb", block_size=_WHOLE_BYTES)
        )
        try:
            for piece in sent:
                self._call_with_limit(partial(_write, opened, piece), _WHOLE_BYTES)
            self._call_with_limit(lambda _: opened.close(), _WHOLE_BYTES)
        except BaseException:
            with suppress(AttributeError):
                # closing it, now or when it is collected, would make a file of the half
                opened.closed = True
            with suppress(Exception):  # the first error counts
                self._call_with_limit(lambda files: _discard(files, opened, file))
            raise

    def _call_with_limit(self, call: Callable[[Any], T], size_bytes: int = 0) -> T:
        """Call `function` with the file system;
        give up when it takes too long. The waiting thread is abandoned.
        """
        answer, wrong = list[T](), list[BaseException]()

        def ask() -> None:
            try:
                self._opened = self._opened or url_to_fs(self._url, skip_instance_cache=True)[0]
                self._opened.invalidate_cache()
                answer.append(call(self._opened))
            except BaseException as error:
                wrong.append(error)

        worker = Worker(ask, "holdfast-place")
        worker.start()
        limit_s = self.limit_s + size_bytes / self.slowest
        if not worker.ended.wait(limit_s):
            self._opened = None
            raise Silent(errno.ETIMEDOUT, f"{self.shown}: no answer for {limit_s:.0f} s")
        if wrong:
            raise wrong[0]
        return answer[0]

    def translate_error(self, error: Exception) -> Exception:
        # Azure's answer goes on in XML
        text = f"{self.shown}: {redact_error(error, self._url).partition(' RequestId:')[0]}"
        code = _http_status(error)
        if isinstance(error, FileNotFoundError) or code == 404:
            return FileNotFoundError(errno.ENOENT, text)
        if isinstance(error, FileExistsError) or code in {409, 412}:
            return FileExistsError(errno.EEXIST, text)
        if code == 507 or (
            isinstance(error, OSError) and error.errno in {errno.ENOSPC, errno.EDQUOT}
        ):
            return Full(f"{text}; make room, or let its rule keep fewer copies")
        credentials = any(
            word in type(error).__name__ for word in ("Auth", "Credential", "Refresh", "Token")
        )
        # an OSError without a number is how gcsfs tells a 403
        forbidden = str(error).startswith("Forbidden: ")
        if (
            isinstance(error, PermissionError | ValueError | TypeError)
            or code in _REFUSED
            or credentials
            or forbidden
        ):
            return Refused(f"{text}; check the URL, the credentials and their rights")
        return Silent(errno.EIO, text)


def _discard(files: Any, opened: Any, file: str) -> None:
    with suppress(AttributeError, NotImplementedError):
        opened.discard()
    files.rm_file(file)


def _write(opened: Any, piece: bytes, _: Any) -> None:
    opened.write(piece)


def _http_status(error: BaseException | None) -> int:
    """The HTTP status that the packages' own errors carry,
    or those below an error of fsspec's kind; else 0.
    """
    while error is not None:
        for name in ("code", "status_code", "status"):
            found = str(getattr(error, name, ""))
            if found.isdecimal():
                return int(found)
        error = error.__cause__
    return 0


def _exclusive_option(kind: Any) -> dict[str, Any]:
    """The option of an exclusive write, if this version of the package knows it: adlfs has a
    name of its own for it.
    """
    known = inspect.signature(getattr(kind, "_pipe_file", kind.pipe_file)).parameters
    return (
        {"mode": "create"}
        if "mode" in known
        else {"overwrite": False}
        if "overwrite" in known
        else {}
    )
