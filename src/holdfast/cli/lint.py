"""`holdfast lint`: where batch scripts behave otherwise than their author expects."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

import click

from ..cluster import batch, lint
from ..cluster.batch import Around
from ..errors import NotFound, UsageError
from . import measured, options
from .shown import report


@click.command()
@click.argument("scripts", metavar="SCRIPT...", nargs=-1, required=True, type=click.Path(exists=True, dir_okay=False))
@click.option("--run", metavar="RUN", shell_complete=options.directories, help="Judge by what RUN's saves took.")
@options.as_json
def command(scripts: tuple[str, ...], run: str | None, as_json: bool) -> int:
    """Find, in Slurm batch scripts, signals that reach nobody, output that is lost, requeues that do not come.

    Each finding has its reason and its fix; nothing is run. Folders are looked for where you are, as sbatch would. A
    comment "# holdfast: allow RULE" in a script switches a rule off. Exit 0: nothing found, 1: findings.
    """
    if run is not None and not os.path.isdir(run):
        raise NotFound(f"{run}: no such directory; expected a run's")
    found = [{"file": script, **each} for script in scripts for each in findings(Path(script), run)]
    report({"findings": found}, map(line, found), as_json=as_json)
    return 1 if found else 0


def line(finding: dict[str, Any]) -> str:
    """Return one finding in the format of compilers."""
    return "{file}:{line}: {what}: {why}; {fix} [{rule}]".format(**finding)


def findings(script: Path, run: str | None = None) -> list[dict[str, Any]]:
    """Return the faults of the script in this file, if it is submitted from here."""
    text = script.read_text(encoding="utf-8", errors="replace")
    interpreter = re.match(r"#![ \t]*(\S+)(?:[ \t]+(\S+))?", text)
    if interpreter is None or not (interpreter[2] or interpreter[1]).endswith("sh"):
        raise UsageError(f"{script}: not a shell script; its first line should be #!/bin/bash")
    read = batch.read(text, Around())
    place = Path(read.chdir or ".")
    directory = run or read.directory
    around = Around(
        exists=lambda folder: (place / folder).is_dir(),
        read=lambda name: _text(place / name) or _text(script.parent / name),
        save_s=measured.save_s(place / directory) if directory else None,
    )
    return [each._asdict() for each in lint.lint(text, around)]


def _text(path: Path) -> str:
    """Return a file's text; empty if it cannot be read."""
    try:
        return path.read_text(encoding="utf-8", errors="replace") if path.is_file() else ""
    except OSError:
        return ""
