"""`holdfast submit`: submits a command as a batch job that runs until it is done."""

from __future__ import annotations

import errno
import math
import os
import re
import shlex
import shutil
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import click

from .. import disk
from ..cluster import lint, sbatch, script, slurm
from ..cluster.hold import HOLD, on_hold
from ..cluster.job_leader import run_of
from ..cluster.sbatch import Option
from ..cluster.script import JobRequest
from ..errors import NoSpace, UsageError
from ..interval import enough_s
from ..terminal import say
from . import lint as told
from . import measured, options
from .defaults import defaults
from .shown import report, safe

FILE = "job.sh"  # in the supervisor's directory
SUPERVISOR = ("app", "retries", "max_no_progress", "max_requeues", "grace")  # these are passed on to `holdfast run`


class SubmitArguments(NamedTuple):
    """The words of the command line by destination."""

    ours: list[str]
    sbatch: list[Option]
    command: list[str]


class Passing(click.Command):
    """Parses its own options, keeps unknown ones for sbatch, and the words after `--` for the job."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        known = {opt: str(param.name) for param in self.get_params(ctx) for opt in param.opts}
        named = {opt.removeprefix("--").replace("-", "_"): name for opt, name in known.items() if opt.startswith("--")}
        settings = defaults("submit", [*named, "sbatch"])
        given = settings.pop("sbatch", {})
        words = sort(args, [*known])
        ctx.default_map = {named[opt]: value for opt, value in settings.items()}
        ctx.obj = words._replace(sbatch=sbatch.merged(from_table(given), words.sbatch))
        return super().parse_args(ctx, words.ours)


@click.command(cls=Passing, options_metavar="[SBATCH OPTIONS] [OPTIONS] -- COMMAND...")
@click.option("--run", "directory", metavar="DIR", help="Where script, output and journal go. Default: .holdfast/NAME")
@click.option(
    "--chain", type=click.IntRange(2), metavar="N", help="N jobs one after the other, for sites without requeue."
)
@click.option(
    "--lead",
    type=click.IntRange(1),
    metavar="SECONDS",
    help=f"How long before its end the job gets notice. Default: {script.LEAD_S}, a quarter of a --time under "
    f"{4 * script.LEAD_S // 60} minutes, or what a save of this run needs.",
)
@click.option(
    "--setup", multiple=True, metavar="LINE", help="A line of the script, before the command: module load ..."
)
@click.option(
    "--stage", multiple=True, metavar="PATH", help="Copy it to the node's $SLURM_TMPDIR first, if it is newer."
)
@click.option("--dry-run", is_flag=True, help="Print the script; write and submit nothing.")
@click.option("--app", metavar="NAME", help="As in holdfast run: a program that Holdfast knows, or a file about one.")
@click.option("--retries", type=int, metavar="N", help="As in holdfast run.")
@click.option("--max-no-progress", type=int, metavar="N", help="As in holdfast run.")
@click.option("--max-requeues", type=int, metavar="N", help="As in holdfast run.")
@click.option("--grace", type=float, metavar="SECONDS", help="As in holdfast run.")
@options.as_json
@click.pass_obj
def command(
    words: SubmitArguments,
    /,
    directory: str | None,
    chain: int | None,
    lead: int | None,
    setup: tuple[str, ...],
    stage: tuple[str, ...],
    dry_run: bool,
    as_json: bool,
    **supervisor: Any,
) -> None:
    """Submit COMMAND to Slurm, in a script that survives preemption, lost nodes and the time limit.

        holdfast submit --time 12:00:00 --gpus 1 -- python train.py

    Whatever is not listed here goes to sbatch. The words of COMMAND reach the program as they are. holdfast.toml or
    pyproject.toml may hold defaults.
    """
    if not words.command:
        raise UsageError("what shall be run? holdfast submit [options] -- command ...")
    app = supervisor.get("app")
    place = directory or f"{'runs' if app else '.holdfast'}/{script.name([app] if app else words.command)}"
    base = Path(next((option.value or "." for option in words.sbatch if option.name == "chdir"), "."))
    wherever = Option("chdir", os.path.abspath(base))  # for the same script, submitted from another folder
    order = JobRequest(
        command=words.command,
        directory=place,
        options=sbatch.merged(words.sbatch, [wherever]),
        lead_s=lead_s(lead, words.sbatch, measured.save_s(base / place)),
        chain=chain,
        setup=setup,
        stage=[os.path.abspath(path) for path in stage],
        supervisor=[
            f"--{name.replace('_', '-')}={supervisor[name]}" for name in SUPERVISOR if supervisor[name] is not None
        ],
        holdfast=own_name(in_full=any(option.name == "export" for option in words.sbatch)),
    )
    text = script.script(order)
    if dry_run:
        click.echo(text, nl=False)
        return
    file = base / place / FILE
    write(file, text, order, base)
    for finding in lint.lint(text):
        click.echo(f"holdfast: warning: {safe(told.line({'file': str(file), **finding._asdict()}))}", err=True)
    held = next((path for path in (file.parent, run_of(file.parent)) if path and (path / HOLD).exists()), None)
    if held is not None:
        say(on_hold(held))
    _say(slurm.submit([str(file)]), file, order, base, as_json=as_json)


def sort(args: list[str], known: list[str]) -> SubmitArguments:
    """Split `args` into our options, sbatch's, and the command after the first `--`."""
    end = args.index("--") if "--" in args else len(args)
    ours: list[str] = []
    theirs: list[str] = []
    target = theirs
    for word in args[:end]:
        if word.startswith("-") and word != "-":
            target = ours if word.partition("=")[0] in known else theirs
        target.append(word)
    return SubmitArguments(ours, sbatch.parse(theirs), args[end + 1 :])


def from_table(given: Any) -> list[Option]:
    """Return sbatch options from holdfast.toml: `requeue = true`, `time = "12:00:00"`; `false` leaves one out.

    Raises:
        UsageError: `given` is no table.
    """
    if not isinstance(given, Mapping):
        raise UsageError("submit.sbatch is no table: write [submit.sbatch] and a line for each option")
    words = [f"{'-' if len(name) == 1 else '--'}{name}" for name in given]
    return [
        option._replace(value=None if value is True else str(value))
        for word, value in zip(words, given.values(), strict=True)
        if value is not False
        for option in sbatch.parse([word])
    ]


def lead_s(wanted: int | None, given: list[Option], save_s: float | None) -> int:
    """Return how many seconds before its end the job is notified: as wanted, else from a save's duration, else 120.

    Raises:
        UsageError: the notice would come before the job begins.
    """
    limit_s = sbatch.limit_s(given)
    needed = 0 if save_s is None else enough_s(save_s)
    lead = wanted or max(needed, min(script.LEAD_S, int(limit_s / 4) if limit_s < math.inf else script.LEAD_S))
    if lead >= limit_s:
        why = f"a save took {save_s:.0f} s" if save_s and not wanted else f"--lead {lead}"
        raise UsageError(f"the time limit of {limit_s:.0f} s leaves no time to work: {why}; ask for more --time")
    return lead


def own_name(*, in_full: bool) -> str:
    """Return how a job calls this program: its name if PATH has it; its full path else, or if PATH may differ."""
    called = os.path.abspath(sys.argv[0])
    if os.path.basename(called) != "holdfast":
        return f"{shlex.quote(sys.executable)} -m holdfast"
    found = shutil.which("holdfast")
    by_name = found and os.path.samefile(found, called) and not in_full
    return "holdfast" if by_name else shlex.quote(called)


def write(file: Path, text: str, order: JobRequest, base: Path) -> None:
    """Write the script, and create the folders that Slurm does not create for the job's output.

    Raises:
        NoSpace: the disk is full; an earlier script is unchanged.
    """
    try:
        disk.make_dirs(file.parent)
        disk.replace_with(file, [text.encode("utf-8", "surrogateescape")])
        for option in script.options(order):
            folder = os.path.dirname(option.value or "") if option.name in ("output", "error") else ""
            if folder and "%" not in folder:
                disk.make_dirs(base / folder)
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise NoSpace(f"{file}: no space for the script; nothing was submitted") from error
        raise


def _say(job: str, file: Path, order: JobRequest, base: Path, *, as_json: bool) -> None:
    named = {option.name: option.value or "" for option in script.options(order)}
    output = base / re.sub(r"%[jA]", job, named["output"]).replace("%x", named["job-name"])
    lines = [
        f"submitted job {job}" + (f": {order.chain} tasks, one after the other" if order.chain else ""),
        f"script  {file}",
        f"output  {output}",
        f"look    squeue --jobs {job}; tail -F {shlex.quote(str(output))}",
        f"end     scancel {job}",
    ]
    facts = {"job": job, "script": str(file), "output": str(output), "directory": str(file.parent)}
    report(facts, lines, as_json=as_json)
