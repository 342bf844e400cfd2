"""Job end: what the supervisor does about the job that it runs in, if nobody above it speaks for that job."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from pathlib import Path

from ..cluster import job_leader, other, slurm
from ..cluster.cause import Heard, cause
from ..cluster.requeue import Requeue
from ..errors import ClusterError
from ..job import Job
from .place import SupervisorDirectory
from .signals import SignalInbox

ASKED_S = 60.0  # between two questions to the scheduler
SCRIPT = "job.sh"  # what `holdfast submit` has submitted


class JobEnd:
    """The job, from its beginning to the last act."""

    def __init__(self, job: Job | None, place: SupervisorDirectory, *, requeue: bool, limit: int, chain: bool) -> None:
        alone = job is not None and job_leader.supervisor() is None and job_leader.speaks(job)
        self._job = job if alone else None
        self._place, self._requeue, self._limit, self._chain = place, requeue, limit, chain
        self._asked_s = -ASKED_S
        self.exit_code: int | None = None  # another than 75, that makes the scheduler start the job again

    def is_ending(self) -> bool:
        """Whether the scheduler ends the job, and has told the command before us: of a preemption, srun's tasks hear first."""
        if self._job is None or self._job.scheduler != "slurm" or time.monotonic() < self._asked_s + ASKED_S:
            return False
        self._asked_s = time.monotonic()
        try:
            why = cause(Heard("SIGTERM", time.time()), self._job.restart_count, slurm.seen(self._job))
        except ClusterError:
            return False
        return why != "unclear"

    def continue_job(self, signals: SignalInbox, what: str, places: Sequence[Path]) -> str | None:
        """Requeue the job, if the scheduler's own evidence says why it was told to stop by `what`; the line to say."""
        if self._job is None:
            return None
        if self._chain and self._job.task is not None:
            return f"job {self._job.id}: {_next(self._job.task)}"
        if not self._requeue:
            return f"job {self._job.id} is not requeued: --no-requeue"
        signals.close()
        script = self._place.path / SCRIPT
        carried = Requeue(
            self._job,
            Heard(what, signals.told_unix_s or time.time()),
            self._place.record,
            self._place.count("requeued"),
            places,
            self._limit,
            script if script.is_file() else None,
        ).continue_job()
        if carried.how == "by its rule":
            self.exit_code = other.exit_code(self._job, what)
        return carried.line


def _next(task: str) -> str:
    """What comes after this task of a chain. Source: sbatch(1), OUTPUT ENVIRONMENT VARIABLES."""
    if task == os.environ.get("SLURM_ARRAY_TASK_MAX"):
        return "it was the last task of the array; to go on, submit it again"
    return "the next task of the array goes on"
