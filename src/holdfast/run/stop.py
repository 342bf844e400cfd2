"""Stop: a request to stop, remembered until the next safe point. Lifetime: whether the attempt has
stopped.

Handlers set a flag; loops act.
"""

from __future__ import annotations

import os
import random
import signal
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from datetime import UTC, datetime, timedelta
from types import FrameType
from typing import Any, Self

import msgspec

from .. import interval
from ..errors import Stopped, UsageError
from ..store.attempt import Attempt
from ..terminal import drop_if_hung_up

# ignored by a process that has stopped
ONCE_DONE = (signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2)
SIGNALS = (signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2, signal.SIGINT)
ONE_PRESS_S = 1.0  # `timeout -s INT` signals its child and then the group: two signals, one request

DICE = random.SystemRandom()  # does not change the script's random numbers

Deadline = datetime | timedelta | float


class StopRequest(AbstractContextManager["StopRequest"]):
    """Handles stop signals while entered, and keeps the reason to stop until the next safe point.

    A second SIGINT ends the process at once. One that follows within a second does not; a third
    does. SIGHUP, of a terminal that was closed, counts like SIGTERM, unless it is ignored (nohup)
    or the script handles it. Only the main thread can receive signals: elsewhere a run stops by its
    deadline alone.
    """

    def __init__(self, deadline: Deadline | None = None) -> None:
        self.reason: str | None = None
        self.at_s = 0.0  # when the request came, in Unix seconds
        self._answer: Callable[[str], None] = lambda _: None  # tells at once what a SIGINT does
        # how long each signal may wait, so that jobs do not all save at once
        self.spare_s: Mapping[str, float] = {}
        self.deaf = False  # when left: ignore the signals that would end this process by default
        self.deadline_s = None if deadline is None else unix_seconds(deadline)
        self._until_s: float | None = None  # the stop waits until then
        self._pressed = False  # stop at the next safe point, without waiting
        self._interrupts, self._interrupted_s = 0, 0.0  # SIGINTs so far, and when the last one came
        self._terminals: list[int] = []  # standard streams that were a terminal when the run began
        if self.deadline_s is not None and self.deadline_s <= time.time():
            raise UsageError(
                f"deadline={deadline!r} has passed; "
                "a run that began now would stop at its first step"
            )
        self._previous: dict[int, Callable[..., Any] | int | None] = {}
        self._pid = os.getpid()  # a forked child has these handlers, too

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():
            if isinstance(getattr(signal.getsignal(signal.SIGTERM), "__self__", None), StopRequest):
                raise UsageError(
                    "a Run inside the block of another: "
                    "a stop could save only one of them; enter them in turn"
                )
            hangup = [signal.SIGHUP] if signal.getsignal(signal.SIGHUP) is signal.SIG_DFL else []
            self._terminals = [number for number in range(3) if os.isatty(number)]
            self._previous = {
                number: signal.signal(number, self._on_signal) for number in (*SIGNALS, *hangup)
            }
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._previous.items():
            if self.deaf and number in ONCE_DONE and handler in {None, signal.SIG_DFL}:
                _deaf_to.add(number)
                signal.signal(number, signal.SIG_IGN)
            else:
                signal.signal(number, handler if handler is not None else signal.SIG_DFL)
        self._previous = {}

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        if number == signal.SIGINT:
            if self._interrupts and (
                self._interrupts > 1 or time.monotonic() - self._interrupted_s > ONE_PRESS_S
            ):
                signal.default_int_handler(number, frame)
            self._interrupts, self._interrupted_s = self._interrupts + 1, time.monotonic()
            if self._interrupts == 1 and os.getpid() == self._pid:
                self._answer("SIGINT")
        if number == signal.SIGHUP:
            drop_if_hung_up(self._terminals)
        if self.reason is None:
            self.at_s = time.time()
        else:
            self._pressed = True
        self.reason = (
            "SIGINT" if number == signal.SIGINT else self.reason or signal.Signals(number).name
        )

    def answer_with(self, answer: Callable[[str], None]) -> None:
        """Let the first SIGINT call `answer` at once, with its name."""
        self._answer = answer

    def receive_from_rank(self, reason: str) -> None:
        """Handle a signal that another rank received as if this process had received it."""
        self.reason, self.at_s = self.reason or reason, self.at_s or time.time()

    def set_deadline(self, deadline_s: float | None, spare_s: Mapping[str, float]) -> None:
        """Set when the job ends (None: unknown), and how long each signal may wait until then."""
        self.deadline_s = self.deadline_s if deadline_s is None else deadline_s
        self.spare_s = spare_s

    def ignore_signals_afterwards(self) -> None:
        """On exit, ignore the signals that would end this process by default."""
        self.deaf = True

    def reason_to_stop(self, *, save_s: float, step_s: float) -> str | None:
        """Return why to stop at this safe point, or None.
        `save_s`, `step_s`: duration of one save and one step.
        """
        now = time.time()
        deadline_s = float("inf") if self.deadline_s is None else self.deadline_s
        if interval.must_stop(now, deadline_s, save_s, step_s):
            self._pressed = True
            if self.reason is None:
                self.reason, self.at_s = "deadline", now
        if self.reason is not None and self._until_s is None:
            self._until_s = self.at_s + DICE.uniform(0, self.spare_s.get(self.reason, 0.0))
        return self.reason if self._pressed or now >= (self._until_s or 0.0) else None


class Lifetime(msgspec.Struct):
    """Whether this process still works for its attempt: it has neither stopped nor left it."""

    _attempt: Attempt
    left: bool = False  # its block has ended, or without a block its outermost loop
    over: Stopped | None = None  # it has stopped, and does nothing more

    @property
    def is_over(self) -> bool:
        """Whether this process does no more work for this attempt."""
        return self.left or self.over is not None or self.is_in_forked_child

    @property
    def is_in_forked_child(self) -> bool:
        """Whether this process is a forked child; its parent has the attempt."""
        return self._attempt.is_in_forked_child

    def note_stopped(self, reason: str) -> Stopped:
        """Note that the attempt has stopped; return the exception to raise."""
        self.over = Stopped(reason)
        return self.over

    def note_left(self) -> None:
        """Note that the block, or the outermost loop, has ended."""
        self.left = True

    def require_running(self) -> None:
        """Require that the run has not ended, and belongs to this process.

        Raises:
            Stopped: again; the first was swallowed, perhaps by a bare `except:`.
            UsageError: a generator outlived its block, or continued in a forked child.
        """
        if self.over is not None:
            raise Stopped(self.over.reason)
        if self.is_over:
            whose = (
                "its block has ended; make the loop inside the block"
                if self.left
                else "it belongs to the parent of this forked process; only the parent may go on"
            )
            raise UsageError(f"{self._attempt.root}: this loop is not the run's any more: {whose}")


_deaf_to: set[int] = set()


def restore_signal_handling() -> None:
    """Handle the signals again that `ignore_signals_afterwards` left ignored:
    another run begins in this process.
    """
    while _deaf_to and threading.current_thread() is threading.main_thread():
        number = _deaf_to.pop()
        if signal.getsignal(number) == signal.SIG_IGN:
            signal.signal(number, signal.SIG_DFL)


def unix_seconds(deadline: Deadline) -> float:
    """Return a deadline as Unix seconds: from a datetime, a timedelta from now, or Unix seconds."""
    if isinstance(deadline, datetime):
        return (deadline if deadline.tzinfo else deadline.astimezone(UTC)).timestamp()
    if isinstance(deadline, timedelta):
        return time.time() + deadline.total_seconds()
    if isinstance(deadline, int | float) and deadline > 1e9:  # less would be a span, not a date
        return float(deadline)
    raise UsageError(
        f"deadline={deadline!r}: give a datetime, a timedelta from now, or Unix seconds"
    )
