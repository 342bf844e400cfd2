"""Signals that the supervisor has received, kept until its loop reads them."""

from __future__ import annotations

import os
import signal
import time
from contextlib import suppress
from typing import Self

from ..children.child import SIGNALS
from ..children.warden import adopt_orphans

# These mean "stop". SIGHUP (terminal closed) is passed on as SIGTERM, which more programs handle.
STOPS = {signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2, signal.SIGINT, signal.SIGHUP}
# Set on purpose by nohup, and by shells for background processes. Our batch scripts ignore the
# notice until we handle it.
IGNORED = {signal.SIGHUP, signal.SIGINT}


class SignalInbox:
    """Receives the signals of `SIGNALS` while entered, except those that the caller's shell
    ignores.
    """

    def __init__(self) -> None:
        # the first signal, or "deadline"; after it nothing is started any more
        self.told: str | None = None
        self.told_unix_s = 0.0
        self.told_s: dict[int, float] = {}  # when each was first received
        self.insists = False  # a second Ctrl-C was received
        self._source, self._sink = os.pipe()
        for end in (self._source, self._sink):
            os.set_blocking(end, False)
        self._before = -1  # the previous wakeup descriptor

    def __enter__(self) -> Self:
        self._before = signal.set_wakeup_fd(self._sink, warn_on_full_buffer=False)
        for number in SIGNALS:
            if number not in IGNORED or signal.getsignal(number) is not signal.SIG_IGN:
                signal.signal(number, lambda *_: None)
        # ends a wait: what has happened meanwhile is looked at first
        signal.signal(signal.SIGCONT, lambda *_: None)
        adopt_orphans(orphans=True)
        return self

    def __exit__(self, *_: object) -> None:
        self.close()  # this process is about to end with a known exit code
        adopt_orphans(orphans=False)
        signal.set_wakeup_fd(self._before)
        os.close(self._source)
        os.close(self._sink)

    def fileno(self) -> int:
        """Return a descriptor that is readable when `received` has something to return."""
        return self._source

    def received(self) -> list[int]:
        """Return the signals since the last call, in order."""
        heard = b""
        with suppress(BlockingIOError):
            heard = os.read(self._source, 1 << 16)  # the most that a pipe holds
        numbers = [number for number in heard if number in SIGNALS]
        for number in numbers:
            if number == signal.SIGINT and signal.SIGINT in self.told_s:
                self.insists = True
            if number in STOPS:
                self.told_s.setdefault(number, time.monotonic())
                self.request_stop(signal.Signals(number).name)
        return numbers

    def stop_reasons(self) -> str | None:
        """Return the reasons to stop that this process has received so far."""
        self.received()
        return self.told

    def close(self) -> None:
        """Ignore all signals that mean "stop", also in processes started from now on.

        A scheduler that is asked to requeue a job ends the job first, and would also end the
        command that asks it.
        """
        for number in STOPS:
            signal.signal(number, signal.SIG_IGN)

    def request_stop(self, reason: str) -> None:
        """Note that the command must stop. Only the first reason is kept."""
        if self.told is None:
            self.told, self.told_unix_s = reason, time.time()
