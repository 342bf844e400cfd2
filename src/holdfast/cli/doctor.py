"""`holdfast doctor`: whether this file system, this cluster and this run will do."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import click

from ..doctor import files, scheduler, versions
from ..doctor import run as runs
from ..doctor.check import Check
from ..errors import NotFound
from . import measured, options
from .shown import echo, echo_json


@click.command()
@click.argument("run", metavar="[RUN]", required=False, callback=options.no_address, shell_complete=options.directories)
@click.option("--partition", metavar="NAME", help="Ask about this partition. Default: RUN's, else the cluster's own.")
@options.as_json
def command(run: str | None, partition: str | None, as_json: bool) -> int:
    """Look at the file system (of RUN, else of this folder), the scheduler, versions, and at what RUN's saves take.

    A line for each check: ok, warning or problem, and what to do. Nothing is left behind. Exit 1 if there is a problem.
    """
    if run is not None and not os.path.isdir(run):
        raise NotFound(f"{run}: no such directory; expected a run's")
    checks = []
    for check in examine(run, partition):
        checks.append(check)
        if not as_json:
            echo(f"{check.level:<9}{check.name}: {check.what}" + (f"; {check.todo}" if check.todo else ""))
    if as_json:
        echo_json({"run": run, "checks": [check._asdict() for check in checks]})
    return 1 if any(check.level == "problem" for check in checks) else 0


def examine(run: str | None, partition: str | None) -> Iterator[Check]:
    """Yield all checks, in order."""
    known = None if run is None else runs.know(Path(run), measured.save_s(run))
    directory = Path(".") if known is None else known.run
    yield from files.examine(directory, 0 if known is None else 2 * known.size_bytes)
    checks, settings = scheduler.examine(partition or (known.partition if known else None))
    yield from checks
    yield from versions.examine()
    if known is not None:
        yield from runs.examine(known, settings)
