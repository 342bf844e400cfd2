"""Ask: runs one command of a scheduler, and never for long."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import NamedTuple, Self

from ..errors import ClusterError

LIMIT_S = 10.0

# Words as the manuals have them, and times as Unix seconds.
_PLAIN = {"LC_ALL": "C", "SLURM_TIME_FORMAT": "%s"}


class Absent(ClusterError):
    """The command is not installed, or not in this container."""


class Silent(ClusterError):
    """The scheduler could not be reached just now: worth asking again."""


class CommandResult(NamedTuple):
    code: int
    out: str
    err: str


def ask(
    command: Sequence[str], *, text: str = "", limit_s: float = LIMIT_S, environment: Mapping[str, str] | None = None
) -> CommandResult:
    """What `command` answers. `text` is its input, `environment` takes the place of ours, as it is: a new job inherits it.

    Raises:
        Absent: there is no such command.
        Silent: it did not answer within `limit_s`.
    """
    import subprocess

    around = {**os.environ, **_PLAIN} if environment is None else environment
    try:
        done = subprocess.run(
            command,
            input=text.encode(),
            env=around,
            capture_output=True,
            check=False,
            timeout=limit_s,
        )
    except OSError as error:
        raise Absent(f"{command[0]} cannot be started: {error.strerror}") from error
    except subprocess.TimeoutExpired as error:
        raise Silent(f"{command[0]} did not answer within {limit_s:g} s") from error
    return _answer(done.returncode, done.stdout, done.stderr)


class Asked:
    """A question that is under way: begun here, looked at now and then, ended after `limit_s`.

    No thread waits for it: a loader's worker, forked at any instant, inherits nothing that it could hang on.
    """

    def __init__(self, command: Sequence[str], limit_s: float = LIMIT_S) -> None:
        import subprocess

        self._ends_s = time.monotonic() + limit_s
        self._name, self._out = command[0], b""
        self._pid = os.getpid()
        try:
            self._child = subprocess.Popen(
                command,
                env={**os.environ, **_PLAIN},
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
            )
        except OSError as error:
            raise Absent(f"{command[0]} cannot be started: {error.strerror}") from error
        self._pipe = self._child.stdout
        os.set_blocking(self._pipe.fileno() if self._pipe else -1, False)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.end()

    def look(self) -> CommandResult | None:
        """The answer; None while there is none yet. Never waits.

        Raises:
            Silent: the time is up.
        """
        code = self._child.poll()
        self._read()
        if code is not None:
            self.end()
            return _answer(code, self._out, b"")
        if time.monotonic() > self._ends_s:
            self.end()
            raise Silent(f"{self._name} did not answer in time")
        return None

    def end(self) -> None:
        """Leave nothing behind. In a forked child, whose parent asks, nothing is touched."""
        if os.getpid() != self._pid:
            return
        if self._child.poll() is None:
            self._child.kill()
            self._child.wait()
        if self._pipe is not None:
            self._pipe.close()
            self._pipe = None

    def _read(self) -> None:
        with suppress(BlockingIOError):
            while self._pipe is not None and (piece := os.read(self._pipe.fileno(), 1 << 16)):
                self._out += piece


def _answer(code: int, out: bytes, err: bytes) -> CommandResult:
    return CommandResult(code, out.decode(errors="replace"), err.decode(errors="replace"))
