"""Cause: why a job was told to stop, on the scheduler's own evidence. Pure."""

from __future__ import annotations

from typing import Literal, NamedTuple

from .slurm import JobStatus

Cause = Literal["cancelled", "requeued", "preempted", "time limit", "unclear"]

LEAD_S = 600.0  # of a notice, when nobody knows
LATE_S = 90.0  # a notice may come this much before its lead: limits are looked at twice a minute
TOGETHER_S = 1.0  # Slurm writes down a preemption and the end of what is preempted in the same second
SPOT = "spot notice"  # of the cloud that a node belongs to
NOTICES = ("SIGUSR1", "SIGUSR2", "deadline")

# squeue(1), JOB STATE CODES: those in which Slurm has not begun to end the job
_GOES_ON = ("RUNNING", "SUSPENDED", "STOPPED", "CONFIGURING", "SIGNALING", "RESIZING", "STAGE_OUT")
_SAYS_ALL: dict[str, Cause] = {"TIMEOUT": "time limit", "PREEMPTED": "preempted", "CANCELLED": "cancelled"}


class Heard(NamedTuple):
    """What told this process to stop."""

    what: str  # "SIGTERM", "SIGUSR1", ..., or "deadline"
    at_s: float  # Unix seconds
    lead_s: float | None = None  # how long before the end such a notice comes, when that is known


def cause(heard: Heard, restart_count: int, seen: JobStatus | None) -> Cause:
    """Why, from what we heard, which start of the job we are, and what Slurm says of the job now.

    A stop by hand looks like nothing at all: without positive evidence of something else it is a cancellation while the
    job ends, and unclear while it goes on.
    """
    if seen is None:
        return "unclear"
    if seen.restarts > restart_count:
        return "requeued"
    if heard.what == "SIGINT":
        return "cancelled"
    if seen.restarts < restart_count:
        return "unclear"
    return _of_a_running_job(heard, seen) if seen.state in _GOES_ON else _of_an_ending_job(seen)


def _of_an_ending_job(seen: JobStatus) -> Cause:
    if seen.state in _SAYS_ALL:
        return _SAYS_ALL[seen.state]
    if seen.state != "COMPLETING":
        return "unclear"
    if seen.reason == "TimeLimit":
        return "time limit"
    if _preempted(seen):
        # within the grace a user may still cancel: then the end came after the preemption, and not with it
        together = seen.end_s is not None and abs(seen.end_s - (seen.preempt_s or 0)) <= TOGETHER_S
        return "preempted" if together else "unclear"
    return "cancelled" if seen.reason == "None" else "unclear"


def _of_a_running_job(heard: Heard, seen: JobStatus) -> Cause:
    """A notice; or a signal that somebody sent by hand."""
    if _preempted(seen) or heard.what == SPOT:
        return "preempted"
    lead_s = heard.lead_s
    if lead_s is None:
        lead_s = LEAD_S if heard.what in NOTICES else -LATE_S  # SIGTERM is no notice, unless the script made it one
    near = seen.end_s is not None and seen.end_s - heard.at_s <= lead_s + LATE_S
    return "time limit" if near and lead_s >= 0 else "unclear"


def _preempted(seen: JobStatus) -> bool:
    """In this start of the job, and not in an earlier one."""
    return seen.preempt_s is not None and seen.preempt_s >= (seen.start_s or 0.0)
