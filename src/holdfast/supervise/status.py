"""Status: what became of a run, a submission or a sweep, and what to type next."""

from __future__ import annotations

import shlex
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from .. import journal, owner, scan
from ..cluster import bad_nodes, job_leader, slurm
from ..cluster.ask import Absent
from ..cluster.hold import HOLD
from ..cluster.slurm import Queued
from ..errors import ClusterError, Damaged, NotFinite, NotFound, StoreError, UsageError
from ..inspect import mirrors, starts
from ..inspect.starts import ProgramStart
from ..journal import CLOSING, Event, Log
from ..provenance import REDACTED
from ..store import unsound
from ..store.attempt import read_run
from ..store.checkpoint_index import CheckpointIndex
from ..store.locate import locate
from . import submission
from .place import JOURNAL, supervisors_maybe_alive
from .submission import SubmittedJobs

PACE_S = 600.0  # the pace is that of the last ten minutes of work
AS_BEFORE = "start it again as you did"
ON_HOLD = "on hold: not started again"
_ENDED = {"end": "done", "failed": "failed", "stop": "stopped"}


class RunDirectories(NamedTuple):
    """Where a run and its supervisor keep their journals."""

    name: str
    directory: Path | None  # the supervisor's
    run: Path | None
    submitted: SubmittedJobs = SubmittedJobs()
    task: int | None = None  # of a sweep


class Status(NamedTuple):
    """One run. Times are Unix seconds."""

    name: str
    directory: str | None
    run: str | None
    state: str  # "running", "queued", "done", "failed", "stopped", "held", "killed", "not started"
    why: str  # why it waits, failed or stopped
    job: str | None  # the last one, or the one in the queue
    nodes: str
    deadline: float | None  # when the job's time limit ends it
    step: int | None
    steps_per_s: float | None
    # of a running run: its last sign of life; long ago if it died where nobody could see it
    heard: float | None
    saved_step: int | None
    saved: float | None  # when that was
    starts: list[ProgramStart]
    summary: str
    output: str | None
    next: str  # what to type
    at_risk: str  # what the loss of the run's disk would cost now; empty: it has no mirrors
    excluded: Mapping[str, float]  # nodes that the job is kept from, and until when
    # a sentence about the newest checkpoint; empty: its weights are finite, or not known
    not_finite: str


def find_runs(path: Path) -> list[RunDirectories]:
    """Return the runs at `path`: one, those of a sweep, or those in a folder of runs, without
    duplicates.

    Raises:
        NotFound: there is none.
    """
    found = list(_find_runs_at(path, path.name or path.absolute().name, deep=2))
    if not found:
        raise NotFound(f"{path}: no run is there, and no folder of runs")
    supervised = {
        place.run.absolute()
        for place in found
        if place.directory is not None and place.run is not None
    }
    return [
        place
        for place in found
        if place.directory or place.run is None or place.run.absolute() not in supervised
    ]


def read_queue() -> tuple[list[Queued] | None, str]:
    """Return this user's jobs in Slurm's queue;
    None if they are not known, and why if Slurm does not answer.
    """
    try:
        return slurm.read_queue(), ""
    except Absent:
        return None, ""
    except ClusterError as error:
        return None, str(error)


def run_status(
    place: RunDirectories, queued: Sequence[Queued] | None, read: Sequence[Log] | None = None
) -> Status:
    """Return what the journals and the queue say of one run.

    `queued` is None if the queue is not known. `read`: the run's journals, if they were read.
    """
    events = read_events(place)
    if read is None:
        read = journal.logs(place.run) if place.run is not None else []
    logs = _attempts_that_began(read)
    found = starts.starts_of_run(logs, events) if logs else starts.starts_of_command(events)
    here = _queued_job(place, queued or [], found)
    # they are not in the queue any more
    over = place.submitted.jobs if queued is not None and here is None else ()
    state, why = _state_and_reason(place, events, logs, here, over)
    if found and not found[-1].cause and state != "running":
        found[-1] = found[-1]._replace(cause=starts.KILLED)  # the reason of its end is not recorded
    if why.startswith("SIG") and found:  # a signal does not tell who has sent it
        why = found[-1].cause.removeprefix("stopped by ")
    saved = next((event for log in reversed(logs) for event in log.newest("saved")), {})
    step = max((each.last for each in found[-1:] if each.last is not None), default=None)
    output = _output_path(place, here, found)
    return Status(
        place.name,
        str(place.directory) if place.directory is not None else None,
        str(place.run) if place.run is not None else None,
        state,
        why,
        _queued_id(here) if here else found[-1].job if found else None,
        here.nodes if here else found[-1].host if found else "",
        here.end_s if here and here.state == "RUNNING" else None,
        step,
        _steps_per_second(logs[-1]) if logs and state == "running" else None,
        logs[-1].last.get("time") if logs and state == "running" else None,
        saved.get("step"),
        saved.get("time"),
        found,
        starts.summarize(found) if found else "",
        output,
        _next_command(place, state, events, output, logs),
        mirrors.at_risk(mirrors.mirrors_of_run(logs), saved.get("checkpoint")),
        bad_nodes.exclusions_in_force(events, time.time()),
        unsound.describe_newest(CheckpointIndex(place.run)) if place.run is not None else "",
    )


def read_events(place: RunDirectories) -> list[Event]:
    """Return the events of the run's supervisor; none if there is none."""
    with suppress(OSError):
        return journal.read(place.directory / JOURNAL) if place.directory is not None else []
    return []


def _find_runs_at(path: Path, name: str, deep: int) -> Iterator[RunDirectories]:
    ours, tasks = submission.is_submission(path), None
    with suppress(UsageError):  # changed by hand, beyond what we read
        tasks = submission.tasks_of(submission.script_of(path)) if ours else None
    sweep = job_leader.sweep_of(path)
    if tasks is not None:
        submitted = submission.submitted_jobs(path)
        for number in tasks.numbers:
            directory = path / f"{job_leader.TASK_DIRECTORY}{number}"
            yield RunDirectories(
                f"{name}/{directory.name}",
                directory,
                job_leader.reported_run_path(directory),
                submitted,
                number,
            )
    elif sweep is not None:
        task = int(path.absolute().name.removeprefix(job_leader.TASK_DIRECTORY))
        yield RunDirectories(
            name, path, job_leader.reported_run_path(path), submission.submitted_jobs(sweep), task
        )
    elif ours or scan.is_file(path / JOURNAL):
        yield RunDirectories(
            name,
            path,
            job_leader.reported_run_path(path) or _run_path(path),
            submission.submitted_jobs(path),
        )
    elif (run := _run_path(path)) is not None:
        yield RunDirectories(name, None, run)
    elif deep and scan.is_dir(path):
        for child in sorted(path.iterdir(), key=_natural_order):
            if child.name.startswith(".") and child.name != ".holdfast":
                continue
            with suppress(OSError, StoreError):  # it is another user's, or is being removed
                if scan.is_dir(child):
                    yield from _find_runs_at(
                        child, child.name if child.name != ".holdfast" else "", deep - 1
                    )


def _natural_order(path: Path) -> tuple[str, int, str]:
    """train-2 stands before train-10."""
    stem, _, number = path.name.rpartition("-")
    return (stem, int(number), "") if number.isdecimal() else (path.name, 0, path.name)


def _run_path(path: Path) -> Path | None:
    with suppress(NotFound, OSError):
        place = locate(path)
        return place.root if not place.single and place.root == path else None
    return None


def _queued_job(
    place: RunDirectories, queued: Sequence[Queued], found: Sequence[ProgramStart]
) -> Queued | None:
    """Return its job in the queue; of a chain's tasks the one at work before those that wait."""
    # a job that asked for its own requeue; while it runs, the run's journal knows more
    if place.directory is None:
        last = found[-1].job if found and found[-1].cause != starts.DONE else None
        return next(
            (each for each in queued if each.state == "PENDING" and _queued_id(each) == last), None
        )
    task = None if place.task is None else str(place.task)
    jobs = [each for each in queued if task in (None, each.task) and place.submitted.includes(each)]
    return min(jobs, key=lambda each: each.state == "PENDING", default=None)


def _queued_id(queued: Queued) -> str:
    return f"{queued.job}_{queued.task}" if queued.task else queued.job


def _directory_on_hold(place: RunDirectories) -> Path | None:
    sweep = job_leader.sweep_of(place.directory) if place.directory is not None else None
    return next(
        (each for each in (place.directory, sweep, place.run) if each and scan.exists(each / HOLD)),
        None,
    )


def _state_and_reason(
    place: RunDirectories,
    events: Sequence[Event],
    logs: Sequence[Log],
    queued: Queued | None,
    over: Sequence[str],
) -> tuple[str, str]:
    held = _directory_on_hold(place) is not None
    if queued is not None:
        waits = queued.state == "PENDING"
        whys = [queued.reason if waits else "", ON_HOLD if held else ""]
        return ("queued" if waits else "running"), ", ".join(filter(None, whys))
    last = next(
        (event for event in reversed(events) if event["event"] in {"begin", *CLOSING}), None
    )
    if last is None and logs:
        last = logs[-1].last if logs[-1].closed else {"event": "begin"}
    if last is None:
        return ("held" if held else "not started"), ""
    ended = _ENDED.get(str(last["event"]))
    if ended is None and _may_be_alive(place, logs, over):
        return "running", ON_HOLD if held else ""
    why = str(last.get("error") or last.get("reason") or "")
    if ended != "done" and held:
        return "held", "" if why == "held" else why
    return (ended or "killed"), why


def _may_be_alive(place: RunDirectories, logs: Sequence[Log], over: Sequence[str]) -> bool:
    """Whether a process of this run may be alive, as far as this machine and Slurm can tell."""
    begun = (
        supervisors_maybe_alive(place.directory / JOURNAL) if place.directory is not None else []
    )
    if any(
        str(_as_mapping(_as_mapping(begin.get("owner")).get("job")).get("id")) not in over
        for begin in begun
    ):
        return True
    last = logs[-1] if logs and place.directory is None else None
    return last is not None and not last.closed and not owner.proven_gone(last.owner, time.time)


def _attempts_that_began(logs: Sequence[Log]) -> Sequence[Log]:
    """Return the attempts without those of a refused start, which has done no work."""
    return [
        log for log in logs if log.last.get("event") != "end" or log.restored is not None
    ] or logs


def _steps_per_second(log: Log) -> float | None:
    """Return the steps in a second, of the last minutes of an attempt's work."""
    seen: list[tuple[float, int]] = []
    for event in reversed(log.events):
        if event["event"] in {"metrics", "at", "restored"} and isinstance(event.get("step"), int):
            seen.append((float(event["time"]), event["step"]))
            if seen[0][0] - seen[-1][0] > PACE_S:
                break
    took_s = seen[0][0] - seen[-1][0] if seen else 0.0
    return (seen[0][1] - seen[-1][1]) / took_s if took_s > 1 else None


def _output_path(
    place: RunDirectories, queued: Queued | None, found: Sequence[ProgramStart]
) -> str | None:
    """Return the file with the job's output, as the script names it."""
    script = job_leader.script_of(place.directory) if place.directory is not None else None
    if script is None or place.directory is None:
        return None
    job = queued.job if queued else next((each.job for each in reversed(found) if each.job), None)
    unheard = job is None  # it may have ended in its set-up, which only the output tells
    job = job or next(reversed(place.submitted.jobs), None)
    if job is None:
        return None
    path = submission.output_path(submission.script_of(script.parent), job, str(place.task))
    return path if not unheard or scan.exists(Path(path)) else None


def _next_command(
    place: RunDirectories,
    state: str,
    events: Sequence[Event],
    output: str | None,
    logs: Sequence[Log],
) -> str:
    if state in {"running", "queued"}:
        return f"tail -F {shlex.quote(output)}" if output and state == "running" else ""
    if state == "done":
        return f"holdfast show {shlex.quote(str(place.run))}" if place.run is not None else ""
    if state == "not started" and output is not None:
        return f"tail {shlex.quote(output)}"
    again = _continue_command(place, events)
    if (
        place.run is not None
        and logs
        and str(logs[-1].last.get("error")).startswith(f"{NotFinite.__name__}:")
    ):
        again = _command_from_finite(place.run, again)
    if place.run is not None and _needs_doctor(place.run, logs):
        again = f"holdfast doctor {shlex.quote(str(place.run))} says what to do first"
    held = _directory_on_hold(place)
    return f"holdfast release {shlex.quote(str(held))} && {again}" if held is not None else again


def _needs_doctor(run: Path, logs: Sequence[Log]) -> bool:
    """Whether a start of the run is refused as it lies there: run.json is damaged, or no
    checkpoint is valid.
    """
    try:
        read_run(run)
    except Damaged:
        return True
    except (OSError, StoreError):
        return False
    error = str(logs[-1].last.get("error")) if logs else ""
    return error.startswith((f"{StoreError.__name__}:", f"{Damaged.__name__}:"))


def _command_from_finite(run: Path, again: str) -> str:
    """Return how to continue a run with stop_on_nan, whose start is refused as it is."""
    with suppress(OSError, StoreError):
        finite = unsound.newest_finite(CheckpointIndex(run))
        if finite is None:
            return (
                "mend the cause, and begin another run: no checkpoint with finite weights is here"
            )
        again = "start it again" if again == AS_BEFORE else again
        return f"mend the cause, write {unsound.go_back_code(finite)}, then: {again}"
    return again


def _continue_command(place: RunDirectories, events: Sequence[Event]) -> str:
    """Return the command that goes on with it."""
    if place.directory is None:
        return AS_BEFORE
    if job_leader.script_of(place.directory) is not None:
        return job_leader.resubmit_command(place.directory)
    begin = next((event for event in reversed(events) if event["event"] == "begin"), {})
    # an older supervisor kept no options
    words, options = begin.get("command"), begin.get("options", [])
    if not isinstance(words, list) or not isinstance(options, list):
        return AS_BEFORE
    if any(REDACTED in str(word) for word in [*options, *words]):
        return AS_BEFORE
    line = ["holdfast", "run", "--run", str(place.directory), *options, "--", *words]
    return shlex.join(map(str, line))


def _as_mapping(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}
