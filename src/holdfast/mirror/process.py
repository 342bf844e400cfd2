"""Process: one worker that a `client` has started:
its two pipes, whether it is alive, and its end.
"""

from __future__ import annotations

import os
import selectors
import subprocess
import time
from collections.abc import Sequence
from contextlib import suppress
from io import FileIO
from pathlib import Path

from .. import disk
from .protocol import Event, WorkerOrder, encode_line, events


class WorkerProcess:
    """One worker of a room. The client's thread reads, and any thread writes.

    `whose`: for messages, as in "the mirrors'".
    """

    def __init__(self, python: Sequence[str], room: str, whose: str) -> None:
        command = [*python, "-P", "-W", "ignore", "-m", room]
        self._whose = whose
        self._errors = disk.create_shared(room, 0)  # receives why it ended by itself
        pipe = subprocess.PIPE
        try:
            # without close_fds Python uses posix_spawn. Else it would wait for a loader that
            # another thread forks just now, and that holds a copy of the pipe on which Popen reads
            # until the program has begun
            self._process = subprocess.Popen(
                command,
                stdin=pipe,
                stdout=pipe,
                stderr=self._errors,
                bufsize=0,
                env=_environment(),
                close_fds=False,
            )
        except BaseException:
            os.close(self._errors)
            raise
        self._writes, self._reads = _pipe(self._process.stdin), _pipe(self._process.stdout)
        self._rest = bytearray()  # of a line that has not come to its end
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._reads, selectors.EVENT_READ)

    def write(self, order: WorkerOrder, *, whole: bool = False) -> None:
        """Write an order. With `whole` wait until all of it is written, or the worker has ended.

        Else an order is lost if the pipe is full. It is written at once if it has at most PIPE_BUF
        (4096) bytes.
        """
        data = begun = encode_line(order)
        with suppress(OSError, ValueError):  # it has ended: `read` will tell
            while data:
                done = self._writes.write(data)
                if done is None and data is begun and not whole:
                    return
                data = data[done or 0 :]
                if data:
                    time.sleep(0.01)

    def read(self, timeout_s: float) -> list[Event] | None:
        """Return the events that come within so many seconds; None: the worker has ended."""
        # asked before the read, so that no later event is missed
        alive = self._process.poll() is None
        if not self._selector.select(timeout_s if alive else 0):
            return [] if alive else None
        data = self._reads.read(1 << 16)
        if not data:
            return None
        *lines, self._rest = (self._rest + data).split(b"\n")
        try:
            return [events.decode(each) for each in lines]
        except ValueError:  # it breaks the protocol
            return None

    def exit_reason(self) -> str:
        """Return how it has ended, as text; nothing if it was done."""
        # its pipes are closed a moment before it has ended
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(0.5)
        code = self._process.poll()
        if code == 0:
            return ""
        how = (
            "it closed its output"
            if code is None
            else f"signal {-code}"
            if code < 0
            else f"status {code}"
        )
        last = os.pread(
            self._errors, 1 << 12, max(0, os.fstat(self._errors).st_size - (1 << 12))
        ).split(b"\n")
        text = next(
            (each.decode(errors="replace").strip() for each in reversed(last) if each.strip()), ""
        )
        return f"{self._whose} process ended ({how})" + (f": {text}" if text else "")

    def kill(self) -> None:
        """Kill it. A process that waits in the kernel for a lost server is abandoned."""
        self._process.kill()
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(0.2)

    def end(self) -> None:
        """Kill the worker, and close its pipes."""
        self.kill()
        self._selector.close()
        for pipe in (self._writes, self._reads):
            with suppress(OSError):
                pipe.close()
        os.close(self._errors)


def _pipe(stream: object) -> FileIO:
    if not isinstance(stream, FileIO):
        raise TypeError("the worker was started without a pipe")
    os.set_blocking(stream.fileno(), False)
    return stream


def _environment() -> dict[str, str]:
    """Return our environment, changed so that the worker finds the same package,
    even if it is not installed.
    """
    root = Path(__file__).resolve().parents[2]
    inherited = os.environ.get("PYTHONPATH")
    ours = [] if root.name in {"site-packages", "dist-packages"} else [str(root)]
    found = os.pathsep.join([*ours, *([inherited] if inherited else [])])
    return os.environ | ({"PYTHONPATH": found} if found else {})
