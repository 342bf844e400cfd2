"""Job leader: which process acts for a job (asks the scheduler, requeues).

A supervisor announces itself to the processes that it starts, in two ways. Most children read it
from the environment. A file in the submit directory is for children with an environment of their
own (`srun --export=NONE`, a container).
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any
from urllib.parse import quote, unquote_to_bytes

import msgspec

from .. import disk, legible, owner, scan
from ..job import Job, job

SUPERVISOR = "HOLDFAST_SUPERVISOR"
OF_JOB = "HOLDFAST_SUPERVISOR_JOB"  # its job and start: a job submitted from inside inherits both
RUN_HERE = "run-here.json"  # in the supervisor's directory: the path of the run that it supervises
# in the supervisor's directory: why the run refused to begin, also the next time
REFUSED = "refused.json"
SCRIPT = "job.sh"  # in a submission's directory
# and the task's number: where a sweep's task keeps its journal, in the sweep's directory
TASK_DIRECTORY = "task-"

# Only rank 0 of a job acts for it; launchers inside a job number their own processes.
_RANKS = ("RANK", "OMPI_COMM_WORLD_RANK", "PMI_RANK", "PMIX_RANK")


class _LeaderFile(msgspec.Struct, frozen=True):
    directory: str  # quoted as in a URL, because its name may contain bytes that are no text
    restart_count: int
    owner: dict[str, Any]


_ANNOUNCED = msgspec.json.Decoder(_LeaderFile)  # made here for the reason that `format` has


@contextmanager
def announcing_supervisor(directory: Path) -> Iterator[dict[str, str]]:
    """Within this block, child processes can find this supervisor and its directory.

    Yields the variables for the child's environment. No file is written if the submit directory is
    read-only, or if another process acts for the job.
    """
    directory = directory.absolute()
    here = job()
    place = (
        _announcement_path()
        if here is not None and is_job_leader(here) and supervisor_directory() is None
        else None
    )
    if place is not None and here is not None:
        facts = _LeaderFile(_quoted(directory), here.restart_count, owner.describe_this_process())
        with suppress(OSError):
            disk.make_dirs(place.parent)
            disk.replace_with(place, [legible.json_bytes(facts) + b"\n"])
    try:
        yield {SUPERVISOR: str(directory), OF_JOB: _job_start(here)}
    finally:
        if place is not None:
            with suppress(OSError):
                disk.remove_file(place)
                disk.remove_dir(place.parent)  # removes it only if it is empty


def supervisor_directory(environment: Mapping[str, str] = os.environ) -> Path | None:
    """Return the directory of the supervisor that acts for this process.

    None if there is none, or if it belongs to another job.
    """
    here, place = job(environment), _announcement_path(environment)
    if environment.get(SUPERVISOR) and (
        here is None or environment.get(OF_JOB, "") == _job_start(here)
    ):
        return Path(environment[SUPERVISOR])
    if here is None or place is None:
        return None
    try:
        facts, written_s = _ANNOUNCED.decode(place.read_bytes()), place.stat().st_mtime
    except (OSError, *legible.UNREADABLE):
        return None
    if facts.restart_count != here.restart_count or owner.proven_gone(
        facts.owner, lambda: written_s
    ):
        return None
    return _path(facts.directory)


def is_job_leader(here: Job, environment: Mapping[str, str] = os.environ) -> bool:
    """Whether this process is rank 0 of the job and may query the scheduler."""
    ranks = [environment[name] for name in _RANKS if environment.get(name)]
    return here.process == 0 and all(rank == "0" for rank in ranks)


def report_run_path(directory: Path, run: Path) -> None:
    """Write the run's path into the supervisor's directory.
    A missing or read-only directory is no error.
    """
    with suppress(OSError):
        disk.replace_with(
            directory / RUN_HERE, [legible.json_bytes({"run": _quoted(run.absolute())}) + b"\n"]
        )


def report_refusal(why: str) -> None:
    """Tell this process's supervisor, if it has one, that another start would be refused for
    the same reason.
    """
    directory = supervisor_directory()
    if directory is not None:
        with suppress(OSError):
            disk.replace_with(directory / REFUSED, [legible.json_bytes({"why": why}) + b"\n"])


def take_refusal(directory: Path) -> str:
    """Return, once, why the command's run refused to begin; "" if it did not."""
    try:
        why = msgspec.json.decode((directory / REFUSED).read_bytes(), type=dict[str, str]).get(
            "why", ""
        )
        disk.remove_file(directory / REFUSED)
    except (OSError, *legible.UNREADABLE):
        return ""
    return why


def script_of(directory: Path) -> Path | None:
    """Return the script that `holdfast submit` wrote for a supervisor's directory,
    or for its sweep.
    """
    places = (directory, sweep_of(directory))
    return next(
        (place / SCRIPT for place in places if place is not None and scan.is_file(place / SCRIPT)),
        None,
    )


def sweep_of(directory: Path) -> Path | None:
    """Return the sweep's directory if `directory` belongs to one of its tasks, else None: a script
    beside any other directory may be the user's.
    """
    name = directory.absolute().name
    # the name of "." is empty
    parent = directory.parent if name == directory.name else directory.absolute().parent
    task = name.startswith(TASK_DIRECTORY) and name.removeprefix(TASK_DIRECTORY).isdecimal()
    return parent if task and scan.is_file(parent / SCRIPT) else None


def resubmit_command(directory: Path) -> str:
    """Return the command that submits a submission's directory once more."""
    import shlex

    return f"holdfast submit --continue {shlex.quote(str(sweep_of(directory) or directory))}"


def submission_directory() -> Path | None:
    """Return the supervisor's directory if `holdfast submit` made it for this job; None else."""
    directory = supervisor_directory()
    return directory if directory is not None and script_of(directory) is not None else None


def reported_run_path(directory: Path) -> Path | None:
    """Return the run's path as reported to this supervisor; None before that."""
    try:
        return _path(
            msgspec.json.decode((directory / RUN_HERE).read_bytes(), type=dict[str, str])["run"]
        )
    except (OSError, KeyError, *legible.UNREADABLE):
        return None


def _quoted(path: Path) -> str:
    return quote(os.fsencode(path))


def _path(quoted: str) -> Path:
    return Path(os.fsdecode(unquote_to_bytes(quoted)))


def _job_start(here: Job | None) -> str:
    return f"{here.id}:{here.restart_count}" if here is not None else ""


def _announcement_path(environment: Mapping[str, str] = os.environ) -> Path | None:
    """Return the path of this job's announcement file."""
    here, submitted = job(environment), environment.get("SLURM_SUBMIT_DIR")
    return Path(submitted) / ".holdfast" / f"job-{here.id}.json" if here and submitted else None
