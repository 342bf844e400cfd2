"""Calls to one bucket: each with a time limit, and with errors that are those of a place."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from typing import Any

import s3fs
from botocore.handlers import add_expect_header
from fsspec.asyn import sync
from fsspec.config import conf
from tenacity import (
    Retrying,
    retry_if_exception_type,
    stop_after_attempt,
    stop_after_delay,
    wait_exponential,
    wait_random,
)

from ..store.format import MOST_BYTES
from .place import Silent
from .s3_errors import translate_error

TRIES = 3  # of one part, so that one lost answer does not send a big file again
_AGAIN_S = 10.0  # a part that has taken longer is not tried again: the server hangs

_CONNECT_S, _READ_S = 5.0, 20.0
_CALL_S = 30.0  # a call without its bytes
_SLOWEST = 1 << 16  # bytes per second: a slower server counts as silent


class BucketCalls:
    def __init__(self, bucket: str, shown: str) -> None:
        self.bucket, self._shown = bucket, shown
        self._opened: Any = None
        self._client: Any = None

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
            self._opened = s3fs.S3FileSystem(
                config_kwargs=config, skip_instance_cache=True, use_listings_cache=False
            )
            self._opened.retries = 1
        return self._opened

    def close(self) -> None:
        opened, self._opened = self._opened, None
        if opened is not None and getattr(opened, "_s3creator", None) is not None:
            opened.close_session(opened.loop, opened._s3creator)  # noqa: SLF001  s3fs has no public name for it

    def call(self, method: str, size_bytes: int = 0, **what: Any) -> Any:
        """Call a method of boto's client for the bucket.
        `size_bytes` go with it, and may take their time.
        """
        return self._sync(size_bytes, self._asked, method, what)

    def list(self, prefix: str, **options: Any) -> Iterator[str]:
        """Yield the keys that begin with `prefix`;
        with a delimiter, the folders among them end with it.
        """
        page: dict[str, Any] = {"NextContinuationToken": ""}
        while "NextContinuationToken" in page:
            token = page["NextContinuationToken"]
            more: dict[str, Any] = {"ContinuationToken": token} if token else {}
            page = self.call("list_objects_v2", Prefix=prefix, **options, **more)
            yield from (each["Key"] for each in page.get("Contents", ()))
            yield from (each["Prefix"] for each in page.get("CommonPrefixes", ()))

    def bytes_of(self, key: str, size_bytes: int, **options: str) -> bytes:
        """Return an object, or the range of it that `options` tell."""

        async def fetch() -> bytes:
            answer = await self._asked("get_object", {"Key": key, **options})
            found = bytearray()
            async with answer["Body"] as body:  # a read with a limit returns what has arrived
                while len(found) <= MOST_BYTES and (piece := await body.read(MOST_BYTES)):
                    found += piece
            return bytes(found)

        return bytes(self._sync(size_bytes, fetch))

    def copy(self, source: str, key: str, size_bytes: int) -> None:
        """Copy within the bucket. Above 5 GiB s3fs does it in parts."""
        old, new = f"{self.bucket}/{source}", f"{self.bucket}/{key}"
        self._sync(size_bytes, self._files._cp_file, old, new)  # noqa: SLF001  cp_file has no time limit

    async def _asked(self, method: str, what: dict[str, Any]) -> Any:
        client = await self._files.set_session()
        if client is not self._client:
            # "May I send the body?" has no time limit in aiohttp: a server that hangs would never
            # be given up.
            client.meta.events.unregister("before-call.s3", add_expect_header)
            self._client = client
        return await self._files._call_s3(method, Bucket=self.bucket, **what)  # noqa: SLF001

    def _sync(self, size_bytes: int, function: Any, *args: Any, **what: Any) -> Any:
        try:
            return sync(
                self._files.loop, function, *args, timeout=_CALL_S + size_bytes / _SLOWEST, **what
            )
        except Exception as error:
            raise translate_error(error, self._shown) from None


tried = Retrying(
    retry=retry_if_exception_type(Silent),
    stop=stop_after_attempt(TRIES) | stop_after_delay(_AGAIN_S),
    wait=wait_exponential(multiplier=0.2, max=5) + wait_random(0, 0.2),
    reraise=True,
)


def _socket(address: tuple[Any, ...]) -> socket.socket:
    """Return a socket with a time limit for sending,
    too: the library's own limit only covers answers.
    """
    family, kind, protocol, *_ = address
    made = socket.socket(family, kind, protocol)
    made.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, int(_READ_S * 1000))
    return made
