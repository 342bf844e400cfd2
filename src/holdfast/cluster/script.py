"""Script: the text of the batch script that `holdfast submit` gives to sbatch. Pure.

The script is written for readers: it explains what it does and why. It also runs unchanged when
submitted by hand.
"""

from __future__ import annotations

import os.path
import re
import shlex
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from ..batch import sbatch
from ..batch.sbatch import Option
from ..errors import UsageError
from . import sweep
from .job_leader import TASK_DIRECTORY

LEAD_S = 120
WRITTEN = "# Written by holdfast submit."
LONGEST_NAME = 60  # in a path with a number behind it, of at most 255 bytes
LAUNCHERS = ("srun", "mpirun", "mpiexec", "torchrun")
_VALUED = re.compile(
    r"-(?![HkOQsvWlKuXEZ])[A-Za-z]|-np|--(bind-to|map-by|"
    r"rank-by|host|hostfile|machinefile|mpi|cpu-bind)"
)
OURS = {  # an option that we write ourselves -> what the user writes instead
    "signal": "--lead SECONDS",
    "array": "--array, not in a table of sbatch's options",
    "open-mode": "nothing: it is append, or a restart would empty the output",
    "wrap": "the command after --",
    "parsable": "--json",
    "test-only": "--dry-run",
    "wait": "nothing: look with squeue",
}


class JobRequest(NamedTuple):
    """What to run, and how."""

    command: Sequence[str]
    directory: str  # the supervisor's directory, as the job sees it
    options: Sequence[Option] = ()  # for sbatch
    lead_s: int = LEAD_S
    chain: int | None = None
    array: str | None = None  # tasks with a run of their own, as sbatch's --array names them
    # a file with the command of task n on its line n, instead of `command`
    lines: str | None = None
    setup: Sequence[str] = ()  # lines of shell code from the user
    stage: Sequence[str] = ()  # files or folders to copy to $SLURM_TMPDIR
    supervisor: Sequence[str] = ()  # options of `holdfast run`
    holdfast: str = "holdfast"  # how the job starts holdfast, as shell text


def script_text(order: JobRequest) -> str:
    """Return the whole text of the script.

    Raises:
        UsageError: the user gave an option of sbatch that we must write, or a value that no script
            can contain.
    """
    parts = [
        _header_lines(order),
        _ignore_signal_lines(order),
        _set_up_lines(order),
        _staging_lines(order),
        _torchrun_lines(order),
        _start_lines(order),
    ]
    return "\n\n".join("\n".join(lines) for lines in map(list, parts) if lines) + "\n"


def script_options(order: JobRequest) -> list[Option]:
    """Return the script's options.

    These are the user's options, our defaults for the rest, and the options needed for requeueing.
    """
    for option in order.options:
        if option.name in OURS:
            raise UsageError(
                f"--{option.name} is written by holdfast submit; say {OURS[option.name]}"
            )
    # one output file for the whole chain
    number = "%A" if order.chain else "%A_%a" if order.array else "%j"
    ours = [
        Option("job-name", name_for_command(order.command)),
        Option("output", f"{order.directory}/slurm-{number}.out"),
    ]
    given = sbatch.merge_options(ours, order.options)
    if not any(option.name == "no-requeue" for option in given):
        given = [*(option for option in given if option.name != "requeue"), Option("requeue")]
    array = f"1-{order.chain}%1" if order.chain else order.array
    signal = Option("signal", f"B:{notice_signal(order)}@{order.lead_s}")
    return [
        *given,
        *([Option("array", array)] if array else []),
        Option("open-mode", "append"),
        signal,
    ]


def name_for_command(command: Sequence[str]) -> str:
    """Return a name for the command: the script's name,
    else the program's, without its launcher.
    """
    words = [word for word in _without_launcher(command) if not word.startswith("-")]
    script = next(
        (word for word in words if word.endswith((".py", ".sh", ".R", ".jl", ".m"))), None
    )
    stem = os.path.splitext(os.path.basename(script or words[0]))[0] if words else ""
    plain = "".join(c if c.isalnum() or c in "._-" else "_" for c in stem)
    return plain[:LONGEST_NAME] or "job"


def _without_launcher(command: Sequence[str]) -> Sequence[str]:
    """Return the command without `srun -n 4` and its like, as far as their options can be told
    from the program.
    """
    words = list(command)
    while words and os.path.basename(words[0]) in LAUNCHERS[:-1]:
        words.pop(0)
        while words and words[0].startswith("-"):
            option = words.pop(0)
            if words and (_VALUED.fullmatch(option) or words[0].isdecimal()):
                words.pop(0)
    return words or command


def notice_signal(order: JobRequest) -> str:
    """Return the signal that announces the end.
    Some versions of NCCL (2.12, 2.13) use USR1 themselves.
    """
    return "USR2" if has_several_tasks(order.options) or _calls_torchrun(order) else "USR1"


def _header_lines(order: JobRequest) -> Iterator[str]:
    why = {
        "requeue": "preempted, or its node lost: Slurm starts the job again",
        "open-mode": "or each start would empty the output",
        "signal": f"a notice, {order.lead_s} to {order.lead_s + 30} s before the time is over",
        "array": "one task after the other, each going on where the last one stopped"
        if order.chain
        else "each task has a run of its own, and is requeued by itself",
    }
    lines = [(f"#SBATCH {option}", why.get(option.name)) for option in script_options(order)]
    width = max(len(line) for line, reason in lines if reason)
    yield "#!/bin/bash"
    check = f"holdfast lint {shlex.quote(order.directory)}/job.sh"
    yield f"{WRITTEN} Change it as you like: {check}, then sbatch it."
    for line, reason in lines:
        yield f"{line:<{width}}  # {reason}" if reason else line


def _ignore_signal_lines(order: JobRequest) -> Iterator[str]:
    yield (
        "# Until holdfast listens the notice must not end this shell. "
        "Holdfast computes the deadline itself."
    )
    yield f"trap '' {notice_signal(order)}"


def _set_up_lines(order: JobRequest) -> Iterator[str]:
    """Yield the user's lines.
    `set -e` would end the job at a hook of conda or module that returns non-zero itself.
    """
    if not order.setup:
        return
    yield "# A line that fails ends the job, with its exit code."
    yield "set_up_done() {"
    yield "    local code=$?"
    yield '    [ "$code" -eq 0 ] && return'
    yield '    echo "holdfast: set-up ended with exit code $code: $1" >&2'
    again = f"holdfast submit --continue {shlex.quote(order.directory)}"
    yield f"    echo {shlex.quote(f'holdfast: when that is mended, go on with: {again}')} >&2"
    yield '    exit "$code"'
    yield "}"
    for line in order.setup:
        yield line
        yield f"set_up_done {shlex.quote(line)}"


def _staging_lines(order: JobRequest) -> Iterator[str]:
    """Yield lines that copy files to the node.

    A mark written after the last byte makes a copy valid; an interrupted copy is made again.
    """
    if not order.stage:
        return
    names = [os.path.basename(source.rstrip("/")) for source in order.stage]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice:
        raise UsageError(
            f"--stage: two of them are called {twice}, and both would be $SLURM_TMPDIR/{twice}; "
            "rename one, or stage the folder above both"
        )
    yield (
        "# Copies $1 to the node's own disk, "
        "unless a whole copy is there already that is not older."
    )
    yield "stage() {"
    yield "    local copy=$SLURM_TMPDIR/${1##*/}"
    yield '    mkdir -p "$SLURM_TMPDIR" || return'
    yield (
        '    [ -e "$copy.whole" ] && [ -z "$(find -L "$1" '
        '-newer "$copy.whole" -print -quit)" ] && return'
    )
    yield (
        '    rm -rf "$copy" "$copy.whole" && touch "$copy.begun" && cp -RL "$1" "$copy"'
        ' && mv "$copy.begun" "$copy.whole"'
    )
    yield "}"
    yield ': "${SLURM_TMPDIR:?is not set on this cluster: export it, with holdfast submit --setup}"'
    each = ""
    if _option_count(order.options, "nodes") > 1:
        yield "export -f stage"
        each = 'srun --ntasks-per-node=1 --ntasks="$SLURM_JOB_NUM_NODES" bash -c \'stage "$0"\' '
    for source in order.stage:
        yield f"{each or 'stage '}{shlex.quote(source.rstrip('/'))} || exit 1"


def _torchrun_lines(order: JobRequest) -> Iterator[str]:
    if _calls_torchrun(order):
        signal = notice_signal(order)
        why = f"Otherwise torchrun would die of {signal}, and kill its processes after 30 s."
        yield f"# {why} Old versions of torch know neither."
        handled = f"SIGTERM,SIGINT,SIGHUP,SIGQUIT,SIG{notice_signal(order)}"
        yield f"export PET_SIGNALS_TO_HANDLE={handled} PET_SHUTDOWN_TIMEOUT={order.lead_s}"


def _start_lines(order: JobRequest) -> Iterator[str]:
    supervisor = list(order.supervisor)
    if order.chain or any(option.name == "no-requeue" for option in order.options):
        supervisor.append("--no-requeue")
    if order.chain:
        supervisor.append("--chain")
    directory, launcher, command = shlex.quote(order.directory), *_launch_words(order)
    words = [shlex.quote(word) for word in command]
    if order.array:
        yield (
            "# For the command, and for what it calls: "
            f"Run(f\"runs/{{os.environ['{sweep.VARIABLE}']}}\")"
        )
        yield f"export {sweep.VARIABLE}=$SLURM_ARRAY_TASK_ID"
        directory += f"/{TASK_DIRECTORY}$SLURM_ARRAY_TASK_ID"
        words = [_with_task(word) for word in command]
    if order.lines:
        line = f'$(sed -n "${{SLURM_ARRAY_TASK_ID}}p" {shlex.quote(order.lines)})'
        yield f'eval "set -- {line}"  # the words of the command of this task'
        words = ['"$@"']
    yield "# exec: holdfast takes the place of this shell, and so hears what Slurm has to say."
    ours = [
        order.holdfast,
        "run",
        "--run",
        directory,
        f"--lead={order.lead_s}",
        *map(shlex.quote, supervisor),
    ]
    yield " ".join(["exec", *ours, "--", *launcher, *words])


def _with_task(word: str) -> str:
    """Return the word as shell text, with the task's number for each {task}."""
    parts = word.split(sweep.TASK)
    return '"$SLURM_ARRAY_TASK_ID"'.join(
        shlex.quote(part) if part or len(parts) == 1 else "" for part in parts
    )


def _launch_words(order: JobRequest) -> tuple[list[str], Sequence[str]]:
    """Return the shell words that start the command once per task, and the command."""
    program = os.path.basename(order.command[0]) if order.command else ""
    if program in LAUNCHERS[:-1] or not has_several_tasks(order.options):
        return [], order.command
    if program != "torchrun":  # since Slurm 22.05 srun does not inherit the number of CPUs
        cpus = any(option.name == "cpus-per-task" for option in order.options)
        return [
            "srun",
            *(['--cpus-per-task="$SLURM_CPUS_PER_TASK"'] if cpus else []),
        ], order.command
    if _option_count(order.options, "nodes") == 1 or any(
        word.startswith(("--rdzv", "--master", "--nnodes")) for word in order.command
    ):
        return [], order.command
    first = (
        '"$(scontrol show hostnames "$SLURM_JOB_NODELIST" | '
        'head -n 1):$((15000 + SLURM_JOB_ID % 10000))"'
    )
    words = [
        "srun",
        "--ntasks-per-node=1",
        order.command[0],
        '--nnodes="$SLURM_JOB_NUM_NODES"',
        "--rdzv-backend=c10d",
    ]
    return [*words, f"--rdzv-endpoint={first}"], order.command[1:]


def _calls_torchrun(order: JobRequest) -> bool:
    """Whether the command starts torchrun, directly, through srun, or as a module."""
    words = _without_launcher(order.command) or [""]  # "": each task has a command of its own
    return os.path.basename(words[0]) == "torchrun" or "torch.distributed.run" in words


def has_several_tasks(options: Sequence[Option]) -> bool:
    """Whether the job has more than one task."""
    return any(_option_count(options, each) > 1 for each in ("ntasks", "ntasks-per-node", "nodes"))


def _option_count(options: Sequence[Option], name: str) -> int:
    option = sbatch.last_option(options, name)
    number = ((option.value if option else None) or "1").split("-")[0]
    return int(number) if number.isdecimal() else 1
