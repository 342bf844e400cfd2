"""Lint: where a Slurm batch script behaves otherwise than its author expects. Pure; nothing is run.

Each rule is one function from the parsed script to faults. The rule's name is the function's name with dashes. The
facts behind the rules were observed on Slurm 22.05 (docs/cluster.md); a rule from elsewhere names its source.
"""

from __future__ import annotations

import difflib
import os.path
import re
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from . import lint_signals, sbatch
from .batch import Around, Fault, Rule, Script, is_holdfast, program, read

# Such a comment, anywhere in the script, switches rules off.
ALLOWED = re.compile(r"^[^#\n]*#.*?holdfast: allow ([\w, -]+)", re.MULTILINE)


class Finding(NamedTuple):
    """What is wrong at a line, why, and what to write instead."""

    line: int
    rule: str
    what: str
    why: str
    fix: str


def lint(text: str, around: Around = Around()) -> list[Finding]:  # noqa: B008  a frozen value
    """Return the script's faults, sorted by line."""
    script = read(text, around)
    allowed = {name.strip() for match in ALLOWED.finditer(text) for name in match[1].split(",")}
    names = {rule: rule.__name__.replace("_", "-") for rule in RULES}
    found = {(rule, fault) for rule in RULES if names[rule] not in allowed for fault in rule(script)}
    return sorted(Finding(fault.line, names[rule], *fault[1:]) for rule, fault in found)


def requeue_missing(script: Script) -> Iterator[Fault]:
    """Without an explicit option, the site decides whether Slurm may start a job again."""
    if script.option("requeue", "no-requeue") is None:
        yield Fault(
            1,
            "neither --requeue nor --no-requeue",
            "whether Slurm starts the job again after a preemption or a lost node is then the site's choice",
            "write #SBATCH --requeue",
        )


def append_missing(script: Script) -> Iterator[Fault]:
    """Each start truncates the output file, unless it is opened for appending."""
    mode = script.option("open-mode")
    if script.restartable and (mode is None or not (mode.value or "").startswith("a")):
        yield Fault(
            script.line_of("open-mode") if mode else script.line_of("requeue"),
            "no --open-mode=append",
            "each start of the job empties its output: what the earlier ones said is lost",
            "write #SBATCH --open-mode=append",
        )


def requeue_is_not_for_time(script: Script) -> Iterator[Fault]:
    """Slurm never requeues a job that ran out of time."""
    requeue = script.option("requeue")
    if requeue and requeue.name == "requeue" and not (script.requeues or script.chained or script.supervised):
        yield Fault(
            requeue.line,
            "--requeue does nothing when the time is over",
            "Slurm starts a job again after a preemption or a lost node, never after its time limit",
            "exec holdfast run -- ..., which asks for it in time, or submit with holdfast submit",
        )


def whole_array_requeued(script: Script) -> Iterator[Fault]:
    """An array's own id, and that of its last task, refer to all of its tasks."""
    for command in script.requeues if script.option("array") else ():
        target = command.words[-1]
        if not re.search(r"SLURM_ARRAY_JOB_ID\}?_\$", target):
            yield Fault(
                command.line,
                f"scontrol requeue {target} can requeue the whole array",
                "the id of an array is also the id of its last task: tasks that are done start again",
                "write: scontrol requeue ${SLURM_ARRAY_JOB_ID}_${SLURM_ARRAY_TASK_ID}",
            )


def chain_goes_on(script: Script) -> Iterator[Fault]:
    """The script lets the remaining tasks of an array run after the work is done."""
    chained = script.chained
    ends = any(command.words[0] == "scancel" for command in script.everything)
    ends = ends or any(is_holdfast(command) and "--chain" in command.words for command in script.body)
    if chained and not ends:
        yield Fault(
            chained.line,
            f"all tasks of --array={chained.value} start, also when the work is done",
            "Slurm does not know that a task finished it; those after it wait for nodes and start in vain",
            "use holdfast submit --chain, which cancels the rest",
        )


def log_folder_missing(script: Script) -> Iterator[Fault]:
    """Slurm opens the output before the script runs, and does not create its folder."""
    for option in (script.option("output"), script.option("error")):
        folder = os.path.dirname(option.value or "") if option else ""
        if option and folder and ("%" in folder or not script.around.exists(folder)):
            late = any(command.words[0] == "mkdir" for command in script.body)
            yield Fault(
                option.line,
                f"{folder}/ does not exist" if "%" not in folder else f"nobody makes {folder}/",
                "Slurm makes no folder for a job's output, and the job fails without a word"
                + ("; mkdir in the script comes too late" if late else ""),
                f"mkdir -p {folder} before sbatch"
                if "%" not in folder
                else "let % stand in the file's name only, and mkdir before sbatch",
            )


def copy_cut_short(script: Script) -> Iterator[Fault]:
    """With --update, cp regards the incomplete copy of an interrupted start as a newer file and keeps it."""
    for command in script.body:
        words = program(command)
        if words[:1] == ("cp",) and any(re.fullmatch(r"--update|-[a-zA-Z]*u[a-zA-Z]*", word) for word in words):
            yield Fault(
                command.line,
                "cp --update keeps a copy that was cut short",
                "the torn file of an interrupted start is newer than its source, so it is never copied again",
                "let holdfast submit --stage do it, or use rsync --archive",
            )


def directive_too_late(script: Script) -> Iterator[Fault]:
    """Sbatch ignores options after the first command."""
    for line in script.late:
        yield Fault(
            line,
            "sbatch does not see this line",
            "it stops looking for #SBATCH at the first command",
            "move it above",
        )


def script_refused(script: Script) -> Iterator[Fault]:
    """Report the lines for which sbatch refuses the script."""
    for line, why in script.refused.items():
        yield Fault(line, why, "sbatch refuses the whole script", "write --option=value")
    for option in script.options:
        if not sbatch.is_known(option.name):
            meant = difflib.get_close_matches(option.name, sbatch.NAMES, n=1)
            yield Fault(
                option.line,
                f"--{option.name} is no option of sbatch",
                "sbatch refuses the whole script, unless a plugin of this cluster knows it",
                f"write --{meant[0]}" if meant else "remove it",
            )
    if "\r\n" in script.text:
        yield Fault(1, "DOS line breaks", "sbatch refuses the whole script", "sed -i 's/\\r$//' it")


RULES: Sequence[Rule] = (
    *lint_signals.RULES,
    requeue_missing,
    append_missing,
    requeue_is_not_for_time,
    whole_array_requeued,
    chain_goes_on,
    log_folder_missing,
    copy_cut_short,
    directive_too_late,
    script_refused,
)
