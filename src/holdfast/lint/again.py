"""Lint's rules about a job's next start: whether it happens, and what it finds."""

from __future__ import annotations

import os.path
import re
from collections.abc import Iterator, Sequence

from ..batch import sbatch, work
from ..batch.bash import ShellCommand
from ..batch.script import BatchScript, Trap
from ..batch.variables import fill_variables
from ..batch.work import program_words
from .fix import Edit, LintFix, replace_in_line
from .rule import Fault, Rule
from .work import in_pieces

_ANEW = re.compile(r"--(from[-_]scratch|overwrite|no[-_]resume|restart[-_]anew)")
_BY_STATUS = (
    "the job starts again by the program's status alone: "
    "after each crash, or after its end, for ever"
)
_COUNTED = re.compile(r"\(\(|\blet\b|-l[te]\b|-g[te]\b|RESTART_COUNT")
_OWN = re.compile(
    r"\$\{?(0|BASH_SOURCE|SLURM_JOB_NAME)|(^|\/)(job|run|submit|script|batch)|resub|chain|restart"
)
_ALWAYS = "the job starts again also when the work is done, and after each crash: for ever"
_COUNT = LintFix(
    "ask first whether the work is done, and count the starts; or use: exec holdfast run -- ..."
)


def requeue_refused(script: BatchScript) -> Iterator[Fault]:
    """Slurm does not requeue a job that was submitted with --no-requeue,
    also when the job asks for it.
    """
    said = script.option("requeue", "no-requeue")
    for command in script.requeue_commands if said and said.name == "no-requeue" else ():
        line = script.text.split("\n")[said.line - 1] if said else ""
        fix = LintFix(
            "write --requeue in place of --no-requeue",
            _replace_edit(script, said.line if said else 1, line),
        )
        yield Fault(
            command.line,
            "`scontrol requeue` is refused: the job was submitted with --no-requeue",
            fix,
        )


def _replace_edit(script: BatchScript, number: int, line: str) -> tuple[Edit, ...]:
    start = sum(len(each) + 1 for each in script.text.split("\n")[: number - 1])
    place = line.find("--no-requeue")
    return (
        (Edit(start + place, start + place + len("--no-requeue"), "--requeue"),)
        if place >= 0
        else ()
    )


def requeue_after_cancel(script: BatchScript) -> Iterator[Fault]:
    """Scancel sends SIGTERM: a job that requeues itself at SIGTERM cannot be cancelled."""
    for trap in script.traps:
        if "TERM" in trap.signals and _starts_always(script, trap):
            yield Fault(
                trap.line,
                "this trap requeues at every SIGTERM, "
                "also at that of scancel: the job cannot be cancelled",
                LintFix("trap USR1 in place of TERM, and ask for it: #SBATCH --signal=B:USR1@300"),
            )


def _starts_always(script: BatchScript, trap: Trap) -> bool:
    """Whether the handler always starts the job again, whatever has happened."""
    return any(
        _starts_another_job(each) and not each.joined and not _is_conditional(each)
        for each in script.handler_commands(trap)
    )


def _submits_itself(script: BatchScript, command: ShellCommand) -> bool:
    """Whether `sbatch` submits this very script,
    as far as its name tells; another one is a next stage.
    """
    argument = next((word for word in command.words[1:] if not word.startswith("-")), "$0")
    stem = os.path.splitext(os.path.basename(argument))[0]
    option = script.option("job-name")
    about = [
        (option.value if option else None) or "",
        *(program_words(script.main_program) if script.main_program else ()),
    ]
    named = any(stem and stem in os.path.basename(word) for word in about)
    return command.words[0] != "sbatch" or named or _OWN.search(argument) is not None


def _is_conditional(command: ShellCommand) -> bool:
    return any(each.kind in ("if", "case", "loop") for each in command.within)


def requeue_always(script: BatchScript) -> Iterator[Fault]:
    """A requeue or resubmission without a condition, or after each failure, never ends."""
    chief = script.main_program
    for command in script.commands_after(chief):
        if _starts_another_job(command) and _submits_itself(script, command):
            if not (command.joined or _is_conditional(command)):
                yield Fault(command.line, _ALWAYS, _COUNT)
            elif chief is not None and _depends_on_status_only(script, chief, command):
                yield Fault(command.line, _BY_STATUS, _COUNT)
    for trap in script.traps:
        if {"EXIT", "0"} & set(trap.signals) and _starts_always(script, trap):
            yield Fault(trap.line, _ALWAYS, _COUNT)


def resubmit_too_late(script: BatchScript) -> Iterator[Fault]:
    """Commands after the long program do not run when the time limit ends the job."""
    chief = script.main_program
    for command in (
        script.commands_after(chief) if chief and not _stops_in_time(script, chief) else ()
    ):
        if (
            command.words[0] == "sbatch"
            and (command.joined or command.within)
            and chief
            and not chief.loop
        ):
            yield Fault(
                command.line,
                "this is not reached at the time limit: "
                f"{work.program_name(chief)} is still at work then",
                LintFix(
                    "submit the successor before it: sbatch --dependency=afterany:$SLURM_JOB_ID ..."
                ),
            )


def _stops_in_time(script: BatchScript, chief: ShellCommand) -> bool:
    """Whether the program stops by itself before the job's time is over."""
    return work.has_own_time_limit(chief) and not any(stops_too_late(script))


def chain_breaks(script: BatchScript) -> Iterator[Fault]:
    """A job that ran out of time does not satisfy afterok."""
    for command in script.commands_as_run:
        own = next(
            (word for word in command.words if re.search(r"afterok:\$\{?SLURM_JOB", word)), None
        )
        if command.words[0] == "sbatch" and own:
            place = script.text.find("afterok", command.start, command.end)
            yield Fault(
                command.line,
                "afterok is not fulfilled when this job runs out of time: "
                "the next one waits for ever",
                LintFix(
                    "write afterany", (Edit(place, place + 7, "afterany"),) if place >= 0 else ()
                ),
            )
    waits, chief = script.option("dependency"), script.main_program
    goes_on = chief and any(
        re.search(r"resum|restart|hotstart|-cpi|ckpt|checkpoint", word) for word in chief.words
    )
    if waits and goes_on and (waits.value or "").startswith("afterok"):
        yield Fault(
            waits.line,
            "afterok is not fulfilled when the job before "
            "runs out of time: this one waits for ever",
            LintFix("write afterany", replace_in_line(script, waits.line, "afterok", "afterany")),
        )


def _starts_another_job(command: ShellCommand) -> bool:
    return command.words[:2] == ("scontrol", "requeue") or command.words[0] == "sbatch"


def fixed_resume(script: BatchScript) -> Iterator[Fault]:
    """A start that always resumes from one named checkpoint loses everything that was saved
    later.
    """
    chief, known = script.main_program, script.known_variables
    if chief is None or not _asks_for_restarts(script):
        return
    words = program_words(chief)
    for place, word in enumerate(words):
        option, _, value = word.partition("=")
        value = fill_variables(value or next(iter(words[place + 1 : place + 2]), ""), known)
        named = re.search(
            r"(step|epoch|iter|checkpoint|ckpt|global_step)[-_=]?\d+", os.path.basename(value)
        )
        if (
            re.match(r"--?(resume|restart|restore|load|from|init|continue|checkpoint|ckpt)", option)
            and named
        ):
            yield Fault(
                chief.line,
                f"each start goes on from {os.path.basename(value)}: "
                "what was saved after it is not used",
                LintFix("let the program take the newest checkpoint"),
            )


def no_resume(script: BatchScript) -> Iterator[Fault]:
    """A restarted job begins from scratch, unless its command resumes from a checkpoint."""
    chief = script.long_main_program
    if chief is None or in_pieces(script, chief):
        return
    words = program_words(chief)
    anew = next((word for word in words if _ANEW.match(word)), None)
    mdrun = (
        any(os.path.basename(word).startswith("mdrun") for word in words[:3])
        and "-cpi" not in words
    )
    dmtcp = os.path.basename(words[0]) == "dmtcp_launch" and "dmtcp_restart" not in script.text
    if mdrun or ((anew or dmtcp) and _asks_for_restarts(script)):
        yield Fault(
            chief.line,
            f"{anew or ('mdrun without -cpi' if mdrun else words[0])} "
            "begins anew at each start of this job",
            LintFix(
                "add -cpi state.cpt -append"
                if mdrun and not anew
                else "go on from the newest checkpoint"
            ),
        )
    for command in script.commands_as_run:
        if command.words[0] == "decomposePar" and "-force" in command.words:
            what = (
                "decomposePar -force removes what the last "
                "start has written into the processors' folders"
            )
            yield Fault(
                command.line, what, LintFix("decompose once: [ -d processor0 ] || decomposePar")
            )


def _asks_for_restarts(script: BatchScript) -> bool:
    """Whether the script asks for several starts."""
    said = script.option("requeue", "no-requeue")
    again = any(command.words[0] == "sbatch" for command in script.all_commands)
    return bool(
        (said and said.name == "requeue") or script.requeue_commands or script.chain_option or again
    )


def endless_loop(script: BatchScript) -> Iterator[Fault]:
    """A program that fails at once is started for ever."""
    if _COUNTED.search(script.text) or re.search(r"\b(break|exit)\b", script.text):
        return
    lines = script.text.split("\n")
    for command in script.commands_as_run:
        repeats = command.loop and re.match(r"\s*(until|while\s+!)\s", lines[command.line - 1])
        if repeats and work.is_work(command):
            yield Fault(
                command.line,
                f"{work.program_name(command)} is started again after each failure, for ever",
                LintFix("count the starts, or use: exec holdfast run --retries 3 -- ..."),
            )


def stops_too_late(script: BatchScript) -> Iterator[Fault]:
    """A limit of the program's own must end before that of the job, and leave it time to save."""
    chief, limit_s = script.main_program, sbatch.time_limit_s(script.options)
    words = chief.words if chief else ()
    hours = next((words[place + 1] for place, word in enumerate(words[:-1]) if word == "-maxh"), "")
    ends_s = _timeout_s(words)
    kills = re.search(r"timeout .*(-s|--signal)[ =]?(KILL|9|SIGKILL)", " ".join(words))
    if chief and re.fullmatch(r"\d+(\.\d+)?", hours) and float(hours) * 3600 >= limit_s:
        what = (
            f"-maxh {hours} is not before the time limit of {limit_s / 3600:g} hours: it never acts"
        )
        yield Fault(chief.line, what, LintFix(f"write -maxh {limit_s / 3600 * 0.98:.3g}"))
    elif chief and ends_s is not None and ends_s >= limit_s:
        what = "`timeout` is not before the job's time limit: it never acts"
        yield Fault(chief.line, what, LintFix("let it end a few minutes before the limit"))
    elif chief and ends_s is not None and ends_s < limit_s / 10 < float("inf") and not chief.loop:
        what = (
            f"`timeout` ends the program after {ends_s:.0f} s of a job of {limit_s / 3600:g} hours"
        )
        yield Fault(chief.line, what, LintFix("give it a unit: timeout 23h"))
    elif chief and kills:
        what = "`timeout` sends SIGKILL: the program cannot save"
        yield Fault(
            chief.line, what, LintFix("let it send TERM, and KILL later: timeout -k 300 ...")
        )


def _timeout_s(words: Sequence[str]) -> float | None:
    """The seconds that `timeout` allows; None: it is not used."""
    if "timeout" not in words[:4]:
        return None
    units = {"": 1, "s": 1, "m": 60, "h": 3600, "d": 86400}
    after = words[words.index("timeout") + 1 :]
    spans = (match for word in after if (match := re.fullmatch(r"(\d+(?:\.\d+)?)([smhd]?)", word)))
    found = [float(match[1]) * units[match[2]] for match in spans]
    return (
        found[-1]
        if found[:1] and words[words.index("timeout") + 1] in ("-k", "-s")
        else next(iter(found), None)
    )


def pipe_hides_status(script: BatchScript) -> Iterator[Fault]:
    """The status of a pipeline is that of its last command."""
    chief = script.main_program
    if chief is None or not chief.piped or "pipefail" in script.text:
        return
    reader = next(
        (each for each in script.commands_as_run if each.piped and each.start > chief.start), None
    )
    asked = script.next_command(reader) if reader else None
    if reader and reader.words[0] == "tee" and asked and (reader.joined or "$?" in asked.words):
        yield Fault(
            chief.line,
            "the status asked for is that of tee: "
            f"a failure of {work.program_name(chief)} goes unseen",
            LintFix("write before it: set -o pipefail"),
        )


def _depends_on_status_only(
    script: BatchScript, chief: ShellCommand, command: ShellCommand
) -> bool:
    """Whether only the program's success or failure decides on another start,
    and nothing is counted.
    """
    if _COUNTED.search(script.text):
        return False
    between = script.text[chief.end : command.start]
    if chief.joined and command.joined and between.strip() in ("||", "&&"):
        return True
    branches = {each.number for each in command.within if each.kind == "if"}
    asked = [
        each
        for each in script.commands_as_run
        for place in each.within
        if place.number in branches and place.part == 0
    ]
    return any(
        each == chief or re.search(r"\$\S+ (-ne|!=|-eq|==?) 0\b", " ".join(each.words))
        for each in asked
    )


RULES: Sequence[Rule] = (
    Rule("may lose work", requeue_refused),
    Rule("may lose work", requeue_after_cancel),
    Rule("may lose work", requeue_always),
    Rule("may lose work", resubmit_too_late),
    Rule("may lose work", chain_breaks),
    Rule("loses work", fixed_resume),
    Rule("may lose work", no_resume),
    Rule("may lose work", endless_loop),
    Rule("may lose work", stops_too_late),
    Rule("loses work", pipe_hides_status),
)
