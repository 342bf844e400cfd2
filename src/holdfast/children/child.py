"""Child: the command, seen by its starter, with the warden in between."""

from __future__ import annotations

import os
import signal
import socket
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Self

from ..errors import ChildError, UsageError
from . import processes, warden
from .warden import Streams

SIGNALS = (
    signal.SIGTERM,
    signal.SIGUSR1,
    signal.SIGUSR2,
    signal.SIGINT,
    signal.SIGHUP,
    signal.SIGTSTP,
)
LOST_S = 10.0  # for killing and reaping what a dead warden has left


class Child:
    """One start of the command. Leaving the block kills all of its remaining processes.

    Raises:
        UsageError: the command does not exist, or cannot be executed.
    """

    def __init__(
        self, command: Sequence[str], environment: Mapping[str, str], streams: Streams
    ) -> None:
        # set when the command itself has ended; in subprocess's notation
        self.code: int | None = None
        self.gone = False  # nothing that it started is left either
        self._heard = b""
        # our caller's; the kernel would reap for us
        if signal.getsignal(signal.SIGCHLD) is signal.SIG_IGN:
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        ours, theirs = socket.socketpair()
        self._link = ours
        mask = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
        self._warden = os.fork()
        if self._warden == 0:
            try:
                ours.close()
                warden.run_warden(theirs, command, environment, streams, [*mask])
            finally:
                os._exit(0)
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        theirs.close()
        self.began_s = time.monotonic()
        try:
            self.pid = self._fork_warden(command[0])
        except BaseException:
            ours.close()
            raise
        self._link.setblocking(False)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """Kill what is left. The warden keeps waiting for processes that do not die in time."""
        self.send(signal.SIGKILL)
        until = time.monotonic() + LOST_S
        while not self.gone and time.monotonic() < until:
            time.sleep(0.005)
            self.update()
        self._link.close()

    def fileno(self) -> int:
        """Return a descriptor that is readable when `update` has something to do."""
        return self._link.fileno()

    def send(self, number: int, *, alone: bool = False) -> None:
        """Send a signal to the command's group; with `alone` only to the command.

        After the command has ended, the signal goes to all processes that it has left. SIGKILL
        always goes to all of its processes, also to those in other sessions.
        """
        with suppress(OSError):
            self._link.send(bytes([number | (warden.ALONE if alone else 0)]))

    def processes(self) -> list[int]:
        """Return the processes of the command."""
        return processes.descendants(self._warden)

    def update(self) -> None:
        """Note what has happened since the last call."""
        try:
            while not self.gone:
                said = self._link.recv(4096)
                self._heard += said
                if not said:
                    self._handle_warden_end()
        except BlockingIOError:
            pass
        except OSError:
            self._handle_warden_end()
        *lines, self._heard = self._heard.split(b"\n")
        for line in lines:  # `code 3`
            self.code = int(line.split()[1])

    def _fork_warden(self, name: str) -> int:
        while b"\n" not in self._heard:
            said = self._link.recv(4096)
            if not said:
                os.waitpid(self._warden, 0)
                raise ChildError(f"{name}: the process that was to start it was killed")
            self._heard += said
        line, _, self._heard = self._heard.partition(b"\n")
        word, number = line.split()
        if word == b"error":
            os.waitpid(self._warden, 0)
            why = os.strerror(int(number)) if int(number) else "the system does not say why"
            hint = f"; write: python {name}" if name.endswith(".py") else ""
            raise UsageError(f"cannot start {name!r}: {why}{hint}")
        return int(number)

    def _handle_warden_end(self) -> None:
        """Handle the end of the warden: no process is left, or it was killed and we kill its
        orphans.
        """
        self.gone = True
        _, status = os.waitpid(self._warden, 0)
        if os.waitstatus_to_exitcode(status) == 0 and (
            self.code is not None or b"code" in self._heard
        ):
            return
        until, left = time.monotonic() + LOST_S, True
        while left and time.monotonic() < until:
            warden.kill_descendants()
            code, left = warden.reap_children(self.pid)
            self.code = self.code if code is None else code
            time.sleep(0.02 * left)
        if self.code is None:
            self.code = -signal.SIGKILL
