"""`holdfast drill`: kill a training script on purpose and prove that it resumes bit for bit."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click
import msgspec

from .. import drill, scan, terminal
from ..drill.plan import SIGNALS
from ..drill.table import COLUMNS, attempt_cells, report_lines
from ..errors import ChildError, UsageError
from . import code_scanning, options, print_error
from .formatting import echo, echo_json, escape_text, print_table
from .init import repair_and_report
from .report import write_page_of


class _Signals(click.ParamType):  # type: ignore[type-arg]  # generic in the newest click only
    name = "SIGNALS"

    def convert(
        self, value: object, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[str, ...]:
        names = [name.strip().upper().removeprefix("SIG") for name in str(value).split(",")]
        for name in names:
            if name not in SIGNALS:
                self.fail(f"{name!r} is none of {', '.join(SIGNALS)}", param, ctx)
        return tuple(names)


@click.command(
    context_settings={"allow_interspersed_args": False},
)
@options.option(
    "--kills",
    type=click.IntRange(1),
    metavar="N",
    default=5,
    help="Places from which to resume the run.",
)
@options.option(
    "--signals", type=_Signals(), default="KILL,TERM", help=f"Taken in turn: {','.join(SIGNALS)}."
)
@options.drill_seed
@click.option(
    "--steps",
    type=click.IntRange(2),
    metavar="N",
    help="Stop after N steps: makes long runs drillable.",
)
@click.option(
    "--save-every",
    "save_every_steps",
    type=click.IntRange(1),
    metavar="K",
    help="Save every K steps on the way to each place.",
)
@click.option(
    "--exempt",
    multiple=True,
    metavar="PATTERN",
    help="Metrics and printed lines not to compare, besides timings. May be repeated.",
)
@options.option(
    "--flip/--no-flip", "damage", default=True, help="Damage checkpoints between attempts."
)
@click.option(
    "--keep",
    type=click.Path(path_type=Path, file_okay=False),
    metavar="DIR",
    help="Leave the runs in DIR, and a page of the killed one: report.html.",
)
@click.option(
    "--fix", is_flag=True, help="Add to a copy of the script what is missing, and print the diff."
)
@click.option(
    "--write", is_flag=True, help="With --fix: write the script if the last drill says identical."
)
@click.option(
    "--resume-with",
    metavar="COMMAND",
    default="",
    help="Drill a program without a Run: this resumes it, {checkpoint} being a path.",
)
@click.option(
    "--checkpoints",
    multiple=True,
    metavar="PATTERN",
    help="With --resume-with: the files or folders that it saves. May be repeated.",
)
@code_scanning.scanning
@options.as_json
@click.argument("command", nargs=-1, required=True, type=click.UNPROCESSED)
def command(
    as_json: bool,
    fix: bool,
    write: bool,
    sarif: Path | None,
    github: bool,
    command: tuple[str, ...],
    **chosen: Any,
) -> None:
    """Run COMMAND, a script that uses holdfast.Run, twice undisturbed and once with kills; compare
    every bit.

    COMMAND itself is left as it is. HOLDFAST_RUN_DIR moves its run into a directory of the drill's.
    HOLDFAST_DRILL makes it note the digests of its state at each step, and save where the drill
    wants to resume it. That is in the first epoch, in a later one, after an epoch's last batch, at
    its end, and soon after a resume.

        holdfast drill --kills 20 -- python train.py --lr 0.1

        holdfast drill --signals RANK -- torchrun --nproc-per-node 4 train.py

        holdfast drill --fix -- python train.py

    With --resume-with, COMMAND needs no Run: it is resumed by its own means, and the drill tells
    what they lose. Each run works in a copy of this directory.

        holdfast drill --resume-with 'python train.py --resume {checkpoint}'
        --checkpoints 'out/*.pt' -- python train.py

    KILL strikes every process that COMMAND has started, RANK one of its ranks only, the others
    COMMAND itself.

    Exit 0: identical at as many distinct places as kills were asked for, or at all that COMMAND
    has. 1: different, or state identical but output differs, not proven, or not deterministic by
    itself. 8: COMMAND failed by itself.
    """
    code_scanning.require_outputs(as_json=as_json, github=github, sarif=sarif)
    if write and not fix:
        raise UsageError("--write goes with --fix")
    if fix and chosen["resume_with"]:
        raise UsageError("--fix adds to scripts with a Run, and --resume-with drills those without")
    if fix:
        raise click.exceptions.Exit(
            repair_and_report(
                command, drill.DrillOptions(**chosen), as_json=as_json, new=False, write=write
            )
        )
    report = run_drill(command, drill.DrillOptions(**chosen), as_json=as_json)
    lines = [*report_lines(report), *write_page(report)]
    if as_json:
        echo_json(msgspec.to_builtins(report))
    else:
        if report.attempts:
            print_table(COLUMNS, [attempt_cells(attempt) for attempt in report.attempts])
        for line in lines:
            echo(line)
    found, summary = (
        code_scanning.drill_findings(report),
        code_scanning.drill_summary(report, lines),
    )
    code_scanning.publish(found, summary, sarif=sarif, github=github)
    if report.exit_code:
        raise click.exceptions.Exit(report.exit_code)


def write_page(report: drill.DrillReport) -> list[str]:
    """Write a page of the killed run if the runs are kept; return a line with its path."""
    killed = Path(report.kept or "", "killed")
    if report.kept is None or not scan.is_dir(killed):
        return []
    target = killed.with_name("report.html")
    write_page_of(killed, target)
    return [f"report: {target}"]


def run_drill(
    command: Sequence[str], options: drill.DrillOptions, *, as_json: bool
) -> drill.DrillReport:
    """Drill the command, show its progress, and return the findings.

    Raises:
        Exit: the command failed by itself; that, and what it printed, was shown.
    """
    try:
        with terminal.ProgressLine() as progress:
            return drill.drill(
                command,
                options,
                say=lambda line: terminal.say(f"drill: {line}"),
                watch=lambda step, total: progress.update(step=step, total=total),
            )
    except ChildError as error:
        if as_json:
            echo_json({"verdict": "failed", "error": str(error), "command": list(command)})
        head, *output = str(error).splitlines()
        for line in output:
            click.echo(escape_text(line), err=True)
        raise click.exceptions.Exit(print_error(head, error.exit_code)) from error
