"""Batch: a Slurm batch script as lint examines it: options, commands, traps, and its main program. Pure."""

from __future__ import annotations

import os.path
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple

from . import bash, sbatch
from .bash import ShellCommand

# Commands that prepare or tidy up. Any other program that a script starts is its work.
_QUICK = """
. : [ [[ alias basename break builtin cat cd chmod complete conda continue cp curl cut date declare df dirname du
echo env eval exit export false find free grep head hostname hash id kill let ln local ls mamba mkdir mktemp module
ml mv nproc nvidia-smi pip popd printenv printf pushd pwd python3-config read readonly return rm rmdir rsync sacct
sbatch scancel scontrol sed seq set shift shopt sinfo sleep sort source squeue sstat stage tail tar tee test touch
trap true type ulimit umask unalias uname unset unzip wait wc wget which
"""
QUICK = frozenset(_QUICK.split())
_DEEPEST = 3  # nesting of functions that call one another


class Around(NamedTuple):
    """Facts besides the script that a rule may use."""

    exists: Callable[[str], bool] = lambda _: True  # whether a folder exists, seen from the job's directory
    read: Callable[[str], str | None] = lambda _: None  # the text of a file that the script starts
    save_s: float | None = None  # how long a save took when it was measured


class Trap(NamedTuple):
    line: int
    handler: str  # "" where the signal is ignored
    signals: tuple[str, ...]


class Script(NamedTuple):
    """A parsed batch script."""

    text: str
    options: Sequence[sbatch.Option]
    late: Sequence[int]  # #SBATCH lines that sbatch does not read
    refused: Mapping[int, str]  # line -> why sbatch refuses the script because of it
    signal: sbatch.Signal | None
    commands: Sequence[ShellCommand]
    around: Around

    def option(self, *names: str) -> sbatch.Option | None:
        """Return the last of these options."""
        return sbatch.last(self.options, *names)

    def line_of(self, *names: str) -> int:
        """Return the line of that option; 1 if it is not given."""
        option = self.option(*names)
        return option.line if option else 1

    @property
    def body(self) -> list[ShellCommand]:
        """The commands in the order in which they run; a function's commands stand where it is called."""
        functions = self._functions()
        outside = functions.pop(None, [])
        return [inner for command in outside for inner in _called(command, functions)]

    def _functions(self) -> dict[str | None, list[ShellCommand]]:
        """Return the commands of each function; key None holds those outside of functions."""
        found: dict[str | None, list[ShellCommand]] = {}
        for command in self.commands:
            found.setdefault(command.function, []).append(command)
        return found

    @property
    def work(self) -> ShellCommand | None:
        """The last program that the script starts: the job's purpose."""
        return next((command for command in reversed(self.body) if is_work(command)), None)

    @property
    def traps(self) -> list[Trap]:
        return [trap for command in self.body if (trap := _trap(command)) is not None]

    def handler(self, trap: Trap) -> list[ShellCommand]:
        """Return the commands of a trap, including those of functions that it calls."""
        return [inner for command in _handling(trap) for inner in _called(command, self._functions())]

    @property
    def everything(self) -> list[ShellCommand]:
        """All commands, including those of traps."""
        return [*self.commands, *(each for trap in self.traps for each in _handling(trap))]

    @property
    def supervised(self) -> bool:
        """Whether `holdfast run`, or a Python script that uses Holdfast, does the work."""
        return any(is_holdfast(command) or self._uses_holdfast(command) for command in self.body)

    def _uses_holdfast(self, command: ShellCommand) -> bool:
        texts = (self.around.read(word) for word in program(command) if word.endswith(".py"))
        return any(re.search(r"^\s*(from|import) holdfast\b", text or "", re.MULTILINE) for text in texts)

    @property
    def directory(self) -> str | None:
        """The directory that the script passes to `holdfast run --run`."""
        words = next((command.words for command in self.body if is_holdfast(command)), ())
        own = [word.removeprefix("--run=") for word in words[: [*words, "--"].index("--")]]
        if "--run" in own[:-1]:
            return own[own.index("--run") + 1]
        return next((word for word, written in zip(own, words, strict=False) if word != written), None)

    @property
    def chdir(self) -> str | None:
        """The directory in which the job runs; None: the one it is submitted from."""
        option = self.option("chdir")
        return option.value if option else None

    @property
    def requeues(self) -> list[ShellCommand]:
        return [command for command in self.everything if command.words[:2] == ("scontrol", "requeue")]

    @property
    def chained(self) -> sbatch.Option | None:
        """The option `--array=1-10%1` and its like, which runs one task after the other."""
        array = self.option("array")
        return array if array and (array.value or "").endswith("%1") else None

    @property
    def restartable(self) -> bool:
        """Whether Slurm may start the same job again."""
        said = self.option("requeue", "no-requeue")
        return said is None or said.name == "requeue" or bool(self.requeues)

    @property
    def gpus(self) -> bool:
        return any(option.name.startswith("gpu") or "gpu" in (option.value or "") for option in self.options)

    @property
    def several_tasks(self) -> bool:
        counts = (option.value for option in self.options if option.name in ("ntasks", "ntasks-per-node", "nodes"))
        return any((value or "1").split("-")[-1] != "1" for value in counts)


def read(text: str, around: Around) -> Script:
    """Parse the script `text`."""
    options, late, refused = sbatch.directives(text)
    return Script(text, options, late, refused, sbatch.signal(options), bash.commands(text), around)


def program(command: ShellCommand) -> tuple[str, ...]:
    """Return the command's words, without assignments and without `exec` and its like before the program."""
    words = list(command.words)
    while words and (re.match(r"\w+(\[\w+\])?\+?=", words[0]) or words[0] in ("exec", "command", "nohup", "time")):
        words.pop(0)
    return tuple(words)


def is_exec(command: ShellCommand) -> bool:
    return "exec" in command.words[:1] and len(program(command)) > 0


def is_work(command: ShellCommand) -> bool:
    words = program(command)
    return bool(words) and words[0] not in QUICK and not words[0].startswith("((")


def is_holdfast(command: ShellCommand) -> bool:
    words = program(command)
    if words[1:4] == ("-m", "holdfast", "run"):
        return True
    return len(words) > 1 and os.path.basename(words[0]) == "holdfast" and words[1] == "run"


def _called(
    command: ShellCommand, functions: Mapping[str | None, list[ShellCommand]], inside: Sequence[str] = ()
) -> list[ShellCommand]:
    """Return the commands that run when `command` does.

    A function is replaced by its commands. A function that calls itself is expanded once.
    """
    name = command.words[0]
    if name in inside or len(inside) >= _DEEPEST:
        return [command]
    expanded = [nested for each in functions.get(name, ()) for nested in _called(each, functions, (*inside, name))]
    return [each._replace(background=each.background or command.background) for each in expanded] or [command]


def _handling(trap: Trap) -> list[ShellCommand]:
    commands = bash.commands(trap.handler)
    return [command._replace(line=trap.line + command.line - 1) for command in commands]


def _trap(command: ShellCommand) -> Trap | None:
    words = [word for word in command.words if word != "--"]
    if words[0] != "trap" or len(words) < 3 or words[1] in ("-", "-l", "-p"):
        return None
    return Trap(command.line, words[1], tuple(sbatch.signal_name(word) for word in words[2:]))


def starts(command: ShellCommand, name: str) -> bool:
    """Whether the command starts a program of that name, directly or through another program."""
    return any(os.path.basename(word) == name for word in program(command)) or (
        name == "torchrun" and any("torch.distributed.run" in word for word in command.words)
    )


class Fault(NamedTuple):
    """What is wrong at a line, why, and what to write instead."""

    line: int
    what: str
    why: str
    fix: str


Rule = Callable[[Script], Iterator[Fault]]
