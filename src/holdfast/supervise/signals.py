"""Signals that the supervisor has received, kept until its loop asks for them."""

from __future__ import annotations

import os
import signal
import time
from contextlib import suppress
from typing import Self

from ..children.child import SIGNALS
from ..children.warden import adopt

# Their meaning is "stop". A terminal that is gone says the same as SIGTERM, which programs know better.
STOPS = {signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2, signal.SIGINT, signal.SIGHUP}
# nohup, and shells of what they send to the background, mean it. Our batch scripts ignore the notice until we listen.
IGNORED = {signal.SIGHUP, signal.SIGINT}


class SignalInbox:
    """While entered, receives the signals of `SIGNALS`, except those that the caller's shell has set to be ignored."""

    def __init__(self) -> None:
        self.told: str | None = None  # the first signal, or "deadline": from then on nothing is started any more
        self.told_unix_s = 0.0
        self.told_s: dict[int, float] = {}  # when each was heard first
        self.insists = False  # a second Ctrl-C
        self._source, self._sink = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self._before = -1  # the descriptor that signals were written to before

    def __enter__(self) -> Self:
        self._before = signal.set_wakeup_fd(self._sink, warn_on_full_buffer=False)
        for number in SIGNALS:
            if number not in IGNORED or signal.getsignal(number) is not signal.SIG_IGN:
                signal.signal(number, lambda *_: None)
        adopt(orphans=True)
        return self

    def __exit__(self, *_: object) -> None:
        self.close()  # this process is about to end, and with which code has been decided
        adopt(orphans=False)
        signal.set_wakeup_fd(self._before)
        os.close(self._source)
        os.close(self._sink)

    def fileno(self) -> int:
        """Readable when there is something to `hear`."""
        return self._source

    def received(self) -> list[int]:
        """What has come since the last call, in order."""
        heard = b""
        with suppress(BlockingIOError):
            heard = os.read(self._source, 1 << 16)  # all that a pipe holds
        numbers = [number for number in heard if number in SIGNALS]
        for number in numbers:
            if number == signal.SIGINT and signal.SIGINT in self.told_s:
                self.insists = True
            if number in STOPS:
                self.told_s.setdefault(number, time.monotonic())
                self.tell(signal.Signals(number).name)
        return numbers

    def close(self) -> None:
        """Ignore all that means "stop", also in processes started from now on.

        A scheduler that is asked to requeue a job then ends it, and would end the very command that asks.
        """
        for number in STOPS:
            signal.signal(number, signal.SIG_IGN)

    def tell(self, reason: str) -> None:
        """Be told to stop, for this reason if for none before."""
        if self.told is None:
            self.told, self.told_unix_s = reason, time.time()
