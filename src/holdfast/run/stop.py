"""Stop: a request to stop, remembered until the next safe point; whether the attempt has stopped.
The clock of the scheduler's job: when the run may begin, when the job ends, whether it is requeued.

Handlers set a flag; loops act.
"""

from __future__ import annotations

import atexit
import os
import random
import signal
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, suppress
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any, Self

import msgspec

from .. import interval, journal, scan, settings
from ..cluster import job_leader
from ..cluster.hold import HOLD, format_hold_message
from ..errors import Stopped, StoreError, UsageError
from ..job import Job, job
from ..journal import Log
from ..store import claiming
from ..store.attempt import Attempt
from ..terminal import drop_if_hung_up, say, warn

if TYPE_CHECKING:
    from ..cluster.cause import StopNotice
    from ..cluster.watch import JobWatch

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


MOST_JITTER_S = 30.0  # jobs that get a notice at the same time spread their saves over this time
# of the time until SIGKILL, for the journal and a requeue, ours or the supervisor's
LAST_ACTS_S = 5.0
NEAR_S = 900.0  # a notice less than this before the job's end announces the end


class JobClock:
    """Knows when the scheduler's job of this attempt ends. Inactive outside a job, in a
    drill, and on ranks above 0.
    """

    def __init__(self, path: Path, stop: StopRequest, *, own_deadline: bool, rank: int = 0) -> None:
        here = None if settings.is_drilled() or rank else job()
        self.rank = rank
        self.path, self.stop = path, stop
        self.job = here if here is not None and job_leader.is_job_leader(here) else None
        self.watch: JobWatch | None = None
        if self.job is not None:
            from ..cluster import requeue  # noqa: F401  the end of a job imports nothing more
            from ..cluster.watch import JobWatch

            # A supervisor queries the scheduler and signals this process in time.
            supervised = job_leader.supervisor_directory() is not None
            self.watch = JobWatch(self.job, end=not (own_deadline or supervised))
        # a random time before the job's end, so that jobs do not all stop at once
        self.early_s: float | None = None
        self._told = False

    def wait_for_earlier_task(self, root: Path) -> None:
        """Before the run is claimed,
        wait for an earlier task of the same array, which may still be saving.
        """
        wait_for_earlier_task(root, self.job)

    def report_run_path(self, *, fresh: bool) -> None:
        """Report the run's path to the supervisor; warn when a restarted job finds no
        checkpoint.
        """
        drop_pending_requeue()
        supervisor = job_leader.supervisor_directory() if self.rank == 0 else None
        if supervisor is not None:
            job_leader.report_run_path(supervisor, self.path)
        if self.rank == 0 and scan.exists(self.path / HOLD):
            say(format_hold_message(self.path))
        if fresh and self.job is not None and self.job.restart_count > 0:
            warn(
                f"{self.path}: this is start {self.job.restart_count + 1} "
                f"of job {self.job.id}, and there is no "
                "checkpoint of an earlier one: was the directory there then, "
                "and is it the same one on every node?"
            )

    def update_job_end(self, *, save_s: float, step_s: float, drain_s: float = 0.0) -> None:
        """Update at each safe point when the job ends, and how long to wait after each signal.

        `drain_s`: how long the run waits for its mirrors, after its last save.
        """
        watch = self.watch
        if watch is None:
            return
        watch.poll_answers()
        now, end_s = time.time(), watch.end_s
        if end_s is not None and self.early_s is None:
            from ..cluster.watch import DICE

            self.early_s = DICE.uniform(0, min(10.0, max(0.0, end_s - now) / 100))
        self._warn_of_short_grace(watch, save_s, step_s)
        need_s = interval.exit_time_s(save_s) + step_s + drain_s
        notice_s = _spare_seconds(_notice_lead_s(watch, now), need_s) / 2
        kill_s = _spare_seconds(watch.kill_wait_s, 4 * need_s) / 4  # SIGKILL follows
        self.stop.set_deadline(
            None if end_s is None or self.early_s is None else end_s - self.early_s,
            {"SIGTERM": kill_s, "SIGUSR1": notice_s, "SIGUSR2": notice_s},
        )

    def time_left_s(self) -> float:
        """Return how many seconds are left of the job,
        or until the deadline; infinity if neither end is known.
        """
        if self.watch is not None:
            self.watch.poll_answers()
        ends = (self.stop.deadline_s, None if self.watch is None else self.watch.end_s)
        return max(
            0.0, min((end for end in ends if end is not None), default=float("inf")) - time.time()
        )

    def must_exit_by(self) -> float:
        """Return when the process must have exited, in Unix seconds: the deadline, or the
        kill after a signal.
        """
        ends = [float("inf") if self.stop.deadline_s is None else self.stop.deadline_s]
        if self.watch is not None and self.stop.reason is not None:
            from ..cluster.chain import KILL_WAIT_S

            unknown = self.stop.reason == "SIGTERM" and self.watch.kill_wait_s is None
            killed = self._kill_time(KILL_WAIT_S) if unknown else self.certainly_alive_until()
            ends += [] if killed is None else [killed]
        return min(ends) - interval.LEAVE_S

    def certainly_alive_until(self) -> float | None:
        """Return until when this process certainly lives after a request to stop, in Unix
        seconds; None: unknown.
        """
        stop, watch = self.stop, self.watch
        if stop.reason == "deadline":
            return stop.deadline_s
        if watch is None:
            return None
        if stop.reason == "SIGTERM":
            return None if watch.kill_wait_s is None else self._kill_time(watch.kill_wait_s)
        notice_s = (
            _notice_lead_s(watch, stop.at_s) if stop.reason in {"SIGUSR1", "SIGUSR2"} else None
        )
        return None if notice_s is None else stop.at_s + notice_s

    def _kill_time(self, wait_s: float) -> float:
        """Return when SIGKILL comes if it follows `wait_s` after the signal."""
        return self.stop.at_s + max(wait_s - LAST_ACTS_S, wait_s / 2)

    def prepare_requeue(self, attempt: Attempt) -> None:
        """Prepare the requeue after a stop: when this process exits,
        it requeues the job, if the cause allows it.
        """
        if (
            self.job is not None
            and self.stop.reason is not None
            and job_leader.supervisor_directory() is None
        ):
            # signals that Slurm sends from now on must not interrupt the requeue
            self.stop.ignore_signals_afterwards()
            from ..cluster.cause import StopNotice

            heard = StopNotice(self.stop.reason, self.stop.at_s)
            _pending[:] = [
                (os.getpid(), partial(_requeue_at_exit, self.job, heard, self.path, attempt))
            ]
            atexit.unregister(_run_pending_requeue)
            atexit.register(_run_pending_requeue)

    def close(self) -> None:
        if self.watch is not None:
            self.watch.close()

    def _warn_of_short_grace(self, watch: JobWatch, save_s: float, step_s: float) -> None:
        """Warn once if only a notice leaves time for a save,
        and the job asks for none, or for a short one.
        """
        kill_wait_s, need_s = watch.kill_wait_s, save_s + step_s
        if self._told or kill_wait_s is None or not save_s or need_s <= kill_wait_s:
            return
        if watch.lead_s is None:
            watch.query_lead()  # the answer comes at a later safe point
            return
        self._told = True
        notice_s = interval.notice_time_s(need_s)
        if watch.lead_s >= interval.exit_time_s(need_s):
            return
        asked = (
            f", and the job's notice comes {watch.lead_s:.0f} s before its end"
            if watch.lead_s
            else ""
        )
        warn(
            f"{self.path}: a save takes {save_s:.0f} s and a "
            f"step {step_s:.0f} s, and the grace after SIGTERM is "
            f"{kill_wait_s:.0f} s (KillWait){asked}. "
            f"Ask for {'an earlier' if asked else 'a'} notice: "
            f"#SBATCH --signal=B:USR1@{notice_s}"
        )


def _notice_lead_s(watch: JobWatch, now: float) -> float | None:
    """Seconds from a notice that comes now until SIGTERM; None if unknown."""
    if watch.end_s is not None and watch.end_s - now < NEAR_S:
        return watch.end_s - now
    return watch.preempt_s


def wait_for_earlier_task(root: Path, here: Job | None) -> None:
    """Wait while attempts of other tasks of this array are ending in the run at `root`."""
    if here is None:
        return
    from ..cluster import chain
    from ..cluster.chain import EarlierOwner

    chain.wait_for_earlier_tasks(
        root,
        lambda: [
            EarlierOwner(log.owner, partial(_close_journal, log))
            for log in claiming.possibly_alive_attempts(root)
        ],
        here,
    )


def _close_journal(log: Log) -> None:
    from ..cluster.chain import OVER

    journal.append(log.path, [{"event": "failed", "why": OVER}], sync=True)


def _requeue_at_exit(here: Job, heard: StopNotice, path: Path, attempt: Attempt) -> None:
    from ..cluster.requeue import Requeue

    def record(event: str, /, **facts: object) -> None:
        attempt.record(event, **facts)
        attempt.flush(sync=True)

    requeues = 0
    with suppress(StoreError, OSError):
        requeues = sum(
            event["event"] == "requeued" for log in journal.logs(path) for event in log.events
        )
    due = Requeue(here, heard, record, requeues, [path], settings.max_requeues())
    say(f"{path}: {due.continue_job().line}")


# the requeue to run when this process ends, and its pid
_pending: list[tuple[int, Callable[[], None]]] = []


def _run_pending_requeue() -> None:
    while _pending:
        pid, requeue = _pending.pop()
        if pid == os.getpid():  # otherwise this is a forked child
            requeue()


def drop_pending_requeue() -> None:
    """Drop the pending requeue of an earlier run of this process: a new run begins."""
    _pending.clear()
    restore_signal_handling()


def _spare_seconds(budget_s: float | None, need_s: float) -> float:
    """Seconds of the budget that remain when the save completes in time."""
    return max(0.0, min((budget_s or 0.0) - need_s, 2 * MOST_JITTER_S))
