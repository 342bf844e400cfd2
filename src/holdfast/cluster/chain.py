"""Chain: an array whose tasks run one after the other, each going on where the last one stopped."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

from .. import disk
from ..job import Job
from . import slurm


def is_over(directory: Path, job: Job | None) -> bool:
    """Whether an earlier task of this very array has finished the work."""
    return job is not None and job.array is not None and _mark(directory, job.array).exists()


def end(directory: Path, job: Job | None) -> None:
    """The work is done: tasks that start nevertheless will see it, and those that wait are cancelled.

    Raises:
        ClusterError: they could not be cancelled; they will end by themselves, as soon as they start.
    """
    if job is None or job.array is None:
        return
    with suppress(FileExistsError):
        disk.write(_mark(directory, job.array), [])
    disk.sync_dir(directory)
    slurm.cancel(["--state=PENDING", job.array])


def _mark(directory: Path, array: str) -> Path:
    return directory / f"done-{array}"
