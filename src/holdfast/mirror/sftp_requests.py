"""SFTP requests under way: many at the same time, answered in any order.

paramiko's own transfers do not do. Its pipelined writes lose late errors. Its prefetch takes an
empty queue for the end of the file: it then asks for one block after the other, and keeps the rest
of the file in memory. Its thread prints a traceback when the connection is lost.
"""

from __future__ import annotations

import errno
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import paramiko
from paramiko.sftp import (
    CMD_DATA,
    CMD_EXTENDED,
    CMD_READ,
    CMD_STATUS,
    CMD_WRITE,
    SFTP_EOF,
    SFTP_NO_SUCH_FILE,
    SFTP_OK,
    SFTP_OP_UNSUPPORTED,
    SFTP_PERMISSION_DENIED,
    int64,
)

REQUEST_BYTES = 32 << 10  # what every server takes
MOST = 64  # requests under way

_ERRNO = {
    SFTP_NO_SUCH_FILE: errno.ENOENT,
    SFTP_PERMISSION_DENIED: errno.EACCES,
    SFTP_OP_UNSUPPORTED: errno.ENOTSUP,
}


class SftpClient(paramiko.SFTPClient):  # type: ignore[misc]  # it has no types
    """An SFTP client that distinguishes "not supported" from "failed". Errors without a
    number become EIO.
    """

    def _convert_status(self, msg: Any) -> None:
        code, text = msg.get_int(), msg.get_text()
        if code == SFTP_EOF:
            raise EOFError(text)
        if code != SFTP_OK:
            raise OSError(_ERRNO.get(code, errno.EIO), text)

    def _send_packet(self, t: int, packet: Any) -> None:
        with self._closing():
            super()._send_packet(t, packet)

    def _read_packet(self) -> Any:
        with self._closing():
            return super()._read_packet()

    @contextmanager
    def _closing(self) -> Iterator[None]:
        """After silence each further request fails at once."""
        try:
            yield
        except (OSError, EOFError):
            self.close()
            raise

    def extended(self, name: str, *args: Any) -> Any:
        """Ask for an extension. OSError with ENOTSUP if the server does not offer it."""
        return self._request(CMD_EXTENDED, name, *args)[1]

    def convert(self, message: Any) -> None:
        self._convert_status(message)

    def send(self, whose: PipelinedRequests, *request: Any) -> int:
        return int(self._async_request(whose, *request))

    def answer_one(self) -> None:
        self._read_response()


class PipelinedRequests:
    """Many requests for one open file at the same time."""

    def __init__(self, client: SftpClient, handle: bytes) -> None:
        self._client, self._handle = client, handle
        self._answers: dict[int, tuple[int, Any]] = {}  # by the request's number
        self._open: dict[int, tuple[int, int]] = {}  # what was requested: offset and size

    def _async_response(self, kind: int, message: Any, number: int) -> None:
        self._answers[number] = (kind, message)  # the client calls this

    def _check_exception(self) -> None:
        """The client calls this, too."""

    def write(self, pieces: Iterable[bytes]) -> None:
        """Write all pieces. Raises what the server answered to any of the requests."""
        offset = 0
        for piece in pieces:
            for start in range(0, len(piece), REQUEST_BYTES):
                part = bytes(piece[start : start + REQUEST_BYTES])
                self._send_request(CMD_WRITE, offset, len(part), part)
                offset += len(part)
                while len(self._open) >= MOST:
                    self._check_written()
        while self._open:
            self._check_written()

    def read(self, size_bytes: int) -> Iterator[bytes]:
        """Yield the first `size_bytes` bytes in order,
        in small pieces. Ends early where the file does.
        """
        asked = offset = 0
        came: dict[int, bytes] = {}
        while offset < size_bytes:
            while asked < size_bytes and len(self._open) + len(came) < MOST:
                size = min(REQUEST_BYTES, size_bytes - asked)
                self._send_request(CMD_READ, asked, size, size)
                asked += size
            start, size, data = self._next_block()
            if not data:
                return
            if len(data) < size:  # a server may send less than it was asked for
                rest = size - len(data)
                self._send_request(CMD_READ, start + len(data), rest, rest)
            came[start] = data
            while offset in came:
                data = came.pop(offset)
                offset += len(data)
                yield data

    def _send_request(self, kind: int, offset: int, size: int, last: bytes | int) -> None:
        number = self._client.send(self, kind, self._handle, int64(offset), last)
        self._open[number] = (offset, size)

    def _next_answer(self) -> tuple[int, int, int, Any]:
        while not self._answers:
            self._client.answer_one()
        number, (kind, message) = self._answers.popitem()
        return (*self._open.pop(number), kind, message)

    def _check_written(self) -> None:
        _, _, kind, message = self._next_answer()
        if kind != CMD_STATUS:
            raise OSError(errno.EPROTO, "no status came back")
        self._client.convert(message)

    def _next_block(self) -> tuple[int, int, bytes]:
        start, size, kind, message = self._next_answer()
        if kind == CMD_DATA:
            return start, size, bytes(message.get_string())
        try:
            self._client.convert(message)
        except EOFError:
            return start, size, b""
        raise OSError(errno.EPROTO, "no data came back")
