"""`holdfast init`, and `holdfast drill --fix`:
add to a script what its resume needs, and prove each line.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import click
import msgspec

from .. import drill, terminal
from ..errors import UsageError
from ..legible import counted
from . import options
from .formatting import echo, echo_json

if TYPE_CHECKING:
    from ..drill.fix.repair import RepairResult


@click.command(context_settings={"allow_interspersed_args": False})
@options.option(
    "--kills",
    type=click.IntRange(1),
    metavar="N",
    default=5,
    help="Places from which each drill resumes the run.",
)
@click.option("--steps", type=click.IntRange(2), metavar="N", help="Drill the first N steps only.")
@options.drill_seed
@click.option("--write", is_flag=True, help="Write the script if the last drill says identical.")
@options.as_json
@click.argument("command", nargs=-1, required=True, type=click.UNPROCESSED)
def command(as_json: bool, write: bool, command: tuple[str, ...], **chosen: Any) -> int:
    """Give a script that knows nothing of Holdfast its Run, its loops and its state, and prove them
    by drills.

    COMMAND is a script, or the command that starts one. The script itself is left as it is without
    --write: each drill runs a copy beside it. What the drills find missing is added line by line,
    each with its evidence.

        holdfast init train.py

        holdfast init --write --kills 3 -- python train.py --epochs 3

    Exit 0: identical. 1: not, and the last line says why. 8: the script failed by itself.
    """
    words = (sys.executable, *command) if command[0].endswith(".py") else command
    return repair_and_report(
        words, drill.DrillOptions(**chosen), as_json=as_json, new=True, write=write
    )


def repair_and_report(
    command: Sequence[str], chosen: drill.DrillOptions, *, as_json: bool, new: bool, write: bool
) -> int:
    """Repair the command's script, and print the result; return the exit code.

    Raises:
        UsageError: libcst is not installed.
    """
    try:
        from ..drill.fix.repair import repair_script
    except ModuleNotFoundError as error:
        if error.name != "libcst":
            raise
        raise UsageError('a script is changed with libcst: pip install "holdfast[fix]"') from error
    with terminal.ProgressLine() as progress:
        found = repair_script(
            command,
            chosen,
            lambda line: terminal.say(f"drill: {line}"),
            lambda step, total: progress.update(step=step, total=total),
            new=new,
            write=write,
        )
    if as_json:
        echo_json(msgspec.to_builtins(found))
    else:
        click.echo(found.diff, nl=False)
        for line in repair_lines(found, new=new):
            echo(line)
    return found.exit_code


def repair_lines(found: RepairResult, *, new: bool) -> Iterator[str]:
    """Yield each line with its evidence; the last line says what happened."""
    for each in found.additions:
        yield f"added: {each.what}"
        yield f"  without it: {each.evidence}"
    for refused in found.refused:
        yield f"not added: {refused}"
    what = counted(len(found.additions), "addition") + f", {counted(found.drills, 'drill')}"
    if found.exit_code:
        yield f"stuck: {found.verdict} ({what}): {found.why}"
    elif not found.diff:
        yield "identical: nothing is to be added"
    else:
        how = f"written to {found.script}" if found.written else "--write writes it"
        yield f"identical: {'a Run, and ' if new else ''}{what}; {how}"
