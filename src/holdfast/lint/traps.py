"""Lint's rules about traps: whether a handler runs, tells the program, and lets it save."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from ..batch import work
from ..batch.bash import ShellCommand
from ..batch.sbatch import SignalOption
from ..batch.script import C_SHELLS, BatchScript, Trap, interpreter, is_exec
from ..batch.work import program_words
from .fix import Edit, LintFix, add_directive, change_option_value, wait_beside, wait_on
from .rule import Fault, Rule
from .signals import LEAD_S, has_steps
from .work import in_pieces

_INSTANT = {"echo", "printf", "date", "exit", "ls", "pwd", "hostname"} | {"pid=$!"}
_NOT_SENT = {"EXIT", "0", "ERR", "DEBUG", "RETURN"}  # bash's own: no process sends them


def trap_before_exec(script: BatchScript) -> Iterator[Fault]:
    """A shell that execs is replaced and loses its handlers. An ignored signal stays ignored."""
    for trap, line in _lost_traps(script):
        if set(trap.signals) - _NOT_SENT:
            yield Fault(
                trap.line,
                f"this trap never runs: `exec` in line {line} replaces the shell and its traps",
                LintFix(
                    "take the trap out and let the program handle the signal, "
                    "or run it with & and wait for it"
                ),
            )


def clean_up_before_exec(script: BatchScript) -> Iterator[Fault]:
    """A shell that execs runs no trap at its exit."""
    for trap, line in _lost_traps(script):
        if not set(trap.signals) - _NOT_SENT:
            yield Fault(
                trap.line,
                f"this trap for {trap.signals[0]} never runs: "
                f"`exec` in line {line} replaces the shell and its traps",
                LintFix("run the program with & and wait for it, without exec"),
            )


def _lost_traps(script: BatchScript) -> Iterator[tuple[Trap, int]]:
    """The handlers before the last exec, and its line."""
    last = next((command for command in reversed(script.commands_as_run) if is_exec(command)), None)
    for trap in script.traps if last else ():
        if trap.handler and last and trap.line < last.line:
            yield trap, last.line


def trap_hidden(script: BatchScript) -> Iterator[Fault]:
    """A trap runs only after the foreground child has ended."""
    chief = script.main_program
    if chief is None or is_exec(chief) or chief.background:
        return
    told = [
        trap
        for trap in script.traps
        if trap.handler and not (chief.loop and _only_sets_variable(script, trap))
    ]
    heard = {signal for trap in told for signal in trap.signals} - _NOT_SENT
    # Slurm signals srun's tasks itself, and the trap may run after them
    if program_words(chief)[0] == "srun":
        heard &= {script.signal.name} if script.signal and script.signal.batch else set()
    if heard and not in_pieces(script, chief):
        yield Fault(
            chief.line,
            f"the trap for {', '.join(sorted(heard))} runs "
            f"only after {work.program_name(chief)} has ended: too late",
            wait_beside(script, chief),
        )


def _only_sets_variable(script: BatchScript, trap: Trap) -> bool:
    """Whether the handler only sets a variable, which a loop over short pieces may look at."""
    return any(_sets_variable(command) for command in script.handler_commands(trap))


def trap_unasked(script: BatchScript) -> Iterator[Fault]:
    """Slurm sends USR1 and USR2 only to a job that has asked for them."""
    if re.search(r"^(?!#+ *SBATCH).*(--signal|scancel.*-s)", script.text, re.MULTILINE):
        return  # requested on sbatch's command line, or sent by hand
    asked = script.signal.name if script.signal else None
    if script.signal and not script.signal.batch and has_steps(script):
        yield from _only_steps(script, script.signal)
    for trap in script.traps:
        for name in trap.signals:
            if (
                trap.handler
                and name in ("USR1", "USR2")
                and name != asked
                and asked not in trap.signals
            ):
                yield Fault(
                    trap.line,
                    f"a trap for SIG{name}, and no --signal "
                    "asks Slurm to send it: the trap never runs",
                    add_directive(script, f"--signal=B:{name}@{LEAD_S}")
                    if asked is None
                    else LintFix(f"trap {asked}"),
                )


def _only_steps(script: BatchScript, signal: SignalOption) -> Iterator[Fault]:
    """A trap of the batch shell needs B:."""
    for trap in script.traps:
        if trap.handler and signal.name in trap.signals:
            yield Fault(
                trap.line,
                f"this trap never runs: --signal={signal.name} without B: "
                "goes to srun steps, not to this shell",
                change_option_value(script, "signal", f"B:{signal.name}@{signal.lead_s}"),
            )


def nobody_waits(script: BatchScript) -> Iterator[Fault]:
    """What runs in the background is killed when the script ends."""
    chief = script.main_program
    if chief is None or not chief.background:
        return
    later = script.commands_as_run[script.commands_as_run.index(chief) + 1 :]
    if not _wait_commands(script, chief) and all(each.words[0] in _INSTANT for each in later):
        end = len(script.text.rstrip())
        yield Fault(
            chief.line,
            f"nobody waits for {work.program_name(chief)}: it is killed when the script ends",
            LintFix("write wait after it", (Edit(end, end, "\nwait"),) if not chief.within else ()),
        )


def wait_once(script: BatchScript) -> Iterator[Fault]:
    """`wait` returns at the first trapped signal, while the child still saves."""
    chief = script.main_program
    waits = _wait_commands(script, chief) if chief is not None and chief.background else []
    handled = [trap for trap in script.traps if trap.handler and set(trap.signals) - _NOT_SENT]
    stays = any(_ends_or_waits(script, trap) for trap in handled)
    told = any(
        _notifies_program(command) for trap in handled for command in script.handler_commands(trap)
    )
    if chief and len(waits) == 1 and told and not waits[0].loop and not stays:
        yield Fault(
            waits[0].line,
            "this wait ends at the first trapped signal, "
            f"and the job with it, while {work.program_name(chief)} still saves",
            wait_on(waits[0]),
        )


def _wait_commands(script: BatchScript, chief: ShellCommand) -> list[ShellCommand]:
    return [
        each
        for each in script.commands_as_run
        if each.words[0] in ("wait", "fg") and each.line >= chief.line
    ]


def _ends_or_waits(script: BatchScript, trap: Trap) -> bool:
    """Whether the handler ends the script itself, or waits."""
    return any(
        command.words[0] in ("wait", "exit", "exec") for command in script.handler_commands(trap)
    )


def exit_before_saved(script: BatchScript) -> Iterator[Fault]:
    """A handler that tells the child to stop and exits ends the job before the child has saved."""
    for trap in script.traps:
        words = [command.words[0] for command in script.handler_commands(trap)]
        told = "kill" in words and "exit" in words[words.index("kill") :]
        if (
            told
            and not {"wait", "sleep", "while", "until"} & set(words)
            and not any(command.loop for command in script.handler_commands(trap))
        ):
            yield Fault(
                trap.line,
                "this trap tells the program to stop and exits: "
                "the job ends before the program has saved",
                LintFix("write wait between kill and exit"),
            )


def wrong_shell(script: BatchScript) -> Iterator[Fault]:
    """Csh has no trap."""
    if interpreter(script.text) in C_SHELLS:
        for number, line in enumerate(script.text.split("\n"), 1):
            if re.match(r"\s*trap\s", line):
                yield Fault(
                    number,
                    "csh has no trap: the signal kills the script",
                    LintFix("write the script for bash"),
                )


def cont_trapped(script: BatchScript) -> Iterator[Fault]:
    """SIGCONT comes with every TERM, and with every resume."""
    for trap in script.traps:
        if "CONT" in trap.signals and trap.handler:
            yield Fault(
                trap.line,
                "a trap for SIGCONT: Slurm sends it with each SIGTERM, "
                "and also when a suspended job goes on",
                LintFix("take CONT out of the trap"),
            )


def trap_tells_nobody(script: BatchScript) -> Iterator[Fault]:
    """If the handler does not forward the signal, the program is killed before it saves."""
    chief = script.main_program
    if chief is None or not chief.background or script.signal is None or not script.signal.batch:
        return
    for trap in script.traps:
        handler = script.handler_commands(trap)
        told = any(_notifies_program(each) or _sets_variable(each) for each in handler)
        if script.signal.name in trap.signals and trap.handler and not told:
            yield Fault(
                trap.line,
                f"this trap does not tell {work.program_name(chief)}: "
                "it is killed before it has saved",
                LintFix('send it the signal and wait: kill -TERM "$pid"; wait "$pid"'),
            )


def _sets_variable(command: ShellCommand) -> bool:
    """Whether the command remembers something in a variable, for a loop that looks at it."""
    return re.match(r"\w+=", command.words[0]) is not None


def _notifies_program(command: ShellCommand) -> bool:
    """Whether the command may tell a program to stop: a signal, or a file that it looks for."""
    told = ("kill", "pkill", "killall", "scancel", "touch", "tee", "cp", "rsync", "mv")
    files = any(operator in (">", ">>", ">|") for operator in command.operators)
    return command.words[0] in told or files or work.is_work(command)


RULES: Sequence[Rule] = (
    Rule("loses work", trap_before_exec),
    Rule("may lose work", clean_up_before_exec),
    Rule("loses work", trap_hidden),
    Rule("loses work", trap_unasked),
    Rule("loses work", nobody_waits),
    Rule("loses work", wait_once),
    Rule("loses work", exit_before_saved),
    Rule("loses work", trap_tells_nobody),
    Rule("loses work", wrong_shell),
    Rule("may lose work", cont_trapped),
)
