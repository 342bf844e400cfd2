"""Job end: what the supervisor does about its job, unless another process acts for that job."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from .. import journal
from ..cluster import bad_nodes, job_leader, other, slurm
from ..cluster.bad_nodes import Death, Exclusion
from ..cluster.cause import StopNotice, find_cause
from ..cluster.requeue import Requeue
from ..errors import ClusterError
from ..job import Job
from ..terminal import warn
from .place import SupervisorDirectory
from .signals import SignalInbox

_STARTS = {"begin", *journal.CLOSING}
_BY_PREEMPTION = ("preempted", "requeued")  # the latter: by Slurm itself
ASKED_S = 60.0  # between two queries to the scheduler


@dataclass
class JobEnding:
    """Decides when the supervisor's job must end, and requeues it at the very end."""

    job: Job | None
    place: SupervisorDirectory
    requeue: bool
    limit: int
    chain: bool
    exit_code: int | None = None  # instead of 75: makes the scheduler continue, or show no failure
    _asked_s: float = -ASKED_S

    def __post_init__(self) -> None:
        if self.job is not None and (
            job_leader.supervisor_directory() is not None or not job_leader.is_job_leader(self.job)
        ):
            self.job = None  # another process acts for the job

    def is_already_done(self) -> bool:
        """Whether this job has done its work, and Slurm started it again because it was preempted
        before.

        Source: Slurm 24.05 and later, after a preemption with a grace (docs/cluster.md).
        """
        if self.job is None or self.job.processes > 1 or not self.job.restart_count:
            return False
        with suppress(OSError):
            events = list(journal.read(self.place.journal))
            starts: list[journal.Event] = [
                {},
                {},
                *(each for each in events if each["event"] in _STARTS),
            ]
            *_, begin, end, _ = starts  # of the last start, and ours
            carried = [each for each in events if each["event"] in ("requeued", "not_requeued")]
            ours = (begin.get("job") or {}).get("id") == self.job.id and end.get("event") == "end"
            return ours and bool(carried) and carried[-1].get("cause") in _BY_PREEMPTION
        return False

    def is_ending(self) -> bool:
        """Whether the scheduler ends the job and signalled only the command so far, as it does
        with srun's tasks.
        """
        if (
            self.job is None
            or self.job.scheduler != "slurm"
            or time.monotonic() < self._asked_s + ASKED_S
        ):
            return False
        self._asked_s = time.monotonic()
        try:
            why = find_cause(
                StopNotice("SIGTERM", time.time()),
                self.job.restart_count,
                slurm.job_status(self.job),
            )
        except ClusterError:
            return False
        return why != "unclear"

    def is_on_bad_node(self) -> bool:
        """Whether earlier starts were lost on this node, and the job can run without it."""
        node, events = bad_nodes.node_of_job(self._movable_job), self._journal_events()
        died = bad_nodes.deaths_in_journal(events)
        return node in bad_nodes.nodes_to_exclude(died, time.time()) and self._can_avoid_node(
            node, events, died
        )

    def find_node_at_fault(self, tail: str) -> tuple[str, int]:
        """Return the node that caused the death of a start, and `CommandAttempt.node_deaths`."""
        node, events, now_s = (
            bad_nodes.find_node_at_fault(self.job, tail),
            self._journal_events(),
            time.time(),
        )
        if not node or self._movable_job is None:
            return node, 0
        died = [*bad_nodes.deaths_in_journal(events), Death(node, now_s)]
        lately = sum(each.node == node and each.at_s >= now_s - bad_nodes.WITHIN_S for each in died)
        return node, lately if lately == 1 or self._can_avoid_node(node, events, died) else 0

    @property
    def _movable_job(self) -> Job | None:
        """The job, if it can go on elsewhere."""
        return (
            self.job
            if self.job and self.job.scheduler == "slurm" and self.requeue and not self.chain
            else None
        )

    def _can_avoid_node(
        self, node: str, events: Sequence[journal.Event], died: Sequence[Death]
    ) -> bool:
        """Whether the next start can avoid the node; if not, report why."""
        found, why = self._exclusion_after(events, died)
        if found is not None and node not in found.until_s:
            why = "it is required, or too few others are left, or too many seem bad"
        elif (
            self.job is not None
            and bad_nodes.count_own_exclusions(events, self.job.id)[node] >= bad_nodes.TRIES
        ):
            why = "the job came back to it"
        elif self.place.count_events("requeued") >= self.limit:
            why = "it was requeued too often"
        if why:
            warn(f"two starts have died on {node} by its own fault, but the job stays there: {why}")
        return not why

    def _exclusion_after(
        self, events: Sequence[journal.Event], died: Sequence[Death]
    ) -> tuple[Exclusion | None, str]:
        """Return the nodes that the job's next start should avoid; None and the reason, if Slurm
        does not tell.
        """
        job, now_s = self._movable_job, time.time()
        if job is None or not (
            bad_nodes.count_own_exclusions(events, job.id)
            or bad_nodes.nodes_to_exclude(died, now_s)
        ):
            return None, ""
        try:
            return bad_nodes.plan_exclusion(job, events, died, now_s), ""
        except ClusterError as error:
            return None, str(error)

    def _journal_events(self) -> list[journal.Event]:
        with suppress(OSError):
            return journal.read(self.place.journal) if self._movable_job is not None else []
        return []

    def continue_job(self, signals: SignalInbox, what: str, places: Sequence[Path]) -> str | None:
        """Requeue the job if the scheduler's evidence explains the stop by `what`; return the
        message to print.
        """
        if self.job is None:
            return None
        script = job_leader.script_of(self.place.path)
        if self.chain and self.job.task is not None:
            if _has_next_task(self.job.task):
                # this task has done its part: 75 would be a failed job, with a mail about it
                self.exit_code = 0
                return f"job {self.job.id}: the next task of the array goes on"
            again = (
                f"type: {job_leader.resubmit_command(self.place.path)}"
                if script is not None
                else "submit it again"
            )
            return f"job {self.job.id}: it was the last task of the array; to go on, {again}"
        if not self.requeue:
            todo = (
                f". To go on, type: {job_leader.resubmit_command(self.place.path)}"
                if script
                else ""
            )
            return f"job {self.job.id} is not requeued: --no-requeue{todo}"
        signals.close()
        events = self._journal_events()
        carried = Requeue(
            self.job,
            StopNotice(what, signals.told_unix_s or time.time()),
            self.place.record,
            self.place.count_events("requeued"),
            places,
            self.limit,
            script,
            self._exclusion_after(events, bad_nodes.deaths_in_journal(events))[0],
        ).continue_job()
        if carried.how == "by its rule":
            self.exit_code = other.exit_code(self.job, what)
        return carried.line


def _has_next_task(task: str) -> bool:
    """Whether another task follows in the chain.
    Source: sbatch(1), OUTPUT ENVIRONMENT VARIABLES.
    """
    return task != os.environ.get("SLURM_ARRAY_TASK_MAX")
