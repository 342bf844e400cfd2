"""Process: one worker that a `client` has started: its two pipes, whether it is alive, and its end."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO

from .. import disk
from .protocol import LineBuffer, Reply, Request, line, replies


class WorkerProcess:
    """One worker, seen by the client's thread. None of its calls waits for the worker."""

    def __init__(self, python: Sequence[str]) -> None:
        command = [*python, "-P", "-W", "ignore", "-m", "holdfast.mirror"]
        self._errors = disk.create_shared("holdfast-mirrors", 0)  # receives the error of a failed import; nothing later
        pipe = subprocess.PIPE
        try:
            # without close_fds Python uses posix_spawn. Else it would wait for a loader that another thread forks just
            # now, and that holds a copy of the pipe on which Popen reads until the program has begun
            self._process = subprocess.Popen(
                command, stdin=pipe, stdout=pipe, stderr=self._errors, bufsize=0, env=_environment(), close_fds=False
            )
        except BaseException:
            os.close(self._errors)
            raise
        self._writes = _pipe(self._process.stdin)
        self.reads = _pipe(self._process.stdout)
        self._unsent = bytearray()
        self._lines = LineBuffer()
        self.deaf = False  # nothing more comes from it

    @property
    def unsent(self) -> bool:
        return bool(self._unsent)

    def queue(self, request: Request) -> None:
        self._unsent += line(request)

    def write(self) -> None:
        """Write what the pipe takes now; the rest is written later."""
        with suppress(OSError):  # it has ended: `read` will tell
            while self._unsent and (done := self._writes.write(self._unsent[: 1 << 16])):
                del self._unsent[:done]

    def read(self) -> list[Reply]:
        """Return the replies that have come."""
        found: list[Reply] = []
        try:
            while not self.deaf and (data := self.reads.read(1 << 16)) is not None:
                self.deaf = not data
                found += [replies.decode(text) for text in self._lines.feed(data)]
        except (OSError, ValueError):  # it breaks the protocol
            self.deaf = True
        return found

    def alive(self) -> bool:
        return self._process.poll() is None

    def why(self) -> str:
        """Return how it has ended, as text."""
        with suppress(subprocess.TimeoutExpired):  # its pipes are closed a moment before it has ended
            self._process.wait(0.5)
        code = self._process.poll()
        how = "it closed its output" if code is None else f"signal {-code}" if code < 0 else f"status {code}"
        last = os.pread(self._errors, 1 << 12, max(0, os.fstat(self._errors).st_size - (1 << 12))).split(b"\n")
        text = next((each.decode(errors="replace").strip() for each in reversed(last) if each.strip()), "")
        return f"the mirrors' process ended ({how})" + (f": {text}" if text else "")

    def end(self) -> None:
        """Ask it to end, and give it a moment."""
        self._unsent += line(Request(0, "close"))
        self.write()
        until = time.monotonic() + 1.0
        while self.alive() and time.monotonic() < until:
            time.sleep(0.005)

    def kill(self) -> None:
        """Kill it. A process that waits in the kernel for a lost server is abandoned."""
        self._process.kill()
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(0.2)

    def forget(self) -> None:
        for pipe in (self._writes, self.reads):
            with suppress(OSError):
                pipe.close()
        os.close(self._errors)


def _pipe(stream: IO[bytes] | None) -> IO[bytes]:
    if stream is None:
        raise TypeError("the worker was started without a pipe")
    os.set_blocking(stream.fileno(), False)
    return stream


def _environment() -> dict[str, str]:
    """Return our environment, changed so that the worker finds the same package, even if it is not installed."""
    root = Path(__file__).resolve().parents[2]
    inherited = os.environ.get("PYTHONPATH")
    ours = [] if root.name in {"site-packages", "dist-packages"} else [str(root)]
    found = os.pathsep.join([*ours, *([inherited] if inherited else [])])
    return os.environ | ({"PYTHONPATH": found} if found else {})
