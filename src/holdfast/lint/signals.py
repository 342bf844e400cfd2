"""Lint's rules about signals: which process receives them, and whether in time."""

from __future__ import annotations

import os.path
import re
from collections.abc import Iterator, Sequence

from ..batch import sbatch, work
from ..batch.bash import ShellCommand
from ..batch.sbatch import SignalOption
from ..batch.script import BatchScript, Trap, is_exec, is_holdfast, starts_program
from ..batch.work import program_words
from ..interval import LATE_S, exit_time_s, notice_time_s
from .fix import LintFix, change_option_value, insert_before_line, supervise
from .rule import Fault, Rule

TORCHRUN_GRACE_S = 30  # Source: torch.distributed.run, --shutdown-timeout
SET_UP_S = 600  # a set-up is not longer
LEAD_S = 300  # a notice that most programs can save in
# they handle no signal
_DEAF = re.compile(r"(.*/)?(lmp\w*|lammps|vasp\w*|namd\d?|pw\.x|g16|orca)$")
_SLOW = ". conda cp curl git mamba micromamba ml module pip rsync sleep source tar unzip uv wget"
SLOW = frozenset(_SLOW.split())  # commands that take long


def notice_unheard(script: BatchScript) -> Iterator[Fault]:
    """With --signal=B: only the batch shell receives the signal."""
    signal, chief = script.signal, script.main_program
    if (
        signal is None
        or chief is None
        or not signal.batch
        or is_exec(chief)
        or _trapped(script, signal.name)
    ):
        return
    in_steps = program_words(chief)[0] == "srun"
    yield Fault(
        script.line_of("signal"),
        f"SIG{signal.name} goes to the batch shell alone, "
        f"which has no trap and dies: {work.program_name(chief)} is killed",
        change_option_value(script, "signal", f"{signal.name}@{signal.lead_s}")
        if in_steps
        else supervise(script, chief),
    )


def notice_to_no_step(script: BatchScript) -> Iterator[Fault]:
    """Without B: only steps of srun receive the signal."""
    signal, chief = script.signal, script.main_program
    if signal is None or chief is None or signal.batch or has_steps(script):
        return
    new = f"B:{signal.name}@{signal.lead_s}"
    heard = is_exec(chief) or _trapped(script, signal.name)
    yield Fault(
        script.line_of("signal"),
        f"--signal={signal.name} goes to srun steps alone, "
        "and this script starts none: nobody gets it",
        change_option_value(script, "signal", new)
        if heard
        else LintFix(f"write --signal={new}; {supervise(script, chief).text}"),
    )


def notice_in_set_up(script: BatchScript) -> Iterator[Fault]:
    """Until the program handles signals, the notice reaches the shell."""
    signal, chief = script.signal, script.main_program
    if (
        signal is None
        or chief is None
        or not signal.batch
        or not (is_exec(chief) and script.is_supervised)
    ):
        return
    if any(signal.name in trap.signals and trap.line <= chief.line for trap in script.traps):
        return
    if sbatch.time_limit_s(script.options) - signal.lead_s > SET_UP_S:
        return
    slow = next(
        (
            command
            for command in script.commands_as_run
            if program_words(command)[:1] and program_words(command)[0] in SLOW
        ),
        None,
    )
    if slow is not None and slow.line < chief.line:
        yield Fault(
            slow.line,
            f"SIG{signal.name} during `{program_words(slow)[0]}` kills the shell, "
            "and the job fails",
            insert_before_line(script, slow.line, f"trap '' {signal.name}"),
        )


def has_steps(script: BatchScript) -> bool:
    return any(starts_program(command, "srun") for command in script.commands_as_run)


def signal_twice(script: BatchScript) -> Iterator[Fault]:
    """Of two --signal options the last one counts."""
    given = [option for option in script.options if option.name == "signal"]
    if len(given) > 1 and given[0].value != given[-1].value:
        yield Fault(
            given[0].line,
            f"--signal={given[0].value} does nothing: "
            f"Slurm sends one signal, that of line {given[-1].line}",
            LintFix(
                "keep one --signal line; for srun steps and "
                "the batch shell alike, let a trap hand it on"
            ),
        )


def srun_term(script: BatchScript) -> Iterator[Fault]:
    """Srun answers SIGTERM with SIGKILL to its tasks. Tried on Slurm 22.05."""
    signal, chief = script.signal, script.main_program
    if chief is None or program_words(chief)[0] != "srun":
        return
    told = chief.background and any(_kills_with_term(script, trap) for trap in script.traps)
    if told or (signal and signal.batch and signal.name == "TERM" and is_exec(chief)):
        new = (
            f"write --signal=TERM@{signal.lead_s if signal else LEAD_S}: "
            "without B: it goes past srun to the tasks"
        )
        yield Fault(
            chief.line,
            "srun gets this SIGTERM and kills its tasks at once: they cannot save",
            LintFix(new),
        )


def signal_kills(script: BatchScript) -> Iterator[Fault]:
    """Programs without a handler die of the notice. Source: docs/apps.md, tried on LAMMPS."""
    signal, chief = script.signal, script.main_program
    reached = chief and (
        is_exec(chief) if signal and signal.batch else program_words(chief)[0] == "srun"
    )
    deaf = (
        next((word for word in program_words(chief) if _DEAF.match(word)), None)
        if chief and reached
        else None
    )
    if signal and deaf:
        yield Fault(
            script.line_of("signal"),
            f"{os.path.basename(deaf)} has no handler for "
            f"SIG{signal.name} and dies of it, {signal.lead_s} s too early",
            LintFix(
                "take --signal out and let the program stop itself, "
                "or: exec holdfast run --app NAME -- ..."
            ),
        )


def torchrun_grace(script: BatchScript) -> Iterator[Fault]:
    """Torchrun kills its processes 30 s after it signalled them to stop."""
    if (
        script.signal is None
        or script.signal.lead_s <= TORCHRUN_GRACE_S
        or not _may_be_short_for_save(script)
    ):
        return
    for command in script.commands_as_run:
        if starts_program(command, "torchrun") and not _has_torchrun_option(
            script, command, "shutdown_timeout"
        ):
            yield Fault(
                command.line,
                f"torchrun kills its processes {TORCHRUN_GRACE_S} "
                "s after it told them to stop, saved or not",
                insert_before_line(
                    script, command.line, f"export PET_SHUTDOWN_TIMEOUT={script.signal.lead_s}"
                ),
            )


def _may_be_short_for_save(script: BatchScript) -> bool:
    save_s = script.around.save_s
    return save_s is not None and exit_time_s(save_s) > TORCHRUN_GRACE_S


def torchrun_signal(script: BatchScript) -> Iterator[Fault]:
    """Torchrun forwards TERM, INT, HUP and QUIT;
    other signals kill it. `holdfast run` sends it SIGTERM instead.
    """
    signal = script.signal
    if (
        signal is None
        or signal.name in ("TERM", "INT", "HUP", "QUIT")
        or _trapped(script, signal.name)
    ):
        return
    for command in script.commands_as_run:
        reached = is_exec(command) or (not signal.batch and starts_program(command, "srun"))
        deaf = (
            starts_program(command, "torchrun")
            and not is_holdfast(command)
            and not _has_torchrun_option(script, command, "signals")
        )
        if reached and deaf:
            yield Fault(command.line, *_torchrun_without_handler(script, signal, command))


def _torchrun_without_handler(
    script: BatchScript, signal: SignalOption, command: ShellCommand
) -> tuple[str, LintFix]:
    new = f"export PET_SIGNALS_TO_HANDLE=SIGTERM,SIGINT,SIGHUP,SIGQUIT,SIG{signal.name}"
    what = (
        f"torchrun dies of SIG{signal.name} and tells its processes nothing: "
        "it hands on TERM, INT, HUP and QUIT"
    )
    return what, insert_before_line(script, command.line, new)


def _trapped(script: BatchScript, name: str) -> bool:
    return any(name in trap.signals for trap in script.traps)


def _has_torchrun_option(script: BatchScript, command: ShellCommand, what: str) -> bool:
    """Whether the script gives torchrun that option, as an argument or as a variable."""
    words = [
        word
        for each in script.commands_as_run
        if each.words[0] == "export" or each is command
        for word in each.words
    ]
    dashed = what.replace("_", "-")
    return any(
        re.match(rf"(--({what}|{dashed})|PET_{what.upper()}|TORCH\w*_{what.upper()})", word)
        for word in words
    )


def lead_too_short(script: BatchScript) -> Iterator[Fault]:
    """The notice must come early enough for a save."""
    signal, save_s = script.signal, script.around.save_s
    # more of a short job's time is better spent on work
    quarter_s = sbatch.time_limit_s(script.options) / 4
    if (
        signal is not None
        and save_s is None
        and signal.lead_s < min(LATE_S, int(min(quarter_s, LEAD_S)))
    ):
        new = f"{'B:' if signal.batch else ''}{signal.name}@{int(min(quarter_s, LEAD_S))}"
        yield Fault(
            script.line_of("signal"),
            f"the notice comes only {signal.lead_s} s before the end",
            change_option_value(script, "signal", new),
        )
    if signal is not None and save_s is not None and signal.lead_s < exit_time_s(save_s):
        new = f"{'B:' if signal.batch else ''}{signal.name}@{notice_time_s(save_s)}"
        yield Fault(
            script.line_of("signal"),
            f"the notice comes {signal.lead_s} s before the end, and a save took {save_s:.0f} s",
            change_option_value(script, "signal", new),
        )


def _kills_with_term(script: BatchScript, trap: Trap) -> bool:
    """Whether the handler sends SIGTERM to a process."""
    targets = (
        command.words[1:2]
        for command in script.handler_commands(trap)
        if command.words[0] == "kill"
    )
    return any(re.match(r"[^-]|-(s|15)$|-\w*TERM", word) for words in targets for word in words)


RULES: Sequence[Rule] = (
    Rule("loses work", notice_unheard),
    Rule("loses work", notice_to_no_step),
    Rule("may lose work", notice_in_set_up),
    Rule("may lose work", signal_twice),
    Rule("loses work", srun_term),
    Rule("loses work", signal_kills),
    Rule("may lose work", torchrun_grace),
    Rule("loses work", torchrun_signal),
    Rule("loses work", lead_too_short),
)
