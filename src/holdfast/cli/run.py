"""`holdfast run`: run a command, and restart it, until it is done."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from .. import disk
from ..apps import known
from ..apps.program import Program
from ..cluster import chain as links
from ..cluster import job_leader
from ..cluster.notices import CLOUDS
from ..errors import ChildError, UsageError
from ..job import job
from ..settings import MOST_REQUEUES, is_drilled
from ..supervise.limits import LEAD_S
from ..supervise.place import wait_for_earlier_tasks
from ..supervise.supervise import SupervisorOptions, supervise
from ..supervise.watching import HangOptions, require_parent_directory
from ..terminal import say, warn
from . import options
from .formatting import escape_text, json_line, versioned

NO_DRILL = (
    "a drill compares the states of a Run, and a program under "
    "--app has none. Run it alone, then again through kills, "
    "and compare its files: docs/scientific-languages.md, Prove it"
)
RUN_DIR = click.Path(path_type=Path, file_okay=False)
FILE = click.Path(path_type=Path, dir_okay=False)


@click.command(
    context_settings={"allow_interspersed_args": False},
)
@click.option(
    "--run",
    "directory",
    type=RUN_DIR,
    metavar="DIR",
    help="Where the supervisor keeps its journal.",
)
@click.option(
    "--app",
    metavar="NAME|FILE",
    help="What COMMAND is: gromacs, lammps, ..., or a file that describes it.",
)
@options.option(
    "--retries",
    type=click.IntRange(0),
    metavar="N",
    default=0,
    help="Starts after crashes in a row, without progress.",
)
@options.option(
    "--max-no-progress",
    type=click.IntRange(1),
    metavar="N",
    default=10,
    help="Attempts in a row that get no further.",
)
@options.option(
    "--max-requeues", type=click.IntRange(0), metavar="N", default=MOST_REQUEUES, help="Of one job."
)
@click.option(
    "--grace",
    "grace_s",
    type=click.FloatRange(0),
    metavar="SECONDS",
    help="From a signal to SIGKILL.",
)
@options.option(
    "--lead",
    "lead_s",
    type=click.FloatRange(0),
    metavar="SECONDS",
    help=f"How long before a job's end to stop. Default: {LEAD_S:.0f}; of a short job a quarter.",
)
@options.option(
    "--requeue/--no-requeue", default=True, help="Carry the job on when its time is up."
)
@click.option(
    "--spot", type=click.Choice(sorted(CLOUDS)), help="Stop when this cloud takes the machine back."
)
@options.option(
    "--on-hang",
    type=click.Choice(["tell", "restart"]),
    default="tell",
    help="Restart: end it, and start it once more.",
)
@click.option(
    "--hang-after",
    type=click.FloatRange(0, min_open=True),
    metavar="SECONDS",
    help="A step that takes longer hangs.",
)
@click.option(
    "--alive", type=FILE, metavar="FILE", help="What COMMAND touches as long as it is alive."
)
@click.option(
    "--standby",
    is_flag=True,
    help="Do the next start's imports in advance; for `python script.py`.",
)
@click.option(
    "--chain",
    is_flag=True,
    help="This job is one of an array that does the work in turn; needs --run.",
)
@options.as_json
@click.argument("command", nargs=-1, type=click.UNPROCESSED)
def command(
    app: str | None, chain: bool, as_json: bool, command: tuple[str, ...], **chosen: Any
) -> None:
    """Run COMMAND, see to it that it stops in time, and start it again as long as it asks for it.

    TERM, USR1, USR2 and INT reach the command; a second INT kills it. When it exits with 75 it is
    started again, unless we were told to stop ourselves; after a crash only as often as --retries
    says. Nothing that it started outlives it. In a job whose time is up, or that is preempted, the
    job is requeued, once the command has saved.

        holdfast run --retries 3 -- python train.py --lr 0.1

    Exit 0: done. 75: stopped and saved, run me again. 8: COMMAND failed for good; its last lines
    are shown. 2: it cannot be started. Told to stop, a command that cannot go on later gives its
    own code, 143 for SIGTERM.
    """
    if not command and not known.is_file(app):
        raise click.MissingParameter(param_hint="'COMMAND...'", param_type="argument")
    if app is not None and is_drilled():
        raise UsageError(NO_DRILL)
    if chain and _is_array_work_done(chosen["directory"]):
        say(
            f"{chosen['directory']}: an earlier task of this "
            "array has finished the work; nothing is left to do"
        )
        return
    directory, hangs = chosen["directory"], _hang_options(chosen)
    name = Path(app).stem if app else None
    typed = options.typed_options(click.get_current_context(), "directory", "as_json")
    settings = SupervisorOptions(
        keeps=app is not None, name=name, chain=chain, hangs=hangs, typed=typed, **chosen
    )
    try:
        outcome = supervise(command, lambda place: _program(app, place), settings)
    except ChildError as error:
        _print_failed(error, as_json=as_json)
        if (
            job() is not None
            and directory is not None
            and job_leader.script_of(directory) is not None
        ):
            say(f"when that is mended, go on with: {job_leader.resubmit_command(directory)}")
        raise click.exceptions.Exit(error.exit_code) from error
    if chain and outcome.end == "end":
        trouble = links.end_chain(outcome.directory, job())
        if trouble is not None:
            warn(trouble)
        elif (here := job()) is not None and here.task is not None:
            say(
                f"task {here.task} of the chain has finished the work; "
                "the tasks that wait are cancelled on purpose"
            )
    if as_json:
        click.echo(json_line(versioned(outcome._asdict() | {"directory": str(outcome.directory)})))
    if outcome.exit_code:
        raise click.exceptions.Exit(outcome.exit_code)


def _hang_options(chosen: dict[str, Any]) -> HangOptions:
    """Take what the options say about hangs out of `chosen`."""
    restart, after_s, file = (
        chosen.pop("on_hang") == "restart",
        chosen.pop("hang_after"),
        chosen.pop("alive"),
    )
    require_parent_directory(file)
    return HangOptions(restart, after_s, file and file.absolute(), chosen["grace_s"])


def _is_array_work_done(directory: Path | None) -> bool:
    """Wait for the array's task before this one; return whether the array's work is done."""
    if directory is None:
        raise UsageError("--chain needs --run DIR, which all tasks of the array share")
    wait_for_earlier_tasks(directory, job())
    return links.is_over(directory, job())


def _print_failed(error: ChildError, *, as_json: bool) -> None:
    head, *output = str(error).splitlines()
    click.echo(f"holdfast: {escape_text(head)}", err=True)
    for line in output:
        click.echo(escape_text(line), err=True)
    if as_json:
        facts = {
            "end": "failed",
            "exit_code": error.exit_code,
            "reason": error.reason,
            "tail": error.tail,
        }
        click.echo(json_line(versioned(facts)))


def _program(app: str | None, place: Path) -> Program:
    if app is not None:
        disk.make_dirs(place / "app")
    return known.adapter_for(app, Path.cwd(), place / "app")
