"""Cause: why a job was told to stop, according to the scheduler's evidence. Pure."""

from __future__ import annotations

from typing import Final, Literal, NamedTuple

from .slurm import JobStatus

Cause = Literal["cancelled", "requeued", "preempted", "time limit", "bad node", "unclear"]

LEAD_S = 600.0  # of a notice whose lead time is unknown
# a notice may come this much before its lead time: Slurm checks limits twice a minute
LATE_S = 90.0
TOGETHER_S = 1.0  # Slurm records a preemption and the end of the preempted job in the same second
SPOT = "spot notice"  # sent by the cloud to which a node belongs
BAD_NODE: Final = "bad node"  # not a notice: two starts have died on this node by its own fault
NOTICES = ("SIGUSR1", "SIGUSR2", "deadline")

# squeue(1), JOB STATE CODES: states in which Slurm has not begun to end the job
_GOES_ON = ("RUNNING", "SUSPENDED", "STOPPED", "CONFIGURING", "SIGNALING", "RESIZING", "STAGE_OUT")
_SAYS_ALL: dict[str, Cause] = {
    "TIMEOUT": "time limit",
    "PREEMPTED": "preempted",
    "CANCELLED": "cancelled",
}


class StopNotice(NamedTuple):
    """The signal or deadline that told this process to stop, and when."""

    what: str  # "SIGTERM", "SIGUSR1", ..., or "deadline"
    at_s: float  # Unix seconds
    lead_s: float | None = None  # how long before the end such a notice comes; None: unknown


def find_cause(heard: StopNotice, restart_count: int, seen: JobStatus | None) -> Cause:
    """Return why the job was told to stop.

    `heard` is what this process received, `restart_count` the number of this start, `seen` Slurm's
    present record. A manual stop leaves no evidence. Without evidence of another cause, the result
    is "cancelled" if the job is ending and "unclear" if it still runs.
    """
    if seen is None:
        return "unclear"
    if seen.restarts > restart_count:
        return "requeued"
    if heard.what == "SIGINT":
        return "cancelled"
    if seen.restarts < restart_count:
        return "unclear"
    return (
        _cause_in_running_job(heard, seen) if seen.state in _GOES_ON else _cause_of_ending_job(seen)
    )


def _cause_of_ending_job(seen: JobStatus) -> Cause:
    if seen.state in _SAYS_ALL:
        return _SAYS_ALL[seen.state]
    if seen.state != "COMPLETING":
        return "unclear"
    if seen.reason == "TimeLimit":
        return "time limit"
    if _was_preempted(seen):
        # within the grace time a user may still cancel; then the end is later than the preemption
        together = seen.end_s is not None and abs(seen.end_s - (seen.preempt_s or 0)) <= TOGETHER_S
        return "preempted" if together else "unclear"
    return "cancelled" if seen.reason == "None" else "unclear"


def _cause_in_running_job(heard: StopNotice, seen: JobStatus) -> Cause:
    """Return the cause if the job still runs:
    it received a notice, or a signal that was sent by hand.
    """
    if _was_preempted(seen) or heard.what == SPOT:
        return "preempted"
    if heard.what == BAD_NODE:
        return BAD_NODE
    lead_s = heard.lead_s
    if lead_s is None:
        # SIGTERM is a notice only if the script requested it
        lead_s = LEAD_S if heard.what in NOTICES else -LATE_S
    near = seen.end_s is not None and seen.end_s - heard.at_s <= lead_s + LATE_S
    return "time limit" if near and lead_s >= 0 else "unclear"


def _was_preempted(seen: JobStatus) -> bool:
    """Whether Slurm preempted this start of the job, not an earlier one."""
    return seen.preempt_s is not None and seen.preempt_s >= (seen.start_s or 0.0)
