"""Chain: an array whose tasks run one after the other; each resumes where the last one stopped."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from .. import disk, owner, scan
from ..errors import ClusterError
from ..job import Job
from ..terminal import say
from . import slurm

LOOK_S = 2.0  # between two queries to Slurm
OVER = "its task is over, as Slurm says"
SPARE_S = 60.0  # for the cleanup of a node after SIGKILL
KILL_WAIT_S = 30.0  # Slurm's default, used if Slurm does not report it
# States of a job that is not over, even if its processes have ended. Source: squeue(1), JOB STATE
# CODES.
_LIVE = (
    "COMPLETING",
    "CONFIGURING",
    "RESIZING",
    "RUNNING",
    "SIGNALING",
    "STAGE_OUT",
    "STOPPED",
    "SUSPENDED",
)


def is_over(directory: Path, job: Job | None) -> bool:
    """Whether an earlier task of this same array has finished the work."""
    return (
        job is not None and job.array is not None and scan.exists(_done_mark(directory, job.array))
    )


def end_chain(directory: Path, job: Job | None) -> str | None:
    """Mark the work as done and cancel the tasks that wait; a task that starts anyway sees the
    mark.

    Return the error if one of these steps failed, else None. The work is done in any case.
    """
    if job is None or job.array is None:
        return None
    failed = []
    mark = _done_mark(directory, job.array)
    try:
        with suppress(FileExistsError):
            disk.write(mark, [])
        disk.sync_dir(directory)
    except OSError as error:
        failed.append(f"{mark}: {error.strerror}")
    try:
        slurm.cancel(["--state=PENDING", job.array])
    except ClusterError as error:
        failed.append(str(error))
    return (
        f"tasks of this array that are left may start in vain: {'; '.join(failed)}"
        if failed
        else None
    )


class EarlierOwner(NamedTuple):
    """An earlier owner of a directory, whose journal is not closed and who may still run."""

    owner: Mapping[str, Any]
    close: Callable[[], Any]  # close its journal


def wait_for_earlier_tasks(
    place: Path, earlier: Callable[[], Sequence[EarlierOwner]], here: Job | None
) -> None:
    """Wait while other tasks of this array end in `place`, as long as Slurm lets them.

    Slurm starts the next task in the second in which it tells one to end. `earlier` returns owners
    that have not closed their journal and may be alive. If Slurm reports that an owner's task is
    over, this function closes its journal.
    """
    for each in earlier() if here is not None else ():
        if job_is_over(each.owner, here):
            each.close()
    until_s = 0.0
    while here is not None and (
        tasks := [each for each in earlier() if task_of(each.owner, here) is not None]
    ):
        over = [each for each in tasks if has_ended(each.owner, here)]
        for each in over:
            each.close()
        if over:
            continue
        if not until_s:
            limit_s = patience_s()
            until_s = time.monotonic() + limit_s
            who = (
                f"task {task_of(tasks[0].owner, here)} of this array "
                f"is still ending ({owner.describe(tasks[0].owner)})"
            )
            say(f"{place}: {who}; waits up to {limit_s:.0f} s for it")
        elif time.monotonic() > until_s:
            return
        time.sleep(LOOK_S)


def task_of(facts: Mapping[str, Any], job: Job | None) -> str | None:
    """Return the number of the owner's task if it is another task of this same array."""
    of = facts.get("job")
    if job is None or job.scheduler != "slurm" or job.array is None or not isinstance(of, Mapping):
        return None
    task = str(of.get("array_task"))
    return task if of.get("id") == job.array and task != job.task else None


def has_ended(facts: Mapping[str, Any], job: Job) -> bool:
    """Whether Slurm reports that the owner's start of its task is over. False if Slurm does not
    answer.

    Slurm starts the next task while the previous one is still COMPLETING: told to end, and perhaps
    saving.
    """
    task = task_of(facts, job)
    try:
        seen = (
            slurm.job_status(job._replace(id=f"{job.array}_{task}")) if task is not None else None
        )
    except ClusterError:
        return False
    if task is None or seen is None:  # Slurm forgets a job some time after its end
        return task is not None
    again = seen.restarts > int(facts["job"].get("restart_count") or 0)
    return seen.state not in _LIVE or (again and seen.state != "COMPLETING")


def job_is_over(facts: Mapping[str, Any], here: Job | None) -> bool:
    """Whether Slurm reports that the owner's job, another one than ours, has ended and will not
    start again.

    Slurm forgets a job some time after its end; a job that it does not know counts if it was one of
    this cluster's.
    """
    of = facts.get("job")
    if here is None or here.scheduler != "slurm" or not isinstance(of, Mapping) or not of.get("id"):
        return False
    task, cluster = of.get("array_task"), of.get("cluster")
    number = f"{of['id']}_{task}" if task else str(of["id"])
    if number == here.id or (task and str(of["id"]) == here.array):
        return False
    try:
        seen = slurm.job_status(here._replace(id=number))
    except ClusterError:
        return False
    if seen is None:
        return cluster is not None and cluster == os.environ.get("SLURM_CLUSTER_NAME")
    return seen.state not in (*_LIVE, "PENDING", "REQUEUED", "REQUEUE_HOLD", "REQUEUE_FED")


def patience_s() -> float:
    """Return the seconds after which no process of a task told to end can be left on a working
    node.
    """
    try:
        return slurm.kill_wait_s() + SPARE_S
    except ClusterError:
        return KILL_WAIT_S + SPARE_S


def _done_mark(directory: Path, array: str) -> Path:
    return directory / f"done-{array}"
