"""`holdfast status`: what became of runs, submissions and sweeps, and what to type next."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import click

from ..cluster.job_leader import script_of
from ..inspect.starts import ProgramStart, describe_seconds_spent
from ..legible import counted, duration
from ..supervise import status
from ..supervise.status import Status
from ..terminal import warn
from . import options
from .formatting import echo, echo_json, format_section, print_table

COLUMNS = ("RUN", "STATE", "STEP", "STEPS/S", "SAVED", "JOB", "ENDS IN", "STARTS", "NEXT")


@click.command()
@options.runs_here
@options.as_json
def command(path: str, as_json: bool) -> None:
    """Tell what became of RUN: a run, a submission, a sweep, or a folder of them. Default: this
    folder.

    State, step and pace, the job in the queue, each start with its cause, the work done again, and
    what to type next.
    """
    queued, silent = status.read_queue()
    found = [status.run_status(place, queued) for place in status.find_runs(Path(path))]
    if silent and any(map(_has_job, found)):
        warn(f"{silent}; what waits in the queue is not known")
    if as_json:
        runs = [
            {
                **each._asdict(),
                "starts": [start._asdict() | {"spent": dict(start.spent)} for start in each.starts],
            }
            for each in found
        ]
        echo_json({"runs": runs})
    elif len(found) == 1:
        _print_run(found[0])
    else:
        _print_table(found)


def _has_job(each: Status) -> bool:
    return each.job is not None or (
        each.directory is not None and script_of(Path(each.directory)) is not None
    )


def _print_table(found: Sequence[Status]) -> None:
    print_table(COLUMNS, [_row(each) for each in found], right=("STEP", "STEPS/S"))
    counts = Counter(each.state for each in found)
    redone = sum(start.lost_s for each in found for start in each.starts)
    done_again = f"; {duration(redone)} of work done again" if redone >= 1 else ""
    states = ", ".join(f"{count} {state}" for state, count in counts.most_common())
    echo(f"{counted(len(found), 'run')}: {states}{done_again}")


def _row(each: Status) -> list[object]:
    return [
        each.name,
        f"{each.state} ({each.why})" if each.why else each.state,
        "" if each.step is None else f"{each.step:,}",
        "" if each.steps_per_s is None else f"{each.steps_per_s:.3g}",
        _format_time_since(each.saved),
        each.job or "",
        "" if each.deadline is None else _format_time_left(each.deadline),
        each.summary.replace(" starts", "").replace(" start", ""),
        each.next,
    ]


def _print_run(each: Status) -> None:
    pace = f" at {each.steps_per_s:.3g} steps/s" if each.steps_per_s is not None else ""
    step = f", step {each.step:,}{pace}" if each.step is not None else ""
    echo(f"{each.name}: {each.state}{step}{f': {each.why}' if each.why else ''}")
    saved = (
        f"step {each.saved_step:,}, {_format_time_since(each.saved)} ago"
        if each.saved_step is not None
        else ""
    )
    ends = f", ends in {_format_time_left(each.deadline)}" if each.deadline is not None else ""
    facts = {
        "heard": f"{_format_time_since(each.heard)} ago" if each.heard is not None else "",
        "saved": saved,
        "NaN": each.not_finite,
        "run": each.run or "",
        "job": f"{each.job} on {each.nodes}{ends}"
        if each.job and each.nodes
        else f"{each.job or ''}{ends}",
        "not on": ", ".join(
            f"{node} for {_format_time_left(end_s)}" for node, end_s in each.excluded.items()
        ),
        "output": each.output or "",
        "copies": each.at_risk,
        "next": each.next,
    }
    for name, text in facts.items():
        if text:
            echo(f"{name:<7}{text}")
    for line in format_section(
        each.summary,
        (f"{number}: {_start_line(start)}" for number, start in enumerate(each.starts, 1)),
    ):
        echo(line)


def _start_line(start: ProgramStart) -> str:
    job = (
        f"job {start.job}" + (f", restart {start.restart}" if start.restart else "")
        if start.job
        else "no job"
    )
    steps = f"steps {start.first or 0:,} to {start.last:,}, " if start.last is not None else ""
    lost = f"; {duration(start.lost_s)} of it done again" if start.lost_s >= 1 else ""
    why = f": {start.why}" if start.why else ""
    took = describe_seconds_spent(start.spent)
    lost += f"; {took}" if took else ""
    return (
        f"{job} on {start.host}: {steps}{duration(start.seen_s - start.began_s)}: "
        f"{start.cause or 'at work'}{why}{lost}"
    )


def _format_time_left(end_s: float) -> str:
    return duration(max(0.0, end_s - time.time()))  # Slurm reports an end some seconds late


def _format_time_since(then_s: float | None) -> str:
    return "" if then_s is None else duration(round(max(0.0, time.time() - then_s)))
