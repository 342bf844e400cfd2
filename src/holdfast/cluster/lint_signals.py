"""Lint's rules about signals: which process receives them, and whether in time."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from ..interval import enough_s, needed_s
from .bash import ShellCommand
from .batch import Fault, Rule, Script, is_exec, is_holdfast, program, starts

TORCHRUN_GRACE_S = 30  # Source: torch.distributed.run, --shutdown-timeout
_SLOW = ". conda cp curl git mamba micromamba ml module pip rsync sleep source tar unzip uv wget"
SLOW = frozenset(_SLOW.split())  # commands that take long


def notice_unheard(script: Script) -> Iterator[Fault]:
    """With --signal=B: only the batch shell receives the signal; without B: only steps do."""
    signal, work = script.signal, script.work
    if signal is None or work is None:
        return
    line = script.line_of("signal")
    if signal.batch and not is_exec(work) and not any(signal.name in trap.signals for trap in script.traps):
        yield Fault(
            line,
            f"--signal=B:{signal.name} reaches nobody who listens",
            f"only the batch shell gets it, has no trap for it and dies of it, and {work.words[0]} with it",
            _supervised(work),
        )
    if not signal.batch and not any(starts(command, "srun") for command in script.body):
        yield Fault(
            line,
            f"--signal={signal.name} reaches nobody",
            "without B: it is sent to srun steps alone, and this script starts none",
            f"write --signal=B:{signal.name}@{signal.lead_s}, and exec",
        )


def notice_in_set_up(script: Script) -> Iterator[Fault]:
    """Until the program handles signals, the notice reaches the shell."""
    signal, work = script.signal, script.work
    if signal is None or work is None or not signal.batch or not (is_exec(work) and script.supervised):
        return
    if any(signal.name in trap.signals and trap.line <= work.line for trap in script.traps):
        return
    slow = next((command for command in script.body if program(command)[:1] and program(command)[0] in SLOW), None)
    if slow is not None and slow.line < work.line:
        yield Fault(
            slow.line,
            f"SIG{signal.name} during {program(slow)[0]} ends the job",
            "the shell dies of it before anything listens, and such a job has failed: it is not started again",
            f"write before it: trap '' {signal.name}",
        )


def no_grace(script: Script) -> Iterator[Fault]:
    """With proctrack/cgroup a plain child gets no signal: SIGTERM ends the shell, and the child is killed at once."""
    work = script.work
    if work is None or is_exec(work) or script.signal or program(work)[0] == "srun":
        return
    if not any(trap.handler and {"TERM", "EXIT"} & set(trap.signals) for trap in script.traps):
        yield Fault(
            work.line,
            f"{program(work)[0]} is killed without a word when the job ends early",
            "Slurm tells the batch shell, which dies of it, and kills what it started within the same second",
            _supervised(work),
        )


def trap_before_exec(script: Script) -> Iterator[Fault]:
    """A shell that execs is replaced and loses its handlers. An ignored signal stays ignored."""
    last = next((command for command in reversed(script.body) if is_exec(command)), None)
    for trap in script.traps if last else ():
        if trap.handler and last and trap.line < last.line:
            yield Fault(
                trap.line,
                f"this trap is gone when line {last.line} is reached",
                "exec replaces the shell, and its traps with it: the signal goes to the program alone",
                "remove the trap and let the program listen (holdfast does), or start the program with & and wait",
            )


def trap_hidden(script: Script) -> Iterator[Fault]:
    """A trap runs only after the foreground child has ended."""
    work = script.work
    if work is None or is_exec(work) or work.background:
        return
    heard = {signal for trap in script.traps if trap.handler for signal in trap.signals} - {"EXIT", "0", "ERR", "DEBUG"}
    if program(work)[0] == "srun":  # Slurm signals srun's tasks itself, and the trap may run after them
        heard &= {script.signal.name} if script.signal and script.signal.batch else set()
    if heard:
        yield Fault(
            work.line,
            f"the trap for {', '.join(sorted(heard))} waits until {program(work)[0]} has ended",
            "bash runs a trap only when its foreground child has ended, and by then the time is over",
            _supervised(work),
        )


def wait_once(script: Script) -> Iterator[Fault]:
    """`wait` returns at the first trapped signal, while the child still saves."""
    work = script.work
    if work is None or not work.background:
        return
    waits = [command for command in script.body if command.words[0] == "wait" and command.line >= work.line]
    if not waits:
        yield Fault(
            work.line,
            f"nobody waits for {program(work)[0]}",
            "the job ends with its script, and what still runs is killed",
            "write wait after it, or exec it in the foreground",
        )
    handled = [trap for trap in script.traps if trap.handler and not {"EXIT", "0"} & set(trap.signals)]
    again = any(command.words[0] == "wait" for trap in handled for command in script.handler(trap))
    if len(waits) == 1 and handled and not waits[0].loop and not again:
        yield Fault(
            waits[0].line,
            "this wait ends at the first trapped signal",
            f"the script goes on, and the job ends while {program(work)[0]} still saves",
            'write: while kill -0 "$pid" 2>/dev/null; do wait "$pid"; done',
        )


def term_as_notice(script: Script) -> Iterator[Fault]:
    """B:TERM looks like a cancellation, both to people and to programs."""
    if script.signal and script.signal.name == "TERM" and script.signal.batch:
        yield Fault(
            script.line_of("signal"),
            "--signal=B:TERM",
            "Slurm writes CANCELLED into the output of a job that goes on, and the notice looks like a scancel",
            f"write --signal=B:USR1@{script.signal.lead_s}",
        )


def cont_trapped(script: Script) -> Iterator[Fault]:
    """SIGCONT comes with every TERM, and with every resume."""
    for trap in script.traps:
        if "CONT" in trap.signals and trap.handler:
            yield Fault(
                trap.line,
                "a trap for SIGCONT",
                "Slurm sends it along with SIGTERM, before or after it, and alone when a suspended job goes on",
                "trap the signal of --signal, and nothing else",
            )


def usr1_with_nccl(script: Script) -> Iterator[Fault]:
    """NCCL versions 2.12 and 2.13 use SIGUSR1 themselves. Source: NVIDIA/nccl issue 704."""
    ranks = script.gpus and script.several_tasks
    collective = ranks or any(starts(command, "torchrun") for command in script.body)
    if script.signal and script.signal.name == "USR1" and collective:
        yield Fault(
            script.line_of("signal"),
            "SIGUSR1 for a program with NCCL",
            "some versions of NCCL (2.12, 2.13) take SIGUSR1 for themselves, and the program never hears of it",
            f"write USR2: --signal={'B:' if script.signal.batch else ''}USR2@{script.signal.lead_s}",
        )


def torchrun_grace(script: Script) -> Iterator[Fault]:
    """Torchrun kills its processes 30 s after it signalled them to stop."""
    save_s = script.around.save_s
    if save_s is not None and needed_s(save_s) <= TORCHRUN_GRACE_S:
        return
    for command in script.body:
        if starts(command, "torchrun") and not _told(script, command, "shutdown"):
            yield Fault(
                command.line,
                f"torchrun kills its processes {TORCHRUN_GRACE_S} s after it told them to stop",
                "a save that takes longer is lost",
                "write export PET_SHUTDOWN_TIMEOUT=300 before it (old versions of torch ignore it), or save faster",
            )


def torchrun_signal(script: Script) -> Iterator[Fault]:
    """Torchrun forwards TERM, INT, HUP and QUIT; other signals kill it. `holdfast run` sends it SIGTERM instead."""
    signal = script.signal
    if signal is None or signal.name in ("TERM", "INT", "HUP", "QUIT"):
        return
    for command in script.body:
        if starts(command, "torchrun") and not is_holdfast(command) and not _told(script, command, "signals"):
            yield Fault(
                command.line,
                f"torchrun dies of SIG{signal.name} and tells its processes nothing",
                "it hands on TERM, INT, HUP and QUIT only",
                f"write export PET_SIGNALS_TO_HANDLE=SIGTERM,SIGINT,SIGHUP,SIGQUIT,SIG{signal.name}, or holdfast run",
            )


def _told(script: Script, command: ShellCommand, what: str) -> bool:
    """Whether the script gives torchrun that option, as an argument or as a variable."""
    words = [word for each in script.body if each.words[0] == "export" or each is command for word in each.words]
    return any(re.match(rf"(--{what}|PET_{what.upper()}|TORCH\w*_{what.upper()})", word) for word in words)


def _supervised(work: ShellCommand) -> str:
    return f"end the script with: exec holdfast run -- {' '.join(program(work))}"


def lead_too_short(script: Script) -> Iterator[Fault]:
    """The notice must come early enough for a save."""
    signal, save_s = script.signal, script.around.save_s
    if signal is not None and save_s is not None and signal.lead_s < needed_s(save_s):
        yield Fault(
            script.line_of("signal"),
            f"the notice comes {signal.lead_s} s before the end",
            f"a save took {save_s:.0f} s",
            f"write @{enough_s(save_s)}",
        )


RULES: Sequence[Rule] = (
    notice_unheard,
    notice_in_set_up,
    no_grace,
    trap_before_exec,
    trap_hidden,
    wait_once,
    term_as_notice,
    cont_trapped,
    usr1_with_nccl,
    torchrun_grace,
    torchrun_signal,
    lead_too_short,
)
