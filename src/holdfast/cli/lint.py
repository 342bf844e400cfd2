"""`holdfast lint`: where batch scripts behave otherwise than their author expects."""

from __future__ import annotations

import getpass
import os
import stat
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import click

from .. import disk, lint, scan
from ..batch import script as batch
from ..batch.sbatch_options import LocalSbatch
from ..batch.script import ScriptContext
from ..cluster import slurm
from ..errors import NotFound, UsageError
from ..legible import counted
from . import code_scanning, measured, options
from .code_scanning import ScanFinding
from .formatting import echo, print_report

LOSES_WORK = 11
_CODES = {"style": 0, "may lose work": 1, "loses work": LOSES_WORK}
_LEVELS = {"style": "note", "may lose work": "warning", "loses work": "error"}
_UNREAD = 2


@click.command()
@click.argument("scripts", metavar="SCRIPT...", nargs=-1, required=True, type=click.Path())
@click.option(
    "--run",
    metavar="RUN",
    shell_complete=options.complete_directories,
    help="Judge by what RUN's saves took.",
)
@click.option("--fix", is_flag=True, help="Write the fixes that need no decision into the scripts.")
@code_scanning.scanning
@options.as_json
def command(
    scripts: tuple[str, ...],
    run: str | None,
    fix: bool,
    sarif: Path | None,
    github: bool,
    as_json: bool,
) -> int:
    """Find, in Slurm batch scripts, signals that reach nobody, output that is lost, requeues that
    do not come.

    Each finding says what is lost, and its fix; nothing of a script is run. Folders are looked for
    where you are, as sbatch would. Options that Slurm 22.05 does not know are looked for in the
    help of this machine's sbatch. A comment "# holdfast: allow RULE" in a script switches a rule
    off. Exit 0: nothing but style, 1: work may be lost, 11: work is lost, 2: a file could not be
    read. With --fix, that of what is left to do.
    """
    code_scanning.require_outputs(as_json=as_json, github=github, sarif=sarif)
    if run is not None and not scan.is_dir(run):
        raise NotFound(f"{run}: no such directory; expected a run's")
    local = cache(slurm.local_sbatch)
    found: list[dict[str, Any]] = []
    unread: list[dict[str, str]] = []
    mended: list[str] = []
    for script in scripts:
        try:
            text, around = read_script(Path(script), run, local)
            if fix and (better := lint.apply_fixes(text, around)) != text:
                mode = stat.S_IMODE(os.stat(script).st_mode)
                disk.replace_with(
                    Path(os.path.realpath(script)),
                    [better.encode("utf-8", "surrogateescape")],
                    mode,
                )
                mended.append(script)
                text = better
            found += [{"file": script, **_as_json(each)} for each in lint.lint_script(text, around)]
        except (OSError, UsageError) as error:
            unread.append({"file": script, "why": getattr(error, "strerror", None) or str(error)})
    read = len(scripts) - len(unread)
    shown = [
        *(f"{script}: fixed" for script in mended),
        *(text for each in found for text in finding_lines(each)),
        f"{counted(len(found), 'finding') if found else 'no findings'} in {counted(read, 'file')}",
    ]
    for each in unread:
        echo(f"holdfast: {each['file']}: {each['why']}", err=True)
    print_report({"findings": found, "unread": unread, "fixed": mended}, shown, as_json=as_json)
    scanned = [
        ScanFinding(
            each["rule"],
            _LEVELS[each["severity"]],
            f"{each['what']}. {each['fix']}",
            each["file"],
            each["line"],
        )
        for each in found
    ]
    code_scanning.publish(scanned, ["```text", *shown, "```"], sarif=sarif, github=github)
    codes = [_CODES[each["severity"]] for each in found]
    return max([*codes, _UNREAD if unread else 0])


def finding_lines(finding: dict[str, Any]) -> list[str]:
    """Return one finding: in the format of compilers, and its fix below."""
    return [
        "{file}:{line}: {severity}: {what} [{rule}]".format(**finding),
        f"    fix: {finding['fix']}",
    ]


def read_script(
    script: Path, run: str | None, local: Callable[[], LocalSbatch]
) -> tuple[str, ScriptContext]:
    """Return the script in this file, and what is around it if it is submitted from here; `local`
    asks this machine's sbatch.

    Raises:
        OSError: the file cannot be read.
        UsageError: it is no batch script.
    """
    text = script.read_bytes().decode("utf-8", errors="surrogateescape")
    if "\0" in text or (
        "#SBATCH" not in text and batch.interpreter(text) not in batch.SHELLS | batch.C_SHELLS
    ):
        raise UsageError("not a batch script; its first line should be #!/bin/bash")
    parsed = batch.parse_script(text, ScriptContext())
    place = Path(parsed.chdir or ".")
    directory = run or parsed.run_directory
    return text, ScriptContext(
        exists=lambda folder: _exists(place / folder),
        read=lambda name: _read_text(place / name) or _read_text(script.parent / name),
        save_s=measured.longest_save_s(place / directory) if directory else None,
        user=getpass.getuser(),
        sbatch=local,
    )


def _as_json(finding: lint.Finding) -> dict[str, Any]:
    return {**finding._asdict(), "edits": [edit._asdict() for edit in finding.edits]}


def _exists(folder: Path) -> bool | None:
    """Whether a folder exists; None:
    it lies on a file system that this machine does not have, like /scratch.
    """
    elsewhere = folder.is_absolute() and not scan.is_dir(Path(*folder.parts[:2]))
    return None if elsewhere else scan.is_dir(folder)


def _read_text(path: Path) -> str:
    """Return a file's text; empty if it cannot be read."""
    try:
        return path.read_text(encoding="utf-8", errors="replace") if scan.is_file(path) else ""
    except OSError:
        return ""
