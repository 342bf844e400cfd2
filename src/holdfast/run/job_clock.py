"""Job clock: the scheduler's job around a run: when it may begin, when it ends, and whether it is requeued."""

from __future__ import annotations

import atexit
import os
import time
from functools import partial
from pathlib import Path

from .. import interval, journal
from ..cluster import chain, job_leader
from ..cluster.cause import Heard
from ..cluster.chain import Earlier
from ..cluster.requeue import HOLD, Requeue, on_hold
from ..cluster.watch import DICE, JobWatch
from ..errors import StoreError
from ..job import Job, job
from ..journal import Log
from ..store import claiming
from ..store.attempt import Attempt
from ..terminal import say, warn
from . import settings
from .stop import Stop, hear_again

MOST_JITTER_S = 30.0  # over which jobs that get a notice at the same time spread their saves
NEAR_S = 900.0  # a notice this near to the job's end is about the end


class JobClock:
    """One attempt's job. It does nothing outside of a job, in a drill, or in a process other than rank 0."""

    def __init__(self, path: Path, stop: Stop, *, own_deadline: bool, rank: int = 0) -> None:
        here = None if settings.is_drilled() or rank else job()
        self.rank = rank
        self.path, self.stop = path, stop
        self.job = here if here is not None and job_leader.speaks(here) else None
        supervised = (
            job_leader.supervisor() is not None
        )  # then the supervisor asks the scheduler and signals this process in time
        self.watch = JobWatch(self.job, end=not (own_deadline or supervised))
        self.early_s: float | None = None  # before the job's end, at random, so that jobs do not all stop at once
        self._told = False

    def await_turn(self, root: Path) -> None:
        """Before the run is claimed, wait for an earlier task of the same array that may still be saving."""
        await_turn(root, self.job)

    def begin(self, *, fresh: bool) -> None:
        """Tell the supervisor where the run is; warn when a restarted job finds no checkpoint."""
        forget()
        supervisor = job_leader.supervisor() if self.rank == 0 else None
        if supervisor is not None:
            job_leader.tell_run(supervisor, self.path)
        if (self.path / HOLD).exists():
            say(on_hold(self.path))
        if fresh and self.job is not None and self.job.restart_count > 0:
            warn(
                f"{self.path}: this is start {self.job.restart_count + 1} of job {self.job.id}, and there is no checkpoint "
                "of an earlier one: was the directory there then, and is it the same one on every node?"
            )

    def look(self, *, save_s: float, step_s: float) -> None:
        """At each safe point: update the job's end, and how long to wait after each signal."""
        if self.job is None:
            return
        self.watch.look()
        now, end_s = time.time(), self.watch.end_s
        if end_s is not None and self.early_s is None:
            self.early_s = DICE.uniform(0, min(10.0, max(0.0, end_s - now) / 100))
        self._warn_of_a_short_grace(save_s, step_s)
        need_s = interval.SAVE_MARGIN * save_s + step_s + interval.LEAVE_S
        notice_s = _spare(self._notice_s(now), need_s) / 2
        kill_s = _spare(self.watch.kill_wait_s, 4 * need_s) / 4  # there is no second chance
        self.stop.plan(
            None if end_s is None or self.early_s is None else end_s - self.early_s,
            {"SIGTERM": kill_s, "SIGUSR1": notice_s, "SIGUSR2": notice_s},
        )

    def stopped(self, attempt: Attempt) -> None:
        """The state is saved and the run leaves: requeue the job as this process's last act, if its cause allows that."""
        if self.job is not None and self.stop.reason is not None and job_leader.supervisor() is None:
            self.stop.stay_deaf()  # signals that Slurm sends now, to its own commands too, must not interrupt that
            _remember(_Pending(self.job, Heard(self.stop.reason, self.stop.at_s), self.path, attempt))

    def close(self) -> None:
        self.watch.close()

    def _notice_s(self, now: float) -> float | None:
        """Seconds from a notice that comes now until SIGTERM; None when that is not known."""
        if self.watch.end_s is not None and self.watch.end_s - now < NEAR_S:
            return self.watch.end_s - now
        return self.watch.preempt_s

    def _warn_of_a_short_grace(self, save_s: float, step_s: float) -> None:
        kill_wait_s = self.watch.kill_wait_s
        if not self._told and kill_wait_s is not None and save_s and save_s + step_s > kill_wait_s:
            self._told = True
            warn(
                f"{self.path}: a save takes {save_s:.0f} s and a step {step_s:.0f} s, and the grace after SIGTERM is "
                f"{kill_wait_s:.0f} s (KillWait). Ask for a notice: #SBATCH --signal=B:USR1@{_round(save_s, step_s)}"
            )


def await_turn(root: Path, here: Job | None) -> None:
    """Wait while attempts of other tasks of this array end in the run at `root`."""
    chain.await_turn(root, lambda: [Earlier(log.owner, partial(_close, log)) for log in claiming.strangers(root)], here)


def _close(log: Log) -> None:
    journal.append(log.path, [{"event": "failed", "why": chain.OVER}], sync=True)


class _Pending:
    """The requeue that is due when this process ends."""

    def __init__(self, here: Job, heard: Heard, path: Path, attempt: Attempt) -> None:
        self.job, self.heard, self.path, self.attempt, self.pid = here, heard, path, attempt, os.getpid()

    def continue_job(self) -> None:
        limit = settings.max_requeues()
        due = Requeue(self.job, self.heard, self._record, self._requeues(), [self.path], limit)
        say(f"{self.path}: {due.continue_job().line}")

    def _record(self, event: str, /, **facts: object) -> None:
        self.attempt.record(event, **facts)
        self.attempt.flush(sync=True)

    def _requeues(self) -> int:
        try:
            events = [event for log in journal.logs(self.path) for event in log.events]
        except (StoreError, OSError):
            return 0
        return sum(event["event"] == "requeued" for event in events)


_pending: list[_Pending] = []


def _remember(pending: _Pending) -> None:
    _pending[:] = [pending]
    atexit.unregister(_last_act)
    atexit.register(_last_act)


def _last_act() -> None:
    while _pending:
        pending = _pending.pop()
        if pending.pid == os.getpid():  # else this is a forked child
            pending.continue_job()


def forget() -> None:
    """A run begins: drop the requeue that an earlier run of this process has left."""
    _pending.clear()
    hear_again()


def _spare(budget_s: float | None, need_s: float) -> float:
    """Seconds of the budget that remain when the save is done in time."""
    return max(0.0, min((budget_s or 0.0) - need_s, 2 * MOST_JITTER_S))


def _round(save_s: float, step_s: float) -> int:
    """A lead that is enough, in whole half minutes."""
    return 30 * int((interval.SAVE_MARGIN * save_s + step_s) // 30 + 2)
