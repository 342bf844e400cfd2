"""What lint finds about starting again: of one job, and of an array that does the work in turn."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from .batch import Finding, Rule, Script, is_holdfast, line_of


def requeue_missing(script: Script) -> Iterator[Finding]:
    """Whether Slurm may start a job again depends on the site, unless the script says it."""
    if script.option("requeue", "no-requeue") is None:
        yield Finding(
            1,
            "requeue-missing",
            "neither --requeue nor --no-requeue",
            "whether Slurm starts the job again after a preemption or a lost node is then the site's choice",
            "write #SBATCH --requeue",
        )


def append_missing(script: Script) -> Iterator[Finding]:
    """Each start empties the output file, unless it is opened for appending."""
    mode = script.option("open-mode")
    if script.restartable and (mode is None or not (mode.value or "").startswith("a")):
        yield Finding(
            line_of(mode or script.option("requeue")),
            "append-missing",
            "no --open-mode=append",
            "each start of the job empties its output: what the earlier ones said is lost",
            "write #SBATCH --open-mode=append",
        )


def requeue_is_not_for_time(script: Script) -> Iterator[Finding]:
    """A job that ran out of time is never requeued by Slurm."""
    requeue = script.option("requeue")
    if requeue and requeue.name == "requeue" and not (script.requeues or script.chained or script.supervised):
        yield Finding(
            requeue.line,
            "requeue-is-not-for-time",
            "--requeue does nothing when the time is over",
            "Slurm starts a job again after a preemption or a lost node, never after its time limit",
            "exec holdfast run -- ..., which asks for it in time, or submit with holdfast submit",
        )


def whole_array_requeued(script: Script) -> Iterator[Finding]:
    """An array's own id, and that of its last task, mean all of its tasks."""
    for command in script.requeues if script.option("array") else ():
        target = command.words[-1]
        if not re.search(r"SLURM_ARRAY_JOB_ID\}?_\$", target):
            yield Finding(
                command.line,
                "whole-array-requeued",
                f"scontrol requeue {target} can requeue the whole array",
                "the id of an array is also the id of its last task: tasks that are done start again",
                "write: scontrol requeue ${SLURM_ARRAY_JOB_ID}_${SLURM_ARRAY_TASK_ID}",
            )


def chain_goes_on(script: Script) -> Iterator[Finding]:
    """Nobody tells the rest of an array that the work is done."""
    chained = script.chained
    ends = any(command.words[0] == "scancel" for command in script.everything)
    ends = ends or any(is_holdfast(command) and "--chain" in command.words for command in script.body)
    if chained and not ends:
        yield Finding(
            chained.line,
            "chain-goes-on",
            f"all tasks of --array={chained.value} start, also when the work is done",
            "Slurm does not know that a task finished it; those after it wait for nodes and start in vain",
            "use holdfast submit --chain, which cancels the rest",
        )


RULES: Sequence[Rule] = (
    requeue_missing,
    append_missing,
    requeue_is_not_for_time,
    whole_array_requeued,
    chain_goes_on,
)
