"""`holdfast doctor`: whether this file system, this cluster and this run will do."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import click

from .. import scan, settings
from ..doctor import copies, files, scheduler, stale_files, versions
from ..doctor import run as runs
from ..doctor.check import Check, problem, warning
from ..doctor.stale_files import REMOVE, StaleFile
from ..errors import NotFound
from ..settings import PURGE_DAYS
from ..store.claiming import possibly_alive_attempts
from ..store.locate import is_mirror, run_directory_of
from ..supervise import leftovers
from . import measured, options
from .formatting import echo, echo_json


@click.command()
@click.argument(
    "run",
    metavar="[RUN]",
    required=False,
    callback=options.require_local_path,
    shell_complete=options.complete_directories,
)
@click.option(
    "--partition",
    metavar="NAME",
    help="Ask about this partition. Default: RUN's, else the cluster's own.",
)
@click.option(
    "--purge-days",
    metavar="N",
    type=click.FloatRange(min=0, min_open=True),
    help=f"This site deletes files after N days. Default: {PURGE_DAYS}.",
)
@options.as_json
def command(run: str | None, partition: str | None, purge_days: float | None, as_json: bool) -> int:
    """Look at the file system (of RUN, else of this folder), the scheduler, versions, and at what
    RUN's saves take.

    A line for each check: ok, warning or problem, and what to do. Nothing is left behind. Exit 1 if
    there is a problem. RUN may also be a folder that is a mirror.
    """
    if run is not None and not scan.is_dir(run):
        raise NotFound(f"{run}: no such directory; expected a run's")
    checks = []
    for check in run_checks(
        run, partition, settings.purge_days() if purge_days is None else purge_days
    ):
        checks.append(check)
        if not as_json:
            echo(
                f"{check.level:<9}{check.name}: {check.what}"
                + (f"; {check.todo}" if check.todo else "")
            )
    if as_json:
        echo_json({"run": run, "checks": [check._asdict() for check in checks]})
    return 1 if any(check.level == "problem" for check in checks) else 0


def run_checks(
    run: str | None, partition: str | None, days: float | None = None
) -> Iterator[Check]:
    """Yield all checks, in order."""
    known = None if run is None else runs.read_run_facts(Path(run), measured.longest_save_s(run))
    directory = Path(".") if known is None else known.run
    yield from files.check_file_system(directory, 0 if known is None else 2 * known.size_bytes)
    checks, found = scheduler.check_scheduler(partition or (known.partition if known else None))
    yield from checks
    yield from versions.check_versions()
    if known is not None:
        yield from runs.check_run(known, found)
        yield from runs.check_rights(known.run)
        yield from runs.check_purge(known.run, days)
        for each in _stale_files(known.directory):
            yield (problem if each.stops else warning)(
                "mess", f"{each.path}: {each.what}", each.todo
            )


def _stale_files(directory: Path) -> list[StaleFile]:
    """Return leftovers in the run; nothing if the run may be active."""
    if is_mirror(directory):
        return copies.find_incomplete_copies(directory)
    found = [_leftover_file(path) for path in leftovers.find_leftovers(directory)]
    root = _run_root(directory)
    return (
        []
        if root is not None and possibly_alive_attempts(root)
        else [*(stale_files.find_stale_files(root) if root else ()), *found]
    )


def _run_root(directory: Path) -> Path | None:
    """Return the run's directory for `directory`; None if there is no run yet."""
    try:
        return run_directory_of(options.locate_run(str(directory)))
    except NotFound:
        return directory if scan.is_dir(directory / "attempts") else None


def _leftover_file(path: Path) -> StaleFile:
    return StaleFile(path, "left by a `holdfast run` or `submit` that was killed", REMOVE)
