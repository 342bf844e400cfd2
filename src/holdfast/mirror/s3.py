"""S3, and servers that speak its protocol. Endpoint, region and credentials come from where every tool finds them.

The checksum that verifies a file is always the server's own. Holdfast never sends one for a whole object: a server
could merely return it. A server that computes none is read back.
"""

from __future__ import annotations

import base64
import socket
from collections.abc import Iterable, Iterator
from functools import partial
from typing import Any
from urllib.parse import urlsplit

import s3fs
from awscrt.checksums import combine_crc64nvme, crc64nvme
from fsspec.asyn import sync
from fsspec.config import conf
from tenacity import Retrying, retry_if_exception_type, stop_after_attempt, wait_exponential_jitter

from ..errors import UsageError
from ..store.format import MANIFEST
from ..threads import WorkerPool, map_in_threads
from .place import READ_BACK, NotKept, Pieces, Refused, Silent, shown, words
from .s3_errors import translated
from .sent import Sent, compare

CRC = "CRC64NVME"
IN_FLIGHT = 4  # parts under way at the same time; one more is being filled
TRIES = 3  # of one part, so that one lost answer does not send a big file again

_CONNECT_S, _READ_S = 5.0, 20.0
_CALL_S = 30.0  # a call without its bytes
_SLOWEST = 1 << 16  # bytes in a second: what is slower is silent
_MOST_PARTS = 10_000
_SMALLEST_COPIED = 1 << 16  # a file that is smaller is sent as fast as it is copied


class S3:
    whole_bytes = 64 << 20  # a file of up to so many bytes is sent with one request
    part_bytes = 16 << 20

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        self.shown, self.atomic = shown(url), True
        if not parts.netloc or "@" in parts.netloc or parts.query or parts.fragment:
            raise UsageError(f"{self.shown}: write s3://BUCKET/PATH; credentials come from the environment or ~/.aws")
        self._bucket, self._prefix = parts.netloc, parts.path.strip("/")
        self._opened: Any = None
        self._known_to_be_atomic = False

    @property
    def _files(self) -> Any:
        if self._opened is None:
            config = {
                **conf.get("s3", {}).get("config_kwargs", {}),
                "connect_timeout": _CONNECT_S,
                "read_timeout": _READ_S,
                "retries": {"total_max_attempts": 1},
                "request_checksum_calculation": "when_required",
                "response_checksum_validation": "when_required",
                "connector_args": {"socket_factory": _socket},
            }
            self._opened = s3fs.S3FileSystem(config_kwargs=config, skip_instance_cache=True, use_listings_cache=False)
            self._opened.retries = 1
        return self._opened

    def close(self) -> None:
        opened, self._opened = self._opened, None
        if opened is not None and getattr(opened, "_s3creator", None) is not None:
            opened.close_session(opened.loop, opened._s3creator)  # noqa: SLF001  s3fs has no public name for it

    def read(self, path: str) -> bytes:
        return self._range(self._key(path))

    def names(self, path: str) -> list[str]:
        folder = self._folder(path)
        listed = self._list(folder, Delimiter="/")
        return sorted({name[len(folder) :].strip("/") for name in listed} - {""})

    def get(self, path: str) -> Iterator[bytes]:
        """Yield the parts in order; some are fetched at the same time. All are of one version of the file."""
        key = self._key(path)
        facts = self._call("head_object", Key=key)
        size, version = facts["ContentLength"], facts["ETag"]
        starts = range(0, size, self.part_bytes)
        fetched: dict[int, bytes] = {}
        pool = WorkerPool[tuple[int, bytes]](IN_FLIGHT)
        try:
            asked = iter(starts)
            for start in starts:
                while start not in fetched:
                    while pool.under_way + len(fetched) < IN_FLIGHT and (first := next(asked, None)) is not None:
                        pool.give(partial(self._part, key, first, min(first + self.part_bytes, size), version))
                    fetched.update(pool.take())
                yield fetched.pop(start)
        finally:
            pool.close()

    def check(self, path: str, size_bytes: int, pieces: Pieces, *, read_back: bool = False) -> str:
        sent, crc = Sent(size_bytes, pieces), 0
        for piece in sent:
            crc = crc64nvme(piece, crc)
        return self.verify(path, sent, crc, read_back=read_back)

    def verify(self, path: str, sent: Sent, crc: int, *, read_back: bool) -> str:
        """Compare the server's own checksum of the object; if it has none, or is told to, read the object back."""
        facts = self._call("head_object", Key=self._key(path), ChecksumMode="ENABLED")
        name, kept = f"{self.shown}/{path}", facts.get(f"Checksum{CRC}", "")
        if facts["ContentLength"] != sent.digest.size_bytes or (kept and "-" not in kept and kept != _text(crc)):
            raise NotKept(f"{name}: the object differs from what was sent; send it again")
        if kept and "-" not in kept and not read_back:
            return CRC
        compare(name, sent.digest, self.get(path))
        return READ_BACK

    def create(self, path: str, data: bytes) -> None:
        key = self._key(path)
        try:
            self._call("head_object", Key=key)
        except FileNotFoundError:
            self._call("put_object", Key=key, Body=data, IfNoneMatch="*")
        else:
            raise FileExistsError(f"{self.shown}/{path} exists")
        if self.atomic and not self._known_to_be_atomic:
            try:  # the same bytes again, which a server that knows the condition refuses
                self._call("put_object", Key=key, Body=data, IfNoneMatch="*")
            except FileExistsError:
                self._known_to_be_atomic = True
            else:
                self.atomic = False

    def put(self, path: str, size_bytes: int, pieces: Pieces, *, read_back: bool) -> str:
        sent = Sent(size_bytes, pieces)
        if size_bytes <= self.whole_bytes:
            body = b"".join(sent)
            crc = crc64nvme(body)
            self._call("put_object", size_bytes, Key=self._key(path), Body=body)
        else:
            crc = self._put_parts(self._key(path), size_bytes, sent)
        return self.verify(path, sent, crc, read_back=read_back)

    def copy(self, source: str, path: str) -> bool:
        """Copy on the server: above 5 GiB s3fs does it in parts."""
        old, new = f"{self._bucket}/{self._key(source)}", f"{self._bucket}/{self._key(path)}"
        size = self._call("head_object", Key=self._key(source))["ContentLength"]
        if size < _SMALLEST_COPIED:
            return False
        self._sync(size, self._files._cp_file, old, new)  # noqa: SLF001  cp_file has no time limit
        return True

    def remove(self, path: str) -> None:
        key, folder = self._key(path), self._folder(path)
        listed = list(self._list(folder))
        if f"{folder}{MANIFEST}" in listed:
            self._call("delete_object", Key=f"{folder}{MANIFEST}")
        map_in_threads(lambda each: self._call("delete_object", Key=each), [*listed, key], IN_FLIGHT)
        self._abort_uploads(key)

    def _key(self, path: str) -> str:
        return "/".join([*filter(None, [self._prefix]), *words(path)])

    def _folder(self, path: str) -> str:
        key = self._key(path)
        return f"{key}/" if key else ""

    def _list(self, prefix: str, **options: str) -> Iterator[str]:
        page: dict[str, Any] = {"NextContinuationToken": ""}
        while "NextContinuationToken" in page:
            token = page["NextContinuationToken"]
            more = {"ContinuationToken": token} if token else {}
            page = self._call("list_objects_v2", Prefix=prefix, **options, **more)
            yield from (each["Key"] for each in page.get("Contents", ()))
            yield from (each["Prefix"] for each in page.get("CommonPrefixes", ()))

    def _part(self, key: str, start: int, end: int, version: str) -> tuple[int, bytes]:
        try:
            return start, _tried(self._range, key, Range=f"bytes={start}-{end - 1}", IfMatch=version)
        except FileExistsError:
            raise Silent(f"{self.shown}: {key} was replaced while it was read") from None

    def _range(self, key: str, **options: str) -> bytes:
        async def fetch() -> bytes:
            answer = await self._files._call_s3("get_object", Bucket=self._bucket, Key=key, **options)  # noqa: SLF001
            async with answer["Body"] as body:
                return bytes(await body.read())

        return bytes(self._sync(self.part_bytes, fetch))

    def _put_parts(self, key: str, size_bytes: int, sent: Iterable[bytes]) -> int:
        """Send a big file in parts, several at the same time. Return the checksum of the whole."""
        self._abort_uploads(key)  # what a killed process left is paid for, and nobody sees it
        asked = {"ChecksumAlgorithm": CRC, "ChecksumType": "FULL_OBJECT"}
        upload = self._call("create_multipart_upload", Key=key, **asked)["UploadId"]
        part_bytes = max(self.part_bytes, -(-size_bytes // _MOST_PARTS))
        crc, parts = 0, list[dict[str, Any]]()
        pool = WorkerPool[dict[str, Any]](IN_FLIGHT)
        try:
            for number, body in enumerate(_of_size(sent, part_bytes), 1):
                own = crc64nvme(body)
                crc = combine_crc64nvme(crc, own, len(body))
                while pool.under_way >= IN_FLIGHT:
                    parts += pool.take()
                pool.give(partial(self._send_part, body, own, Key=key, UploadId=upload, PartNumber=number))
            parts += pool.take(everything=True)
            parts.sort(key=lambda part: part["PartNumber"])
            self._call("complete_multipart_upload", Key=key, UploadId=upload, MultipartUpload={"Parts": parts})
        except BaseException:
            pool.close()
            self._abort_uploads(key)
            raise
        finally:
            pool.close()
        return crc

    def _send_part(self, body: bytes, crc: int, **what: Any) -> dict[str, Any]:
        checksum = {f"Checksum{CRC}": _text(crc)}
        answer = _tried(self._call, "upload_part", len(body), Body=body, **checksum, **what)
        return {"PartNumber": what["PartNumber"], "ETag": answer["ETag"], **checksum}

    def _abort_uploads(self, key: str) -> None:
        """Abort the uploads to `key` and below it. What cannot be aborted costs space, and harms nothing."""
        try:
            listed = self._call("list_multipart_uploads", Prefix=key).get("Uploads", ())
            for upload in listed:
                if upload["Key"] == key or upload["Key"].startswith(f"{key}/"):
                    self._call("abort_multipart_upload", Key=upload["Key"], UploadId=upload["UploadId"])
        except (Refused, Silent, FileNotFoundError):
            pass

    def _call(self, method: str, size_bytes: int = 0, **what: Any) -> Any:
        return self._sync(size_bytes, self._files._call_s3, method, Bucket=self._bucket, **what)  # noqa: SLF001

    def _sync(self, size_bytes: int, function: Any, *args: Any, **what: Any) -> Any:
        try:
            return sync(self._files.loop, function, *args, timeout=_CALL_S + size_bytes / _SLOWEST, **what)
        except Exception as error:
            raise translated(error, self.shown) from None


_tried = Retrying(
    retry=retry_if_exception_type(Silent),
    stop=stop_after_attempt(TRIES),
    wait=wait_exponential_jitter(initial=0.2, max=5),
    reraise=True,
)


def _socket(address: tuple[Any, ...]) -> socket.socket:
    """A socket on which bytes that nobody takes are an error, too: the library's own time limit is for answers."""
    family, kind, protocol, *_ = address
    made = socket.socket(family, kind, protocol)
    made.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, int(_READ_S * 1000))
    return made


def _text(crc: int) -> str:
    return base64.b64encode(crc.to_bytes(8, "big")).decode()


def _of_size(pieces: Iterable[bytes], size: int) -> Iterator[bytes]:
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
