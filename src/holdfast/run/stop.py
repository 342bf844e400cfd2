"""Stop: the wish to end soon, remembered until the next safe point. Handlers set a flag; loops act."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from datetime import UTC, datetime, timedelta
from types import FrameType
from typing import Any, Self

from .. import interval
from ..errors import UsageError

SIGNALS = (signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2, signal.SIGINT)

Deadline = datetime | timedelta | float


class Stop(AbstractContextManager["Stop"]):
    """While entered, turns the signals into a reason to stop; a second SIGINT leaves at once.

    Only the main thread can take signals: elsewhere a run stops by its deadline alone.
    """

    def __init__(self, deadline: Deadline | None = None) -> None:
        self.reason: str | None = None
        self._deadline_s = None if deadline is None else unix_seconds(deadline)
        if self._deadline_s is not None and self._deadline_s <= time.time():
            raise UsageError(f"deadline={deadline!r} has passed; a run that began now would stop at its first step")
        self._previous: dict[int, Callable[..., Any] | int | None] = {}

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():
            if isinstance(getattr(signal.getsignal(signal.SIGTERM), "__self__", None), Stop):
                raise UsageError(
                    "a Run inside the block of another: a stop could save only one of them; enter them in turn"
                )
            self._previous = {number: signal.signal(number, self._on_signal) for number in SIGNALS}
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler if handler is not None else signal.SIG_DFL)
        self._previous = {}

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        if number == signal.SIGINT and self.reason == "SIGINT":
            signal.default_int_handler(number, frame)
        self.reason = "SIGINT" if number == signal.SIGINT else self.reason or signal.Signals(number).name

    def wanted(self, *, save_s: float, step_s: float) -> str | None:
        """Why to stop at this safe point, or None. `save_s` and `step_s`: what one save and one step cost."""
        deadline_s = float("inf") if self._deadline_s is None else self._deadline_s
        if self.reason is None and interval.must_stop(time.time(), deadline_s, save_s, step_s):
            self.reason = "deadline"
        return self.reason


def unix_seconds(deadline: Deadline) -> float:
    """A deadline as Unix seconds: a time of day, a span from now, or Unix seconds already."""
    if isinstance(deadline, datetime):
        return (deadline if deadline.tzinfo else deadline.astimezone(UTC)).timestamp()
    if isinstance(deadline, timedelta):
        return time.time() + deadline.total_seconds()
    if isinstance(deadline, int | float) and deadline > 1e9:  # less would be a span, not a date
        return float(deadline)
    raise UsageError(f"deadline={deadline!r}: give a datetime, a timedelta from now, or Unix seconds")
