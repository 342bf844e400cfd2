"""Lint: what a Slurm batch script will do otherwise than its author thinks. Pure; nothing is run.

Each rule is one function from the script, as it was read, to findings; `RULES` is their list. The facts behind them were
observed on Slurm 22.05 (docs/cluster.md); those from elsewhere name their source.
"""

from __future__ import annotations

import difflib
import math
import os.path
import re
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from ..interval import LEAVE_S, SAVE_MARGIN
from . import sbatch
from .bash import Command
from .batch import Around, Script, is_exec, is_holdfast, program, read, starts

LATE_S = 30  # limits are looked at every 30 s: a notice may come as much before its lead
TORCHRUN_GRACE_S = 30  # Source: torch.distributed.run, --shutdown-timeout
SLOW = frozenset(
    [
        ".",
        "conda",
        "cp",
        "curl",
        "git",
        "mamba",
        "micromamba",
        "ml",
        "module",
        "pip",
        "rsync",
        "sleep",
        "source",
        "tar",
        "unzip",
        "uv",
        "wget",
    ]
)
ALLOWED = re.compile(
    r"^[^#\n]*#.*?holdfast: allow ([\w, -]+)", re.MULTILINE
)  # such a comment, anywhere in the script, switches rules off


class Finding(NamedTuple):
    """What is wrong at a line, why, and what to write instead."""

    line: int
    rule: str
    what: str
    why: str
    fix: str


def lint(text: str, around: Around = Around()) -> list[Finding]:  # noqa: B008  a frozen value
    """What is wrong with the script, by line."""
    script = read(text, around)
    allowed = {name.strip() for match in ALLOWED.finditer(text) for name in match[1].split(",")}
    found = {finding for rule in RULES for finding in rule(script) if finding.rule not in allowed}
    return sorted(found)


def _line(option: sbatch.Option | None) -> int:
    return option.line if option else 1


# The signal and who hears it -----------------------------------------------------------------------------------


def notice_unheard(script: Script) -> Iterator[Finding]:
    """--signal=B: reaches the batch shell alone, and without B: steps alone."""
    signal, work = script.signal, script.work
    if signal is None or work is None:
        return
    line = _line(script.option("signal"))
    if signal.batch and not is_exec(work) and not any(signal.name in trap.signals for trap in script.traps):
        yield Finding(
            line,
            "notice-unheard",
            f"--signal=B:{signal.name} reaches nobody who listens",
            f"it is sent to the batch shell alone, which has no trap for it and dies of it, and {work.words[0]} with it",
            f"end the script with: exec holdfast run -- {' '.join(program(work))}",
        )
    if not signal.batch and not any(starts(command, "srun") for command in script.body):
        yield Finding(
            line,
            "notice-unheard",
            f"--signal={signal.name} reaches nobody",
            "without B: it is sent to srun steps alone, and this script starts none",
            f"write --signal=B:{signal.name}@{signal.lead_s}, and exec",
        )


def notice_in_set_up(script: Script) -> Iterator[Finding]:
    """Until the program listens, the notice finds the shell."""
    signal, work = script.signal, script.work
    if signal is None or work is None or not signal.batch or not (is_exec(work) and script.supervised):
        return
    if any(signal.name in trap.signals and trap.line <= work.line for trap in script.traps):
        return
    slow = next((command for command in script.body if program(command)[:1] and program(command)[0] in SLOW), None)
    if slow is not None and slow.line < work.line:
        yield Finding(
            slow.line,
            "notice-in-set-up",
            f"SIG{signal.name} during {program(slow)[0]} ends the job",
            "the shell dies of it before anything listens, and such a job has failed: it is not started again",
            f"write before it: trap '' {signal.name}",
        )


def no_grace(script: Script) -> Iterator[Finding]:
    """With proctrack/cgroup a plain child hears nothing: the shell dies of SIGTERM, and the child is killed at once."""
    work = script.work
    if work is None or is_exec(work) or script.signal or program(work)[0] == "srun":
        return
    if not any(trap.handler and {"TERM", "EXIT"} & set(trap.signals) for trap in script.traps):
        yield Finding(
            work.line,
            "no-grace",
            f"{program(work)[0]} is killed without a word when the job ends early",
            "Slurm tells the batch shell, which dies of it, and kills what it started within the same second",
            f"write: exec holdfast run -- {' '.join(program(work))}",
        )


def trap_before_exec(script: Script) -> Iterator[Finding]:
    """A shell that execs is replaced, and its handlers are gone. An ignored signal stays ignored."""
    last = next((command for command in reversed(script.body) if is_exec(command)), None)
    for trap in script.traps if last else ():
        if trap.handler and last and trap.line < last.line:
            yield Finding(
                trap.line,
                "trap-before-exec",
                f"this trap is gone when line {last.line} is reached",
                "exec replaces the shell, and its traps with it: the signal goes to the program alone",
                "remove the trap and let the program listen (holdfast does), or start the program with & and wait",
            )


def trap_hidden(script: Script) -> Iterator[Finding]:
    """A trap runs only when the foreground child has ended."""
    work = script.work
    if work is None or is_exec(work) or work.background:
        return
    heard = {signal for trap in script.traps if trap.handler for signal in trap.signals} - {"EXIT", "0", "ERR", "DEBUG"}
    if program(work)[0] == "srun":  # Slurm tells its tasks by itself, and the trap may well come after them
        heard &= {script.signal.name} if script.signal and script.signal.batch else set()
    if heard:
        yield Finding(
            work.line,
            "trap-hidden",
            f"the trap for {', '.join(sorted(heard))} waits until {program(work)[0]} has ended",
            "bash runs a trap only when its foreground child has ended, and by then the time is over",
            f"write: exec holdfast run -- {' '.join(program(work))}",
        )


def wait_once(script: Script) -> Iterator[Finding]:
    """A wait returns at the first trapped signal, while the child still saves."""
    work = script.work
    if work is None or not work.background:
        return
    waits = [command for command in script.body if command.words[0] == "wait" and command.line >= work.line]
    if not waits:
        yield Finding(
            work.line,
            "wait-once",
            f"nobody waits for {program(work)[0]}",
            "the job ends with its script, and what still runs is killed",
            "write wait after it, or exec it in the foreground",
        )
    handled = [trap for trap in script.traps if trap.handler and not {"EXIT", "0"} & set(trap.signals)]
    again = any(command.words[0] == "wait" for trap in handled for command in script.handler(trap))
    if len(waits) == 1 and handled and not waits[0].loop and not again:
        yield Finding(
            waits[0].line,
            "wait-once",
            "this wait ends at the first trapped signal",
            f"the script goes on, and the job ends while {program(work)[0]} still saves",
            'write: while kill -0 "$pid" 2>/dev/null; do wait "$pid"; done',
        )


def term_as_notice(script: Script) -> Iterator[Finding]:
    """B:TERM looks like a cancellation, to people and to programs."""
    if script.signal and script.signal.name == "TERM" and script.signal.batch:
        yield Finding(
            _line(script.option("signal")),
            "term-as-notice",
            "--signal=B:TERM",
            "Slurm writes CANCELLED into the output of a job that goes on, and nobody can tell the notice from a scancel",
            f"write --signal=B:USR1@{script.signal.lead_s}",
        )


def cont_trapped(script: Script) -> Iterator[Finding]:
    """SIGCONT comes with every TERM, and with every resume."""
    for trap in script.traps:
        if "CONT" in trap.signals and trap.handler:
            yield Finding(
                trap.line,
                "cont-trapped",
                "a trap for SIGCONT",
                "Slurm sends it along with SIGTERM, before or after it, and alone when a suspended job goes on",
                "trap the signal of --signal, and nothing else",
            )


def usr1_with_nccl(script: Script) -> Iterator[Finding]:
    """Source: NVIDIA/nccl issue 704: versions 2.12 and 2.13 take SIGUSR1 for themselves."""
    ranks = script.gpus and script.several_tasks
    collective = ranks or any(starts(command, "torchrun") for command in script.body)
    if script.signal and script.signal.name == "USR1" and collective:
        yield Finding(
            _line(script.option("signal")),
            "usr1-with-nccl",
            "SIGUSR1 for a program with NCCL",
            "some versions of NCCL (2.12, 2.13) take SIGUSR1 for themselves, and the program never hears of it",
            f"write USR2: --signal={'B:' if script.signal.batch else ''}USR2@{script.signal.lead_s}",
        )


def torchrun_grace(script: Script) -> Iterator[Finding]:
    """What torchrun has told to stop, it kills 30 s later."""
    save_s = script.around.save_s
    if save_s is not None and with_margin_s(save_s) <= TORCHRUN_GRACE_S:
        return
    for command in script.body:
        if starts(command, "torchrun") and not _told(script, command, "shutdown"):
            yield Finding(
                command.line,
                "torchrun-grace",
                f"torchrun kills its processes {TORCHRUN_GRACE_S} s after it told them to stop",
                "a save that takes longer is lost",
                "write export PET_SHUTDOWN_TIMEOUT=300 before it (old versions of torch ignore it), or save faster",
            )


def torchrun_signal(script: Script) -> Iterator[Finding]:
    """What torchrun hands on is TERM, INT, HUP and QUIT; of others it dies. `holdfast run` sends it SIGTERM instead."""
    signal = script.signal
    if signal is None or signal.name in ("TERM", "INT", "HUP", "QUIT"):
        return
    for command in script.body:
        if starts(command, "torchrun") and not is_holdfast(command) and not _told(script, command, "signals"):
            yield Finding(
                command.line,
                "torchrun-signal",
                f"torchrun dies of SIG{signal.name} and tells its processes nothing",
                "it hands on TERM, INT, HUP and QUIT only",
                f"write export PET_SIGNALS_TO_HANDLE=SIGTERM,SIGINT,SIGHUP,SIGQUIT,SIG{signal.name}, or holdfast run",
            )


def _told(script: Script, command: Command, what: str) -> bool:
    """Whether torchrun was given that option, by a word or by a variable."""
    words = [word for each in script.body if each.words[0] == "export" or each is command for word in each.words]
    return any(re.match(rf"(--{what}|PET_{what.upper()}|TORCH\w*_{what.upper()})", word) for word in words)


def lead_too_short(script: Script) -> Iterator[Finding]:
    """The notice must come early enough for a save."""
    if script.signal and script.around.save_s is not None:
        needed = with_margin_s(script.around.save_s)
        if script.signal.lead_s < needed:
            yield Finding(
                _line(script.option("signal")),
                "lead-too-short",
                f"the notice comes {script.signal.lead_s} s before the end",
                f"a save took {script.around.save_s:.0f} s",
                f"write @{math.ceil(needed) + LATE_S}",
            )


def with_margin_s(save_s: float) -> float:
    """Seconds that a save may take, and leaving after it, when it took `save_s` before."""
    return SAVE_MARGIN * save_s + LEAVE_S


# Starting again ------------------------------------------------------------------------------------------------


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
            _line(mode or script.option("requeue")),
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


# Files ---------------------------------------------------------------------------------------------------------


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


RULES: Sequence[Callable[[Script], Iterator[Finding]]] = (
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
