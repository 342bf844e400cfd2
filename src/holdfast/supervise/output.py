"""Output: passes the command's output to our caller unchanged, and remembers its end.

The command inherits a file or a terminal directly. The end of a file is read back; a terminal shows
it already. A pipe cannot be read back, so its bytes pass through this process.
"""

from __future__ import annotations

import os
import select
import stat
from typing import Self

from .. import disk, terminal
from ..children.warden import Streams

TAIL_BYTES = 16 << 10
_PIECE = select.PIPE_BUF  # a writable pipe accepts so many bytes without blocking


class _File:
    """A plain file behind one of our descriptors. Bytes after its current end are the command's."""

    def __init__(self, number: int) -> None:
        self._path = f"/proc/self/fd/{number}"
        self._start = 0
        self.mark_begin()

    def mark_begin(self) -> None:
        self._start = os.stat(self._path).st_size

    def bytes_written(self) -> int:
        return os.stat(self._path).st_size

    def tail(self) -> bytes:
        try:
            with open(self._path, "rb") as file:
                end = file.seek(0, os.SEEK_END)
                file.seek(max(min(self._start, end), end - TAIL_BYTES))
                return file.read(TAIL_BYTES)
        except OSError:  # we may be allowed to write it but not to read it
            return b""


class _Pipe:
    """A pipe that passes the command's output on to our caller's pipe."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.source, self.sink = os.pipe()  # the command writes to the sink
        os.set_blocking(self.source, False)
        self._waiting = b""
        self._moved = 0
        self._tail = bytearray()
        self.open = True

    def poll_events(self) -> tuple[int, int]:
        """Return the events to wait for. No more is read than our reader has accepted."""
        return (self.number, select.POLLOUT) if self._waiting else (self.source, select.POLLIN)

    def move_piece(self) -> None:
        """Move one piece, in whichever direction is possible; do nothing if nothing can be read."""
        if self._waiting:
            piece, self._waiting = self._waiting[:_PIECE], self._waiting[_PIECE:]
            if not terminal.relay(self.number, piece):
                self.close()  # the reader is gone: the command's own next write fails
            return
        try:
            self._waiting = os.read(self.source, 1 << 16)
        except BlockingIOError:
            return
        if not self._waiting:
            self.close()
        self._moved += len(self._waiting)
        self._tail += self._waiting
        del self._tail[:-TAIL_BYTES]

    def close(self) -> None:
        if self.open:
            self.open = False
            os.close(self.source)

    def bytes_written(self) -> int:
        return self._moved

    @property
    def is_reader_blocked(self) -> bool:
        """Whether our reader does not take what the command has written."""
        return self.open and bool(self._waiting) and not is_writable_now(self.number)

    def tail(self) -> bytes:
        return bytes(self._tail)


def is_writable_now(number: int) -> bool:
    """Whether a line can be written to a descriptor without waiting for a reader."""
    poller = select.poll()
    poller.register(number, select.POLLOUT)
    return bool(poller.poll(0))


def open_closed_descriptors() -> None:
    """Open /dev/null for 0, 1 and 2 if they are closed: otherwise our next pipe would get
    that number.
    """
    while (descriptor := os.open(os.devnull, os.O_RDONLY)) <= 2:
        os.set_inheritable(descriptor, True)
    os.close(descriptor)


class Output:
    """The output of one start of the command."""

    def __init__(self) -> None:
        self._behind: dict[tuple[int, int] | None, _File | _Pipe] = {}
        # not readable from the background
        stdin = os.open(os.devnull, os.O_RDONLY) if os.isatty(0) else None
        self.streams = Streams(
            stdin,
            self._prepare_descriptor(1),
            self._prepare_descriptor(2),
            os.isatty(1) or os.isatty(2),
        )
        self.streams = self.streams._replace(sources=tuple(pipe.source for pipe in self.open_pipes))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close_child_ends()
        for pipe in self.open_pipes:
            pipe.close()

    def close_child_ends(self) -> None:
        """Close our copies of the command's ends, once it has them."""
        self.streams.close(sources=False)
        self.streams = Streams(None, None, None)

    def mark_begin(self) -> None:
        """Count only output from now on as the command's."""
        for each in self._behind.values():
            if isinstance(each, _File):
                each.mark_begin()

    @property
    def open_pipes(self) -> list[_Pipe]:
        """The pipes that are still open."""
        return [each for each in self._behind.values() if isinstance(each, _Pipe) and each.open]

    @property
    def bytes_written(self) -> int | None:
        """Return a number that grows with the output; None if none of it can be seen."""
        return sum(each.bytes_written() for each in self._behind.values()) if self._behind else None

    @property
    def is_reader_blocked(self) -> bool:
        """Whether the command cannot write, because our reader does not read."""
        return any(pipe.is_reader_blocked for pipe in self.open_pipes)

    def discard_unread(self) -> bool:
        """Discard output to a full pipe from now on; return whether there is one."""
        full = [number for number in (1, 2) if not is_writable_now(number)]
        for number in full:
            nothing = disk.open_null()
            os.dup2(nothing, number)
            os.close(nothing)
        return bool(full)

    @property
    def tail(self) -> str:
        """Return the end of the output; if there are two files, the end of stderr comes last."""
        return "".join(each.tail().decode(errors="replace") for each in self._behind.values())

    @property
    def tail_not_on_stderr(self) -> str:
        """As `tail`, without output sent to our own stderr; the user already sees it there."""
        ours = _file_identity(2)
        return "".join(
            each.tail().decode(errors="replace") for at, each in self._behind.items() if at != ours
        )

    def _prepare_descriptor(self, number: int) -> int | None:
        """Return the descriptor that replaces ours in the command;
        None: the command inherits ours.
        """
        place = _file_identity(number)
        if place is not None and place not in self._behind:
            mode = os.fstat(number).st_mode
            if stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode):
                self._behind[place] = _Pipe(number)
            elif stat.S_ISREG(mode):
                self._behind[place] = _File(number)
        behind = self._behind.get(place)
        return behind.sink if isinstance(behind, _Pipe) else None


def _file_identity(number: int) -> tuple[int, int] | None:
    """Return an identity of the file, pipe or terminal;
    None: our caller has closed the descriptor.
    """
    try:
        facts = os.fstat(number)
    except OSError:
        return None
    return facts.st_dev, facts.st_ino
