"""Job clock: the scheduler's job around a run:
when the run may begin, when the job ends, whether it is requeued.
"""

from __future__ import annotations

import atexit
import os
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from .. import interval, journal, scan
from ..cluster import job_leader
from ..cluster.hold import HOLD, format_hold_message
from ..errors import StoreError
from ..job import Job, job
from ..journal import Log
from ..store import claiming
from ..store.attempt import Attempt
from ..terminal import say, warn
from . import settings
from .stop import StopRequest, restore_signal_handling

if TYPE_CHECKING:
    from ..cluster.cause import StopNotice
    from ..cluster.watch import JobWatch

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
