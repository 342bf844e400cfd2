"""Limits: how long the command may run, according to the scheduler and the options."""

from __future__ import annotations

import signal
import time

from ..cluster.chain import KILL_WAIT_S
from ..cluster.watch import JobWatch
from ..interval import LEAVE_S, SAVE_MARGIN
from ..job import Job
from .signals import SignalInbox

PATIENCE_S = 600.0  # for a save, if no other process enforces a limit
LAST_ACT_S = 5.0  # for our own end: the journal, a commit, a requeue
LATE_S = 90.0  # Slurm checks limits twice a minute: SIGTERM may come so long after the end
LEAD_S = 60.0


class TimeLimits:
    """When the command must stop, and when it is killed. Monotonic seconds, unless a name
    says otherwise.
    """

    def __init__(self, job: Job | None, grace_s: float | None, lead_s: float | None) -> None:
        self._job, self._grace_option_s, self._lead_option_s = job, grace_s, lead_s
        self._longest_s = 0.0  # that was ever left
        self.watch = JobWatch(job)
        self.save_s = 0.0  # how long the next save may take; 0 if unknown

    def time_left_s(self) -> float | None:
        """Seconds until the job's time is up; None: no end is known."""
        return None if self.watch.end_s is None else self.watch.end_s - time.time()

    def lead_s(self) -> float:
        """Return how long before the job's end the command is told to stop:
        by default a quarter of a short job.
        """
        if self._lead_option_s is not None:
            return self._lead_option_s
        self._longest_s = max(self._longest_s, self.time_left_s() or 0.0)
        return min(LEAD_S, self._longest_s / 4) if self._longest_s else LEAD_S

    def stop_due_s(self) -> float | None:
        """Return when to tell the command to stop if no other process does so; None: never."""
        left_s = self.time_left_s()
        need_s = SAVE_MARGIN * self.save_s + LEAVE_S if self.save_s else 0.0
        return None if left_s is None else time.monotonic() + left_s - max(self.lead_s(), need_s)

    def grace_s(self, number: int) -> float:
        """Return the time between that signal and the kill, as far as it is known now."""
        if self._grace_option_s is not None:
            return self._grace_option_s
        if self._job is None or number not in {signal.SIGTERM, signal.SIGHUP}:
            return PATIENCE_S
        wait_s = self.watch.kill_wait_s if self.watch.kill_wait_s is not None else KILL_WAIT_S
        return max(wait_s - LAST_ACT_S, wait_s / 2)

    def kill_at_s(self, signals: SignalInbox) -> float:
        """Return when the command is killed.
        If it received several signals, the shortest grace time counts.
        """
        told = [self._grace_end_s(number, heard_s) for number, heard_s in signals.told_s.items()]
        by_deadline_s = self._grace_end_s(
            signal.SIGUSR1, time.monotonic() + signals.told_unix_s - time.time()
        )
        return min(told, default=by_deadline_s)

    def _grace_end_s(self, number: int, heard_s: float) -> float:
        """Return when the grace time of a signal ends.

        A notice leaves time until the job's end. SIGTERM comes then, and its grace time decides.
        """
        left_s = self.time_left_s()
        if (
            self._grace_option_s is None
            and left_s is not None
            and number not in {signal.SIGTERM, signal.SIGHUP}
        ):
            return time.monotonic() + left_s + LATE_S
        return heard_s + self.grace_s(number)
