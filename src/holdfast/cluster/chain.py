"""Chain: an array whose tasks run one after the other, each going on where the last one stopped."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

from .. import disk
from ..errors import ClusterError
from ..job import Job
from . import slurm


def is_over(directory: Path, job: Job | None) -> bool:
    """Whether an earlier task of this very array has finished the work."""
    return job is not None and job.array is not None and _mark(directory, job.array).exists()


def end(directory: Path, job: Job | None) -> str | None:
    """The work is done: tasks that start nevertheless will see it, and those that wait are cancelled.

    What of that could not be done; the work is done all the same.
    """
    if job is None or job.array is None:
        return None
    failed = []
    mark = _mark(directory, job.array)
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
    return f"tasks of this array that are left may start in vain: {'; '.join(failed)}" if failed else None


def _mark(directory: Path, array: str) -> Path:
    return directory / f"done-{array}"
