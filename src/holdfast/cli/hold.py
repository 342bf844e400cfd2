"""`holdfast hold` and `holdfast release`: do not restart or requeue a run, and allow it again."""

from __future__ import annotations

from pathlib import Path

import click

from .. import disk, modes, scan
from ..cluster import job_leader
from ..cluster.hold import HOLD
from ..errors import NotFound
from ..store.locate import locate, run_directory_of
from ..supervise import status
from ..supervise.place import JOURNAL
from . import options
from .formatting import print_report


@click.command()
@options.run_here
@options.as_json
def command(run: str, as_json: bool) -> None:
    """Do not restart or requeue RUN until `holdfast release`. A process that runs now is not
    stopped.

    A job of it that waits in the queue, or is put there by hand, ends as soon as it begins.

    RUN is a run's directory, or the directory in which `holdfast run` keeps its journal.
    """
    _set_hold(run, held=True, as_json=as_json)


@click.command()
@options.run_here
@options.as_json
def release(run: str, as_json: bool) -> None:
    """Allow RUN to be restarted and requeued again.
    If it has stopped meanwhile, start or submit it yourself.
    """
    _set_hold(run, held=False, as_json=as_json)


def _set_hold(run: str, *, held: bool, as_json: bool) -> None:
    """Write or remove the file `hold`, and report that. A second call changes nothing."""
    root = _directory(run)
    there = scan.exists(root / HOLD)
    modes.inherit_mode(root, of=root / JOURNAL if scan.is_file(root / JOURNAL) else None)
    if held != there:
        disk.write(root / HOLD, []) if held else disk.remove_file(root / HOLD)
        disk.sync_dir(root)
    told = (
        "released: from now on it is started again and requeued as it asks"
        if there
        else "was not held"
    )
    if held:
        told = (
            "held: once it stops it is neither started again nor requeued, "
            f"until `holdfast release {run}`"
        )
    facts = {"run": run, "directory": str(root), "held": held, "changed": held != there}
    print_report(facts, [f"{run}: {told}"], as_json=as_json)


def _directory(run: str) -> Path:
    """Return the run's directory, or the supervisor's.

    Raises:
        NotFound: it is neither.
    """
    directory = Path(run)
    if scan.is_file(directory / JOURNAL):
        return directory
    sweep = job_leader.sweep_of(directory)
    tasks = status.find_runs(sweep) if sweep is not None else []
    if directory.absolute().name in {each.name.rpartition("/")[2] for each in tasks}:
        disk.make_dirs(directory)  # of a task that has not begun
        return directory
    try:
        return run_directory_of(locate(run))
    except NotFound as error:
        raise NotFound(f"{error}, or one in which `holdfast run` has left a {JOURNAL}") from error
