"""`holdfast lint`: where batch scripts behave otherwise than their author expects."""

from __future__ import annotations

import getpass
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import click

from .. import lint, scan
from ..batch import script as batch
from ..batch.sbatch_options import Local
from ..batch.script import ScriptContext
from ..cluster import slurm
from ..errors import NotFound, UsageError
from . import measured, options
from .formatting import echo, report

LOSES_WORK = 11
_CODES = {"style": 0, "may lose work": 1, "loses work": LOSES_WORK}
_UNREAD = 2


@click.command()
@click.argument("scripts", metavar="SCRIPT...", nargs=-1, required=True, type=click.Path())
@click.option("--run", metavar="RUN", shell_complete=options.directories, help="Judge by what RUN's saves took.")
@options.as_json
def command(scripts: tuple[str, ...], run: str | None, as_json: bool) -> int:
    """Find, in Slurm batch scripts, signals that reach nobody, output that is lost, requeues that do not come.

    Each finding says what is lost, and its fix; nothing of a script is run. Folders are looked for where you are, as
    sbatch would. Options that Slurm 22.05 does not know are looked for in the help of this machine's sbatch.
    A comment "# holdfast: allow RULE" in a script switches a rule off. Exit 0: nothing but style, 1: work may be lost,
    11: work is lost, 2: a file could not be read.
    """
    if run is not None and not scan.is_dir(run):
        raise NotFound(f"{run}: no such directory; expected a run's")
    local = cache(slurm.local_sbatch)
    found: list[dict[str, Any]] = []
    unread: list[dict[str, str]] = []
    for script in scripts:
        try:
            found += [{"file": script, **each} for each in findings(Path(script), run, local)]
        except (OSError, UsageError) as error:
            unread.append({"file": script, "why": getattr(error, "strerror", None) or str(error)})
    report({"findings": found, "unread": unread}, [text for each in found for text in lines(each)], as_json=as_json)
    for each in unread:
        echo(f"holdfast: {each['file']}: {each['why']}", err=True)
    codes = [_CODES[each["severity"]] for each in found]
    return max([*codes, _UNREAD if unread else 0])


def lines(finding: dict[str, Any]) -> list[str]:
    """Return one finding: in the format of compilers, and its fix below."""
    return ["{file}:{line}: {severity}: {what} [{rule}]".format(**finding), f"    fix: {finding['fix']}"]


def findings(script: Path, run: str | None, local: Callable[[], Local]) -> list[dict[str, Any]]:
    """Return the faults of the script in this file, if it is submitted from here; `local` asks this machine's sbatch.

    Raises:
        OSError: the file cannot be read.
        UsageError: it is no batch script.
    """
    text = script.read_bytes().decode("utf-8", errors="replace")
    if "\0" in text or ("#SBATCH" not in text and batch.interpreter(text) not in batch.SHELLS | batch.C_SHELLS):
        raise UsageError("not a batch script; its first line should be #!/bin/bash")
    read = batch.read(text, ScriptContext())
    place = Path(read.chdir or ".")
    directory = run or read.directory
    around = ScriptContext(
        exists=lambda folder: _exists(place / folder),
        read=lambda name: _text(place / name) or _text(script.parent / name),
        save_s=measured.save_s(place / directory) if directory else None,
        user=getpass.getuser(),
        sbatch=local,
    )
    return [_as_json(each) for each in lint.lint(text, around)]


def _as_json(finding: lint.Finding) -> dict[str, Any]:
    return {**finding._asdict(), "edits": [edit._asdict() for edit in finding.edits]}


def _exists(folder: Path) -> bool | None:
    """Whether a folder exists; None: it lies on a file system that this machine does not have, like /scratch."""
    elsewhere = folder.is_absolute() and not scan.is_dir(Path(*folder.parts[:2]))
    return None if elsewhere else scan.is_dir(folder)


def _text(path: Path) -> str:
    """Return a file's text; empty if it cannot be read."""
    try:
        return path.read_text(encoding="utf-8", errors="replace") if scan.is_file(path) else ""
    except OSError:
        return ""
