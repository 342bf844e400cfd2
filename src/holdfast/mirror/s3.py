"""S3, and servers that speak its protocol. Endpoint, region and credentials come from where every
tool finds them.

The checksum that verifies a file is always the server's own. Holdfast never sends one for a whole
object: a server could merely return it. A server that computes none is read back.
"""

from __future__ import annotations

import base64
from collections.abc import Iterable, Iterator
from contextlib import suppress
from functools import partial
from typing import Any
from urllib.parse import urlsplit

from awscrt.checksums import combine_crc64nvme, crc64nvme

from ..errors import UsageError
from ..store.format import MANIFEST
from ..threads import WorkerPool, map_in_threads
from .place import NotKept, Pieces, Refused, Silent, redact_url, split_path
from .s3_calls import BucketCalls, tried
from .sent import UploadPieces, has_exclusive_create

CRC = "CRC64NVME"
IN_FLIGHT = 4  # parts under way at the same time; one more is being filled

_MOST_PARTS = 10_000
_SMALLEST_COPIED = 1 << 16  # a file that is smaller is sent as fast as it is copied
_SMALL = 1 << 24  # the size that a file of `read` may have, for its time limit


class S3Place:
    whole_bytes = 64 << 20  # a file of up to so many bytes is sent with one request
    part_bytes = 16 << 20

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        self.shown, self.atomic = redact_url(url), True
        if not parts.netloc or "@" in parts.netloc or parts.query or parts.fragment:
            raise UsageError(
                f"{self.shown}: write s3://BUCKET/PATH; "
                "credentials come from the environment or ~/.aws"
            )
        self._prefix = parts.path.strip("/")
        self._calls = BucketCalls(parts.netloc, self.shown)
        self._known_to_be_atomic = False

    def close(self) -> None:
        self._calls.close()

    def read(self, path: str) -> bytes:
        return self._calls.bytes_of(self._key(path), _SMALL)

    def names(self, path: str) -> list[str]:
        folder = self._folder(path)
        listed = self._calls.list(folder, Delimiter="/")
        return sorted({name[len(folder) :].strip("/") for name in listed} - {""})

    def get(self, path: str) -> Iterator[bytes]:
        """Yield the parts in order; some are fetched at the same time.
        All are of one version of the file.
        """
        key = self._key(path)
        facts = self._calls.call("head_object", Key=key)
        size, version = facts["ContentLength"], facts["ETag"]
        starts = range(0, size, self.part_bytes)
        asked, fetched = iter(starts), dict[int, bytes]()
        pool = WorkerPool[tuple[int, bytes]](IN_FLIGHT)
        try:
            for start in starts:
                while start not in fetched:
                    while (
                        pool.under_way + len(fetched) < IN_FLIGHT
                        and (first := next(asked, None)) is not None
                    ):
                        pool.submit(
                            partial(
                                self._get_part,
                                key,
                                first,
                                min(first + self.part_bytes, size),
                                version,
                            )
                        )
                    fetched.update(pool.results())
                yield fetched.pop(start)
        finally:
            pool.close()

    def check(self, path: str, size_bytes: int, pieces: Pieces) -> str:
        crc = 0
        for piece in UploadPieces(size_bytes, pieces):
            crc = crc64nvme(piece, crc)
        return self.verify(path, size_bytes, crc)

    def verify(self, path: str, size_bytes: int, crc: int) -> str:
        """Compare the server's own checksum of the object."""
        facts = self._calls.call("head_object", Key=self._key(path), ChecksumMode="ENABLED")
        kept = facts.get(f"Checksum{CRC}", "")
        if not kept or "-" in kept:  # with a dash: of the parts' checksums
            return ""
        if facts["ContentLength"] != size_bytes or kept != _crc_text(crc):
            raise NotKept(
                f"{self.shown}/{path}: its checksum differs "
                "from that of what was sent; send it again"
            )
        return CRC

    def create(self, path: str, data: bytes) -> None:
        key = self._key(path)
        try:
            self._calls.call("head_object", Key=key)
        except FileNotFoundError:
            self._calls.call("put_object", Key=key, Body=data, IfNoneMatch="*")
        else:
            raise FileExistsError(f"{self.shown}/{path} exists")
        if self.atomic and not self._known_to_be_atomic:
            again = partial(self._calls.call, "put_object", Key=key, Body=data, IfNoneMatch="*")
            self.atomic = self._known_to_be_atomic = has_exclusive_create(again)

    def put(self, path: str, size_bytes: int, pieces: Pieces) -> str:
        sent = UploadPieces(size_bytes, pieces)
        if size_bytes <= self.whole_bytes:
            body = b"".join(sent)
            crc = crc64nvme(body)
            self._calls.call("put_object", size_bytes, Key=self._key(path), Body=body)
        else:
            crc = self._put_parts(self._key(path), size_bytes, sent)
        return self.verify(path, size_bytes, crc)

    def copy(self, source: str, path: str) -> bool:
        size = self._calls.call("head_object", Key=self._key(source))["ContentLength"]
        if size < _SMALLEST_COPIED:
            return False
        self._calls.copy(self._key(source), self._key(path), size)
        return True

    def remove(self, path: str) -> None:
        key, folder = self._key(path), self._folder(path)
        listed = list(self._calls.list(folder))
        if f"{folder}{MANIFEST}" in listed:
            self._calls.call("delete_object", Key=f"{folder}{MANIFEST}")
        map_in_threads(
            lambda each: self._calls.call("delete_object", Key=each), [*listed, key], IN_FLIGHT
        )
        self._abort_uploads(key)

    def _key(self, path: str) -> str:
        return "/".join([*filter(None, [self._prefix]), *split_path(path)])

    def _folder(self, path: str) -> str:
        key = self._key(path)
        return f"{key}/" if key else ""

    def _get_part(self, key: str, start: int, end: int, version: str) -> tuple[int, bytes]:
        try:
            wanted = {"Range": f"bytes={start}-{end - 1}", "IfMatch": version}
            return start, tried(self._calls.bytes_of, key, end - start, **wanted)
        except FileExistsError:
            raise Silent(f"{self.shown}: {key} was replaced while it was read") from None

    def _put_parts(self, key: str, size_bytes: int, sent: Iterable[bytes]) -> int:
        """Send a big file in parts, several at the same time. Return the checksum of the whole."""
        self._abort_uploads(key)  # invisible parts of a killed process would be paid for
        asked: dict[str, Any] = {"ChecksumAlgorithm": CRC, "ChecksumType": "FULL_OBJECT"}
        upload = self._calls.call("create_multipart_upload", Key=key, **asked)["UploadId"]
        part_bytes = max(self.part_bytes, -(-size_bytes // _MOST_PARTS))
        crc, parts = 0, list[dict[str, Any]]()
        pool = WorkerPool[dict[str, Any]](IN_FLIGHT)
        try:
            for number, body in enumerate(_split_parts(sent, part_bytes), 1):
                own = crc64nvme(body)
                crc = combine_crc64nvme(crc, own, len(body))
                while pool.under_way >= IN_FLIGHT:
                    parts += pool.results()
                pool.submit(
                    partial(self._send_part, body, own, Key=key, UploadId=upload, PartNumber=number)
                )
            parts += pool.results(everything=True)
            parts.sort(key=lambda part: part["PartNumber"])
            self._calls.call(
                "complete_multipart_upload",
                Key=key,
                UploadId=upload,
                MultipartUpload={"Parts": parts},
            )
        except BaseException as error:
            pool.close()
            if not isinstance(error, Silent):  # else the next `put` or `remove` there aborts it
                self._abort_uploads(key)
            raise
        finally:
            pool.close()
        return crc

    def _send_part(self, body: bytes, crc: int, **what: Any) -> dict[str, Any]:
        checksum = {f"Checksum{CRC}": _crc_text(crc)}
        answer = tried(self._calls.call, "upload_part", len(body), Body=body, **checksum, **what)
        return {"PartNumber": what["PartNumber"], "ETag": answer["ETag"], **checksum}

    def _abort_uploads(self, key: str) -> None:
        """Abort the uploads to `key` and below it.
        An upload that cannot be aborted only costs space.
        """
        with suppress(Refused, Silent, FileNotFoundError):
            for upload in self._calls.call("list_multipart_uploads", Prefix=key).get("Uploads", ()):
                if upload["Key"] == key or upload["Key"].startswith(f"{key}/"):
                    self._calls.call(
                        "abort_multipart_upload", Key=upload["Key"], UploadId=upload["UploadId"]
                    )


def _crc_text(crc: int) -> str:
    return base64.b64encode(crc.to_bytes(8, "big")).decode()


def _split_parts(pieces: Iterable[bytes], size: int) -> Iterator[bytes]:
    """Yield the bytes in parts of `size`; only the last is shorter."""
    part = bytearray()
    for piece in pieces:
        view = memoryview(piece)
        while view:
            taken = view[: size - len(part)]
            part += taken
            view = view[len(taken) :]
            if len(part) == size:
                yield bytes(part)
                part = bytearray()
    if part:
        yield bytes(part)
