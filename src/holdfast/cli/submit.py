"""`holdfast submit`: submits a command as a batch job that runs until it is done."""

from __future__ import annotations

import errno
import glob
import math
import os
import shlex
import shutil
import sys
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import click

from .. import disk, scan
from ..batch import sbatch
from ..batch.sbatch import Option
from ..batch.script import ScriptContext
from ..cluster import job_leader, script, slurm, sweep
from ..cluster.ask import Absent, SchedulerSilent
from ..cluster.hold import HOLD, format_not_started
from ..cluster.job_leader import SCRIPT, reported_run_path
from ..cluster.script import JobRequest
from ..errors import ClusterError, NoSpace, UsageError
from ..interval import notice_time_s
from ..lint import Finding, is_refused, lint_script
from ..provenance import redact
from ..supervise import submission
from ..terminal import say
from . import lint as told
from . import measured, options, preflight
from .formatting import escape_text, print_report
from .submit_words import SbatchPassThrough, SubmitArguments

# These are passed on to `holdfast run`.
SUPERVISOR = (
    "app",
    "retries",
    "max_no_progress",
    "max_requeues",
    "grace",
    "on_hang",
    "hang_after",
    "alive",
)


@click.command(cls=SbatchPassThrough, options_metavar="[SBATCH OPTIONS] [OPTIONS] -- COMMAND...")
@click.option(
    "--run",
    "directory",
    metavar="DIR",
    help="Where script, output and journal go. Default: .holdfast/NAME-N",
)
@click.option(
    "--continue",
    "again",
    metavar="DIR",
    help="Submit what was submitted there once more, without COMMAND; "
    "of a sweep only the tasks that are not done.",
)
@click.option(
    "--array",
    "-a",
    metavar="1-20%5",
    help="A sweep: a job for each number; {task} in COMMAND stands for it.",
)
@click.option(
    "--commands",
    metavar="FILE",
    help="A sweep over the commands of FILE, one on each line, "
    "instead of COMMAND; --array chooses some.",
)
@click.option(
    "--chain",
    type=click.IntRange(2),
    metavar="N",
    help="N jobs one after the other, for sites without requeue.",
)
@click.option(
    "--lead",
    type=click.IntRange(1),
    metavar="SECONDS",
    help="How long before its end the job gets notice. "
    f"Default: {script.LEAD_S}, a quarter of a --time under "
    f"{4 * script.LEAD_S // 60} minutes, or what a save of the last job of this name needed.",
)
@click.option(
    "--setup",
    multiple=True,
    metavar="LINE",
    help="A line of the script, before the command: module load ...",
)
@click.option(
    "--stage",
    multiple=True,
    metavar="PATH",
    help="Copy it to the node's $SLURM_TMPDIR first, if it is newer.",
)
@click.option("--dry-run", is_flag=True, help="Print the script; write and submit nothing.")
@click.option(
    "--app",
    metavar="NAME",
    help="As in holdfast run: a program that Holdfast knows, or a file about one.",
)
@click.option("--retries", type=int, metavar="N", help="As in holdfast run.")
@click.option("--max-no-progress", type=int, metavar="N", help="As in holdfast run.")
@click.option("--max-requeues", type=int, metavar="N", help="As in holdfast run.")
@click.option("--grace", type=float, metavar="SECONDS", help="As in holdfast run.")
@click.option("--on-hang", type=click.Choice(["tell", "restart"]), help="As in holdfast run.")
@click.option("--hang-after", type=float, metavar="SECONDS", help="As in holdfast run.")
@click.option("--alive", metavar="FILE", help="As in holdfast run.")
@options.as_json
@click.pass_context
def command(
    ctx: click.Context, /, again: str | None, dry_run: bool, as_json: bool, **chosen: Any
) -> None:
    """Submit COMMAND to Slurm, in a script that survives preemption, lost nodes and the time limit.

        holdfast submit --time 12:00:00 --gpus 1 -- python train.py

        holdfast submit --array 1-20%5 -- python train.py --seed {task}

        holdfast submit --continue .holdfast/train-1

    Each submission has a directory of its own. Whatever is not listed here goes to sbatch. The
    words of COMMAND reach the program as they are. holdfast.toml or pyproject.toml may hold
    defaults.
    """
    words: SubmitArguments = ctx.obj
    if again is not None:
        _require_unchanged(ctx, Path(again), chosen)
        _continue(Path(again), words, dry_run=dry_run, as_json=as_json)
        return
    base = Path(
        next((option.value or "." for option in words.sbatch if option.name == "chdir"), ".")
    )
    preflight.require_this_cluster(words.sbatch)
    lines = _lines(chosen["commands"])
    if not words.command and not lines:
        raise UsageError("what shall be run? holdfast submit [options] -- command ...")
    if words.command and lines:
        raise UsageError(
            "--commands FILE takes the place of the command after --; give one of them"
        )
    order = _job_request(words, base, lines, chosen)
    text = script.script_text(order)
    preflight.check_set_up_lines(order.setup)
    if order.array is not None:
        tasks = sweep.parse_tasks(order.array)
        preflight.check_array(tasks, chosen["commands"])
        if not lines:
            preflight.warn_if_tasks_equal(order.command, tasks)
    preflight.refuse_double_launch(order, lines)
    preflight.require_usable_directory(order.directory)
    _require_accepted(text)
    if dry_run:
        click.echo(text, nl=False)
        return
    for each in [order.command] if order.command else map(shlex.split, lines):
        preflight.check_command(order, each, base)
    preflight.warn_of_missing_files(order.stage)
    _submit_new(order, base, lines, named=chosen["directory"], as_json=as_json)


def _lines(file: str | None) -> list[str]:
    """Return the commands of the file that the user names."""
    if file is None:
        return []
    try:
        return sweep.command_lines(Path(file).read_text(encoding="utf-8", errors="surrogateescape"))
    except OSError as error:
        raise UsageError(f"--commands {file}: {error.strerror}") from error
    except UsageError as error:
        raise UsageError(f"--commands {file}, {error}") from error


def _job_request(
    words: SubmitArguments, base: Path, lines: Sequence[str], chosen: Mapping[str, Any]
) -> JobRequest:
    """Return what to submit.
    A directory that we choose may get another number when it is created.
    """
    app, array, chain = chosen["app"], chosen["array"], chosen["chain"]
    if chain and (array or lines):
        raise UsageError(
            "--chain and --array: the tasks of a chain do "
            "one work in turn, those of a sweep each its own"
        )
    name = next(
        (option.value for option in words.sbatch if option.name == "job-name" and option.value),
        None,
    )
    called = script.name_for_command(
        [name or app or chosen["commands"] or ""] if name or app or lines else words.command
    )
    root = "runs" if app else ".holdfast"
    place = chosen["directory"] or f"{root}/{submission.next_free_name(base / root, called)}"
    # for the same script, submitted from another folder
    wherever = Option("chdir", os.path.abspath(base))
    named = [] if name else [Option("job-name", called)]
    return JobRequest(
        command=words.command,
        directory=place,
        options=sbatch.merge_options(named, words.sbatch, [wherever]),
        lead_s=choose_lead_s(chosen["lead"], words.sbatch, _save_s(base / root, called)),
        chain=chain,
        array=str(sweep.parse_tasks(array or "", len(lines) or None)) if array or lines else None,
        lines=f"{place}/{submission.LINES}" if lines else None,
        setup=chosen["setup"],
        stage=[os.path.abspath(path) for path in chosen["stage"]],
        supervisor=[
            f"--{each.replace('_', '-')}={chosen[each]}"
            for each in SUPERVISOR
            if chosen[each] is not None
        ],
        holdfast=program_call_name(in_full=any(option.name == "export" for option in words.sbatch)),
    )


def _save_s(root: Path, name: str) -> float | None:
    """Return how long a save took in the last submission of this name; None: unknown."""
    places = sorted(
        scan.glob(root, f"{glob.escape(name)}-*"),
        key=lambda place: place.stat().st_mtime,
        reverse=True,
    )
    return next(
        (took for place in places if (took := measured.longest_save_s(place)) is not None), None
    )


def _submit_new(
    order: JobRequest, base: Path, lines: Sequence[str], *, named: str | None, as_json: bool
) -> None:
    """Write the script into a directory of its own, and submit it."""
    wanted = base / order.directory
    if named is None:
        wanted = submission.create_directory(wanted.parent, wanted.name.rpartition("-")[0])
        place = f"{os.path.dirname(order.directory)}/{wanted.name}"
        order = order._replace(directory=place, lines=order.lines and f"{place}/{submission.LINES}")
    else:
        submission.claim_directory(wanted)
    text, file = script.script_text(order), wanted / SCRIPT
    try:
        write_script(file, text, order, base)
        if lines:
            copied = [f"{line}\n".encode("utf-8", "surrogateescape") for line in lines]
            disk.replace_with(wanted / submission.LINES, copied)
        _warn(file, text)
        job = slurm.submit([submission.script_path(wanted)])
    except SchedulerSilent as error:
        raise _unsure_error(error, wanted) from error
    except Absent as error:
        again = f"holdfast submit --continue {shlex.quote(str(wanted))}"
        raise ClusterError(
            f"{error}; the script is ready, on a machine with Slurm type: {again}"
        ) from error
    except (ClusterError, NoSpace, OSError):  # otherwise the next try would find a submission there
        submission.remove_refused(wanted)
        raise
    submission.note_submission(wanted, job, redact(order.command or ["--commands", *lines[:3]]))
    _print_submission(job, file, text, as_json=as_json)


def _unsure_error(error: SchedulerSilent, directory: Path) -> ClusterError:
    """Return the error for an sbatch that did not answer: another try might submit a second job."""
    place = shlex.quote(str(directory))
    return ClusterError(
        f"{error}; it may have been submitted all the same: look with holdfast status {place}; "
        f"if it was not: holdfast submit --continue {place}"
    )


def _require_unchanged(ctx: click.Context, directory: Path, chosen: Mapping[str, Any]) -> None:
    """Refuse options that --continue cannot change.

    Raises:
        UsageError: an option was given that --continue ignores, because it is in the script.
    """
    typed = ctx.get_parameter_source
    name = next(
        (each for each in chosen if typed(each) is click.core.ParameterSource.COMMANDLINE), None
    )
    if name is not None:
        called = {"directory": "run"}.get(name, name).replace("_", "-")
        raise UsageError(f"--{called} cannot be changed on the way; change {directory / SCRIPT}")


def _continue(directory: Path, words: SubmitArguments, *, dry_run: bool, as_json: bool) -> None:
    """Submit the directory's script again; of a sweep only the tasks that are neither done nor in
    the queue.

    Raises:
        NotFound: no script is there.
        UsageError: nothing is left to do, or the job is in the queue.
    """
    if words.command:
        raise UsageError(
            f"--continue {directory} submits the command that is there; leave out the one after --"
        )
    text, file = submission.script_of(directory), directory / SCRIPT
    preflight.require_this_cluster([*words.typed, *sbatch.parse_directives(text).options])
    tasks = submission.tasks_of(text)
    left: str | None = None
    if tasks is None:
        submission.require_unfinished(directory)
    else:
        now = submission.sweep_progress(directory, tasks)
        if not now.left:
            raise UsageError(
                f"{directory}: {len(now.done)} tasks are done, "
                f"{len(now.queued)} in the queue, none is left"
            )
        left = str(sweep.ArrayTasks(now.left, tasks.at_once))
        say(
            f"{directory}: {len(now.left)} of {len(tasks.numbers)} "
            f"tasks are submitted; {len(now.done)} are done"
        )
    given = [*words.typed]  # the defaults of a file are for new submissions
    refused = next(
        (option for option in given if option.name in (*script.OURS, "chdir", "output")), None
    )
    if refused is not None:
        raise UsageError(f"--{refused.name} cannot be changed on the way; change {file}")
    before, text = text, sbatch.with_options(text, given) if given else text
    _require_accepted(text)
    if dry_run:
        click.echo(text, nl=False)
        return
    _warn(file, text)
    held = next(
        (
            path
            for path in (directory, reported_run_path(directory))
            if path and scan.exists(path / HOLD)
        ),
        None,
    )
    if held is not None:
        raise UsageError(format_not_started(held, job_leader.resubmit_command(directory)))
    disk.replace_with(file, [text.encode("utf-8", "surrogateescape")])
    try:
        job = slurm.submit(
            [*([f"--array={left}"] if left else []), submission.script_path(directory)]
        )
    except SchedulerSilent as error:
        raise _unsure_error(error, directory) from error
    except ClusterError:
        disk.replace_with(file, [before.encode("utf-8", "surrogateescape")])
        raise
    submission.note_submission(directory, job, ["--continue"])
    _print_submission(job, file, text, left, as_json=as_json)


def _require_accepted(text: str) -> None:
    """Refuse a script that sbatch would refuse, before anything is written.

    Raises:
        UsageError: there is such a line.
    """
    for found in filter(is_refused, _lint(text)):
        raise UsageError(
            f"the job's script, line {found.line}: {found.what}: {found.fix}; nothing was "
            "submitted. If your Slurm takes it, add to the script (--setup): "
            f"# holdfast: allow {found.rule}"
        )


def _lint(text: str) -> list[Finding]:
    return lint_script(text, ScriptContext(sbatch=cache(slurm.local_sbatch)))


def _warn(file: Path, text: str) -> None:
    for finding in _lint(text):
        first, second = told.finding_lines({"file": str(file), **finding._asdict()})
        click.echo(f"holdfast: warning: {escape_text(first)}\n{escape_text(second)}", err=True)


def choose_lead_s(wanted: int | None, given: list[Option], save_s: float | None) -> int:
    """Return how many seconds before its end the job is notified: as wanted, else from a save's
    duration, else 120.

    Raises:
        UsageError: the notice would come before the job begins.
    """
    limit_s = sbatch.time_limit_s(given)
    needed = 0 if save_s is None else notice_time_s(save_s)
    lead = wanted or max(
        needed, min(script.LEAD_S, int(limit_s / 4) if limit_s < math.inf else script.LEAD_S)
    )
    if lead >= limit_s:
        why = f"a save took {save_s:.0f} s" if save_s and not wanted else f"--lead {lead}"
        raise UsageError(
            f"the time limit of {limit_s:.0f} s leaves no time to work: {why}; ask for more --time"
        )
    return lead


def program_call_name(*, in_full: bool) -> str:
    """Return how a job calls this program: its name if PATH has it;
    its full path else, or if PATH may differ.
    """
    called = os.path.abspath(sys.argv[0])
    if os.path.basename(called) != "holdfast":
        return f"{shlex.quote(sys.executable)} -m holdfast"
    found = shutil.which("holdfast")
    by_name = found and os.path.samefile(found, called) and not in_full
    return "holdfast" if by_name else shlex.quote(called)


def write_script(file: Path, text: str, order: JobRequest, base: Path) -> None:
    """Write the script, and create the folders that Slurm does not create for the job's output.

    Raises:
        NoSpace: the disk is full; an earlier script is unchanged.
    """
    try:
        disk.make_dirs(file.parent)
        disk.replace_with(file, [text.encode("utf-8", "surrogateescape")])
        for option in script.script_options(order):
            folder = (
                os.path.dirname(option.value or "") if option.name in ("output", "error") else ""
            )
            if folder and "%" not in folder:
                disk.make_dirs(base / folder)
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise NoSpace(f"{file}: no space for the script; nothing was submitted") from error
        raise


def _print_submission(
    job: str, file: Path, text: str, left: str | None = None, *, as_json: bool
) -> None:
    array = sbatch.last_option(sbatch.parse_directives(text).options, "array")
    tasks = left or (array.value if array is not None else None)
    shown = submission.output_path(text, job, "*")
    tail = f"tail -F {shlex.quote(shown)}" if "*" not in shown else f"tail -F {shown}"
    lines = [
        f"submitted job {job}" + (f", tasks {tasks}" if tasks else ""),
        f"script  {file}",
        f"output  {shown}",
        f"look    holdfast status {shlex.quote(str(file.parent))}; {tail}",
        f"end     scancel {job}",
    ]
    facts = {
        "job": job,
        "script": str(file),
        "output": shown,
        "directory": str(file.parent),
        "array": tasks,
    }
    print_report(facts, lines, as_json=as_json)
