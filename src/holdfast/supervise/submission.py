"""Submission: the directory of one submission,
a job or a sweep, and the tasks that are left to do.
"""

from __future__ import annotations

import os
import re
import shlex
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from .. import disk, journal, scan
from ..batch import sbatch
from ..cluster import slurm, sweep
from ..cluster.job_leader import SCRIPT, TASK_DIRECTORY
from ..cluster.script import WRITTEN
from ..cluster.slurm import Queued
from ..errors import NotFound, UsageError
from ..journal import CLOSING
from .place import JOURNAL

LINES = "commands.txt"  # the commands of a sweep, as they were at the submission


class SubmittedJobs(NamedTuple):
    """The jobs of one submission."""

    jobs: Sequence[str] = ()  # their ids
    script: str | None = None  # its full path, by which a job is known whose id sbatch did not tell

    def includes(self, job: Queued) -> bool:
        return job.job in self.jobs or job.script == self.script


class SweepProgress(NamedTuple):
    """The tasks of a sweep."""

    done: list[int]
    queued: list[int]  # they wait or run
    left: list[int]


def next_free_name(parent: Path, name: str) -> str:
    """Return the name with the next number that no submission in `parent` has."""
    taken = (re.fullmatch(rf"{re.escape(name)}-(\d+)", each) for each in scan.names(parent))
    return f"{name}-{1 + max((int(match[1]) for match in taken if match), default=0)}"


def create_directory(parent: Path, name: str) -> Path:
    """Create and return a directory that no other submission has,
    also if several are made at once.
    """
    disk.make_dirs(parent)
    while True:
        directory = parent / next_free_name(parent, name)
        with suppress(FileExistsError):
            disk.make_dir(directory)
            return directory


def claim_directory(directory: Path) -> None:
    """Create a directory that the user has named.

    Raises:
        UsageError: another submission or supervisor has it.
    """
    if scan.exists(directory / JOURNAL) and not scan.exists(directory / SCRIPT):
        raise UsageError(
            f"{directory} is where another `holdfast run` keeps its journal; give another --run"
        )
    disk.make_dirs(directory)
    try:
        disk.write(directory / SCRIPT, [])  # one of two that try it at once succeeds
    except FileExistsError:
        again = f"holdfast submit --continue {shlex.quote(str(directory))}"
        raise UsageError(
            f"{directory} belongs to another submission; to go on with that: {again}"
        ) from None


def remove_refused(directory: Path) -> None:
    """Remove the files of a refused submission. Other files in the directory are the user's."""
    for file in (SCRIPT, LINES):
        with suppress(FileNotFoundError):
            disk.remove_file(directory / file)
    with suppress(OSError):
        disk.remove_dir(directory)  # only if it is empty


def script_of(directory: Path) -> str:
    """Return the text of the submission's script.

    Raises:
        NotFound: there is none.
    """
    try:
        return (directory / SCRIPT).read_bytes().decode("utf-8", "surrogateescape")
    except OSError as error:
        raise NotFound(
            f"{directory}: no {SCRIPT} of `holdfast submit` is there ({error.strerror})"
        ) from error


def is_submission(directory: Path) -> bool:
    """Whether a submission has this directory; a job.sh may also be the user's own."""
    if not scan.is_file(directory / SCRIPT):
        return False
    return scan.is_file(directory / JOURNAL) or WRITTEN in script_of(directory)


def note_submission(directory: Path, job: str, command: Sequence[str]) -> None:
    """Write into the submission's journal that it was submitted.
    A full disk is no error: the job is in the queue.
    """
    with suppress(OSError):
        with suppress(FileExistsError):
            disk.write(directory / JOURNAL, [])
        event = {"event": "submission", "time": time.time(), "job": job, "command": [*command]}
        journal.append(directory / JOURNAL, [event], sync=True)


def submitted_jobs(directory: Path) -> SubmittedJobs:
    """Return the jobs that were submitted for this directory, successors included, and those in
    which its script ran.

    A job with a script of the user may do something else after this.
    """
    places, ours = (
        [directory, *scan.glob(directory, f"{TASK_DIRECTORY}*")],
        scan.is_file(directory / SCRIPT),
    )
    found = (
        _job_id(event)
        for place in places
        for event in _read_journals(place)
        if ours or event["event"] != "begin"
    )
    return SubmittedJobs(
        [*dict.fromkeys(filter(None, found))], script_path(directory) if ours else None
    )


def _job_id(event: journal.Event) -> str | None:
    """Return the id of the job in this line; for an array's task the array's id."""
    if event["event"] in {"submission", "submitted"}:
        return str(event.get("successor") or event.get("job"))
    ours = event.get("owner") if event["event"] == "begin" else None
    of = ours.get("job") if isinstance(ours, dict) else None
    return str(of["id"]) if isinstance(of, dict) and of.get("id") else None


def script_path(directory: Path) -> str:
    """Return the script's path as sbatch gets it:
    only a whole one tells in the queue whose job it is.
    """
    return os.path.realpath(directory / SCRIPT)


def output_path(text: str, job: str, task: str) -> str:
    """Return the path of the output of a script's job, as it is typed in this folder."""
    named = {option.name: option.value or "" for option in sbatch.parse_directives(text).options}
    path = os.path.join(named.get("chdir", ""), named.get("output", "slurm-%j.out"))
    path = path.replace("%a", task).replace("%x", named.get("job-name", ""))
    path = path.replace("%j", job).replace("%A", job.partition("_")[0])
    here = os.path.relpath(path)
    return path if here.startswith("..") else here


def require_unfinished(directory: Path) -> None:
    """Require that the submission is neither queued nor done.

    Raises:
        UsageError: a job of this submission is in the queue, or its work is done.
        ClusterError: Slurm does not answer.
    """
    there = next(filter(submitted_jobs(directory).includes, slurm.read_queue()), None)
    if there is not None:
        raise UsageError(
            f"{directory}: its job {there.job} is {there.state}, "
            "and goes on by itself; to begin it anew, "
            f"first scancel {there.job}"
        )
    if is_done(directory):
        again = f"sbatch {shlex.quote(str(directory / SCRIPT))}"
        raise UsageError(f"{directory}: it is done; to run the command again all the same: {again}")


def tasks_of(text: str) -> sweep.ArrayTasks | None:
    """Return the tasks of a sweep's script; None: it is no sweep."""
    array = sbatch.last_option(sbatch.parse_directives(text).options, "array")
    return (
        sweep.parse_tasks(array.value or "")
        if array is not None and sweep.VARIABLE in text
        else None
    )


def sweep_progress(directory: Path, tasks: sweep.ArrayTasks) -> SweepProgress:
    """Return which tasks of a sweep are done, which are in the queue, and which are neither.

    Raises:
        ClusterError: Slurm does not answer.
    """
    ours = submitted_jobs(directory)
    queued = {
        int(each.task)
        for each in slurm.read_queue()
        if ours.includes(each) and each.task is not None
    }
    done = {number for number in tasks.numbers if is_done(directory / f"{TASK_DIRECTORY}{number}")}
    waiting = [number for number in tasks.numbers if number in queued]
    left = [number for number in tasks.numbers if number not in done | queued]
    return SweepProgress(sorted(done), waiting, left)


def is_done(directory: Path) -> bool:
    """Whether the last supervisor in this directory has seen its command finish."""
    last = next(
        (
            each
            for each in reversed([*_read_journals(directory)])
            if each["event"] in {"begin", *CLOSING}
        ),
        {},
    )
    return last.get("event") == "end"


def _read_journals(directory: Path) -> Iterator[journal.Event]:
    with suppress(OSError):
        yield from journal.read(directory / JOURNAL)
