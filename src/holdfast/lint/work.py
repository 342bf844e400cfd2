"""Lint's rules about the program that a job is for:
whether it can save, and what happens at its next start.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from ..batch import work
from ..batch.bash import ShellCommand
from ..batch.script import BatchScript, is_exec, is_holdfast
from ..batch.work import program_words
from .fix import Edit, LintFix, replace_shell, supervise
from .rule import Fault, Rule

_TASK = "${SLURM_ARRAY_JOB_ID}_${SLURM_ARRAY_TASK_ID}"


def no_grace(script: BatchScript) -> Iterator[Fault]:
    """With proctrack/cgroup a plain child gets no signal:
    SIGTERM ends the shell, and the child is killed at once.
    """
    chief = _work_without_notice(script)
    if chief is None or is_exec(chief) or program_words(chief)[0] == "srun":
        return
    if not any(trap.handler and "TERM" in trap.signals for trap in script.traps):
        yield Fault(
            chief.line,
            f"{work.program_name(chief)} is killed without a signal "
            "when the job's time is over: it cannot save",
            supervise(script, chief),
        )


def no_notice(script: BatchScript) -> Iterator[Fault]:
    """A program that gets SIGTERM at its limit has KillWait seconds to save, 30 by default."""
    chief = _work_without_notice(script)
    if (
        chief is not None
        and (is_exec(chief) or program_words(chief)[0] == "srun")
        and not script.traps
    ):
        yield Fault(
            chief.line,
            f"{work.program_name(chief)} hears of the job's end 30 s "
            "before it is killed: that may be too short for a save",
            LintFix(
                "let it save at SIGUSR1, and ask for that: "
                "#SBATCH --signal=USR1@300; or: exec holdfast run -- ..."
            ),
        )


def _work_without_notice(script: BatchScript) -> ShellCommand | None:
    """Return the work of a long job that asks for no notice, unless it would lose little."""
    chief = script.long_main_program
    if (
        chief is None
        or is_holdfast(chief)
        or script.signal
        or work.has_own_time_limit(chief)
        or in_pieces(script, chief)
    ):
        return None
    return chief if script.option("time") or work.looks_long(chief) else None


def in_pieces(script: BatchScript, command: ShellCommand) -> bool:
    """Whether the work is a loop over pieces which skips pieces that are done."""
    passes_over = r"--resume-failed|(^| )(snakemake|cromwell) |nextflow .*-resume"
    if re.search(passes_over, " ".join(command.words)):
        return True
    within = [each.words[0] for each in script.commands_as_run if each.loop]
    asked = command.joined and bool({"[", "[[", "test"} & set(within))
    return command.loop and ("continue" in within or asked)


def holdfast_not_exec(script: BatchScript) -> Iterator[Fault]:
    """A supervisor that is a child of the batch shell is killed with it."""
    for command in script.commands_as_run:
        alone = not command.background or not script.traps
        if is_holdfast(command) and not is_exec(command) and not command.piped and alone:
            yield Fault(
                command.line,
                "without `exec` before it, `holdfast run` is "
                "killed together with the shell: nothing is saved",
                replace_shell(script, command),
            )


def holdfast_piped(script: BatchScript) -> Iterator[Fault]:
    """A supervisor in a pipeline is a child of the batch shell, and its reader dies first."""
    for command in script.commands_as_run:
        if is_holdfast(command) and command.piped:
            yield Fault(
                command.line,
                "`holdfast run` in a pipe is killed together with the shell: nothing is saved",
                LintFix(
                    "take the pipe out and write: exec holdfast run ... "
                    "> log 2>&1 (--output keeps it anyway)"
                ),
            )


def after_exec(script: BatchScript) -> Iterator[Fault]:
    """What follows an `exec` never runs."""
    for command in script.commands_as_run:
        conditional = command.piped or command.background or command.joined
        inner = any(each.kind in ("(", "case", "if") for each in command.within)
        if not is_exec(command) or conditional or inner:
            continue
        later = script.next_command(command)
        if later is not None:
            yield Fault(
                later.line,
                f"this never runs: `exec` in line {command.line} replaces the shell",
                LintFix(
                    "put both into work.sh below the line: trap 'exit 75' TERM; exec that here"
                ),
            )
            return


def array_shares_run(script: BatchScript) -> Iterator[Fault]:
    """Each task of an array needs its own run. Without --run each has one."""
    directory = script.run_directory
    if (
        script.array_option is None
        or script.chain_option
        or directory is None
        or _differs_per_task(directory)
    ):
        return
    for command in script.commands_as_run:
        if is_holdfast(command) and "--chain" not in command.words:
            new = f"{directory}-$SLURM_ARRAY_TASK_ID"
            place = script.text.find(directory, command.start, command.end)
            yield Fault(
                command.line,
                f"all tasks of the array use the run {directory}: all but one are refused",
                LintFix(
                    f"write --run {new}",
                    (Edit(place, place + len(directory), new),) if place >= 0 else (),
                ),
            )


def _differs_per_task(directory: str) -> bool:
    """Whether the name differs from task to task."""
    return "$" in re.sub(r"\$\{?SLURM_ARRAY_JOB_ID\}?", "", directory)


def whole_array_requeued(script: BatchScript) -> Iterator[Fault]:
    """An array's own id, and that of its last task, refer to all of its tasks."""
    for command in script.requeue_commands if script.array_option else ():
        target = command.words[-1]
        if not re.search(r"SLURM_ARRAY_JOB_ID\}?_\$", target):
            yield Fault(
                command.line,
                f"`scontrol requeue {target}` can start the whole array again: "
                "its last task has the array's id",
                LintFix(f"write: scontrol requeue {_TASK}", _requeue_task(script, command, target)),
            )


def _requeue_task(script: BatchScript, command: ShellCommand, target: str) -> tuple[Edit, ...]:
    lines = script.text.split("\n")
    start = sum(len(line) + 1 for line in lines[: command.line - 1])
    place = script.text.find(target, start, start + len(lines[command.line - 1]))
    return (
        (Edit(place, place + len(target), _TASK),) if place >= 0 and target.startswith("$") else ()
    )


def chain_goes_on(script: BatchScript) -> Iterator[Fault]:
    """The script lets the remaining tasks of an array run after the work is done."""
    chained = script.chain_option
    ends = any(command.words[0] in ("scancel", "exit") for command in script.all_commands)
    ends = ends or any(
        is_holdfast(command) and "--chain" in command.words for command in script.commands_as_run
    )
    tasks = any(
        "SLURM_ARRAY_TASK_ID" in word for command in script.all_commands for word in command.words
    )
    asks = any(
        each.words[0] in ("[", "[[", "test") and {"-e", "-f", "-s"} & set(each.words)
        for each in script.commands_as_run
    )
    if chained and not ends and not tasks and not asks:
        yield Fault(
            chained.line,
            f"all tasks of --array={chained.value} start, "
            "also when an earlier one has finished the work",
            LintFix("use holdfast submit --chain, which cancels the rest"),
        )


def copy_cut_short(script: BatchScript) -> Iterator[Fault]:
    """With --update,
    cp regards the incomplete copy of an interrupted start as a newer file and keeps it.
    """
    for command in script.commands_as_run:
        words = program_words(command)
        option = next(
            (word for word in words if re.fullmatch(r"--update|-[a-zA-Z]*u[a-zA-Z]*", word)), None
        )
        if words[:1] == ("cp",) and option:
            yield Fault(
                command.line,
                "cp --update keeps a copy that an interrupted "
                "start has cut short: it is newer than the source",
                LintFix("use rsync --archive, or holdfast submit --stage"),
            )


RULES: Sequence[Rule] = (
    Rule("may lose work", no_grace, once=True),
    Rule("may lose work", no_notice, once=True),
    Rule("loses work", holdfast_not_exec),
    Rule("loses work", holdfast_piped),
    Rule("may lose work", after_exec),
    Rule("loses work", array_shares_run),
    Rule("loses work", whole_array_requeued),
    Rule("may lose work", chain_goes_on),
    Rule("may lose work", copy_cut_short),
)
