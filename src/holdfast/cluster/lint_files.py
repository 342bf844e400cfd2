"""What lint finds about files: those that a job needs, and the script itself."""

from __future__ import annotations

import difflib
import os.path
import re
from collections.abc import Iterator, Sequence

from . import sbatch
from .batch import Finding, Rule, Script, program


def log_folder_missing(script: Script) -> Iterator[Finding]:
    """Slurm opens the output before the script runs, and makes no folder for it."""
    for option in (script.option("output"), script.option("error")):
        folder = os.path.dirname(option.value or "") if option else ""
        if option and folder and ("%" in folder or not script.around.exists(folder)):
            late = any(command.words[0] == "mkdir" for command in script.body)
            yield Finding(
                option.line,
                "log-folder-missing",
                f"{folder}/ does not exist" if "%" not in folder else f"nobody makes {folder}/",
                "Slurm makes no folder for a job's output, and the job fails without a word"
                + ("; mkdir in the script comes too late" if late else ""),
                f"mkdir -p {folder} before sbatch"
                if "%" not in folder
                else "let % stand in the file's name only, and mkdir before sbatch",
            )


def copy_cut_short(script: Script) -> Iterator[Finding]:
    """With --update, cp takes the torn copy of an interrupted start for a newer file."""
    for command in script.body:
        words = program(command)
        if words[:1] == ("cp",) and any(re.fullmatch(r"--update|-[a-zA-Z]*u[a-zA-Z]*", word) for word in words):
            yield Finding(
                command.line,
                "copy-cut-short",
                "cp --update keeps a copy that was cut short",
                "the torn file of an interrupted start is newer than its source, so it is never copied again",
                "let holdfast submit --stage do it, or use rsync --archive",
            )


def directive_too_late(script: Script) -> Iterator[Finding]:
    """Nothing after the first command is seen by sbatch."""
    for line in script.late:
        yield Finding(
            line,
            "directive-too-late",
            "sbatch does not see this line",
            "it stops looking for #SBATCH at the first command",
            "move it above",
        )


def script_refused(script: Script) -> Iterator[Finding]:
    """What sbatch does not take at all."""
    for line, why in script.refused.items():
        yield Finding(line, "script-refused", why, "sbatch refuses the whole script", "write --option=value")
    for option in script.options:
        if not sbatch.is_known(option.name):
            meant = difflib.get_close_matches(option.name, sbatch.NAMES, n=1)
            yield Finding(
                option.line,
                "script-refused",
                f"--{option.name} is no option of sbatch",
                "sbatch refuses the whole script, unless a plugin of this cluster knows it",
                f"write --{meant[0]}" if meant else "remove it",
            )
    if "\r\n" in script.text:
        yield Finding(1, "script-refused", "DOS line breaks", "sbatch refuses the whole script", "sed -i 's/\\r$//' it")


RULES: Sequence[Rule] = (
    log_folder_missing,
    copy_cut_short,
    directive_too_late,
    script_refused,
)
