"""Job leader: which process speaks for a job. A supervisor announces itself to what it starts, in two ways.

The environment tells most children. A file in the submit directory tells those that were started with an environment of
their own (`srun --export=NONE`, a container).
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any
from urllib.parse import quote, unquote_to_bytes

import msgspec

from .. import disk, legible, owner
from ..job import Job, job

SUPERVISOR = "HOLDFAST_SUPERVISOR"
OF_JOB = "HOLDFAST_SUPERVISOR_JOB"  # the start of the job in which it is: what is submitted from there inherits both
RUN_HERE = "run-here.json"  # in the supervisor's directory: where the run is that it looks after

# Of one job, only the process with number 0 speaks; launchers inside a job count by themselves.
_RANKS = ("RANK", "OMPI_COMM_WORLD_RANK", "PMI_RANK", "PMIX_RANK")


class _Announced(msgspec.Struct, frozen=True):
    directory: str  # quoted as in a URL, for its name may be no text
    restart_count: int
    owner: dict[str, Any]


@contextmanager
def announced(directory: Path) -> Iterator[dict[str, str]]:
    """While it holds, children know that a supervisor with this directory speaks for the job.

    It yields what belongs into the child's environment. No file is written where the submit directory cannot be
    written, or where another process speaks for the job.
    """
    directory = directory.absolute()
    here = job()
    place = _place() if here is not None and speaks(here) and supervisor() is None else None
    if place is not None and here is not None:
        facts = _Announced(_quoted(directory), here.restart_count, owner.me())
        with suppress(OSError):
            disk.make_dirs(place.parent)
            disk.replace_with(place, [legible.json_bytes(facts) + b"\n"])
    try:
        yield {SUPERVISOR: str(directory), OF_JOB: _start(here)}
    finally:
        if place is not None:
            with suppress(OSError):
                disk.remove_file(place)
                disk.remove_dir(place.parent)  # if nothing else is in it


def supervisor(environment: Mapping[str, str] = os.environ) -> Path | None:
    """The directory of the supervisor that speaks for this process; None when there is none, or it is another job's."""
    here, place = job(environment), _place(environment)
    if environment.get(SUPERVISOR) and (here is None or environment.get(OF_JOB, "") == _start(here)):
        return Path(environment[SUPERVISOR])
    if here is None or place is None:
        return None
    try:
        facts, written_s = msgspec.json.decode(place.read_bytes(), type=_Announced), place.stat().st_mtime
    except (OSError, msgspec.DecodeError):
        return None
    if facts.restart_count != here.restart_count or owner.proven_gone(facts.owner, written_s):
        return None
    return _path(facts.directory)


def speaks(here: Job, environment: Mapping[str, str] = os.environ) -> bool:
    """Whether this process is the job's number 0, and may ask the scheduler."""
    ranks = [environment[name] for name in _RANKS if environment.get(name)]
    return here.process == 0 and all(rank == "0" for rank in ranks)


def tell_run(directory: Path, run: Path) -> None:
    """Tell the supervisor where the run lives. A directory that is gone or read-only is no reason to fail."""
    with suppress(OSError):
        disk.replace_with(directory / RUN_HERE, [legible.json_bytes({"run": _quoted(run.absolute())}) + b"\n"])


def run_of(directory: Path) -> Path | None:
    """The run that was told to this supervisor; None before one was."""
    try:
        return _path(msgspec.json.decode((directory / RUN_HERE).read_bytes(), type=dict[str, str])["run"])
    except (OSError, msgspec.DecodeError, KeyError):
        return None


def _quoted(path: Path) -> str:
    return quote(os.fsencode(path))


def _path(quoted: str) -> Path:
    return Path(os.fsdecode(unquote_to_bytes(quoted)))


def _start(here: Job | None) -> str:
    return f"{here.id}:{here.restart_count}" if here is not None else ""


def _place(environment: Mapping[str, str] = os.environ) -> Path | None:
    """Where the announcement for this job is."""
    here, submitted = job(environment), environment.get("SLURM_SUBMIT_DIR")
    return Path(submitted) / ".holdfast" / f"job-{here.id}.json" if here and submitted else None
