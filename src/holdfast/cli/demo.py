"""`holdfast demo`: drill a small training of our own,
for somebody who has only just installed Holdfast.
"""

from __future__ import annotations

import sys
from importlib.util import find_spec
from pathlib import Path

import click
import msgspec

from .. import drill, terminal
from ..drill import report as reports
from ..errors import UsageError
from ..legible import counted
from . import options
from .drill import run_drill, write_page
from .formatting import echo, echo_json

SCRIPT = Path(__file__).with_name("demo_training.py")
# -P: the directory it is called in stays out
COMMAND = (sys.executable, "-P", "-m", f"{__package__}.{SCRIPT.stem}")
KILLS, SEED = 2, 2


@click.command()
@click.option(
    "--keep",
    type=click.Path(path_type=Path, file_okay=False),
    metavar="DIR",
    help="Leave the runs in DIR, and a page of the killed one: report.html.",
)
@options.as_json
def command(as_json: bool, keep: Path | None) -> int:
    """Train a small network, kill it, damage its checkpoints, and compare every bit with
    undisturbed runs.

    This takes about 20 seconds, and needs NumPy. It is `holdfast drill` of a script that is part of
    Holdfast. The directory in which it is called stays as it is.

    Exit 0: identical. 1: different, or not proven. 2: NumPy is not installed. 8: the training
    failed by itself.
    """
    if find_spec("numpy") is None:
        raise UsageError("the demo trains with NumPy: pip install numpy")
    terminal.say(f"demo: trains a small network again and again, in about 20 s: {SCRIPT}")
    terminal.say(
        f"demo: undisturbed, then with {KILLS} kills by SIGKILL, and a flipped bit in a checkpoint"
    )
    found = run_drill(
        COMMAND, drill.DrillOptions(KILLS, ("KILL",), SEED, keep=keep), as_json=as_json
    )
    page = write_page(found)
    if as_json:
        echo_json(msgspec.to_builtins(found))
        return found.exit_code
    for line in [*lines(found), *page]:
        echo(line)
    return found.exit_code


def lines(found: drill.DrillReport) -> list[str]:
    """Return what the drill has shown, where to read on, and the verdict."""
    damaged = [each for each in found.attempts if each.damage]
    aside = [name for each in found.attempts for name in each.quarantined]
    states, metrics = counted(found.states_compared, "state"), counted(found.metric_lines, "line")
    told = [
        (
            f"killed: {counted(sum(each.signal is not None for each in found.attempts), 'time')} "
            "by SIGKILL"
        ),
        *(f"damaged on purpose: {each.damage}" for each in damaged),
        f"set aside as damaged, and not restored: {', '.join(aside) or 'nothing'}",
        f"compared with an undisturbed run: {states}, {metrics} of metrics",
        *([f"the runs: holdfast ls {found.kept}/killed"] if found.kept else []),
        f"the script: {SCRIPT}",
        (
            "your own script: holdfast drill -- python train.py, "
            "or holdfast init train.py if it knows nothing of Holdfast"
        ),
        "read on: docs/tutorial.md and docs/drill.md in the repository; holdfast drill --help",
    ]
    if found.verdict != reports.IDENTICAL:
        return [*told, *found.notes, *found.final_differences, found.verdict]
    return [*told, "identical: every byte of the last state is as without kills and damage"]
