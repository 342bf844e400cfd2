"""A Slurm batch script as lint examines it: options,
commands, traps, and its main program. Pure.
"""

from __future__ import annotations

import os.path
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

from . import bash, sbatch, variables, work
from .bash import ShellCommand
from .sbatch_options import LocalSbatch
from .work import program_words

# those with the grammar that is read here
SHELLS = frozenset({"sh", "bash", "dash", "ash", "ksh", "zsh"})
C_SHELLS = frozenset({"csh", "tcsh"})  # of these only simple commands are read
_C_BLOCK = re.compile(
    r"^[ \t]*(?:foreach|while|switch|case|else if|if\b.*\bthen|set\b.*\().*$", re.MULTILINE
)
_DEEPEST = 3  # nesting of functions that call one another


class ScriptContext(NamedTuple):
    """Facts besides the script that a rule may use."""

    # whether a folder exists, seen from the job; None: unknown
    exists: Callable[[str], bool | None] = lambda _: None
    read: Callable[[str], str | None] = lambda _: None  # the text of a file that the script starts
    save_s: float | None = None  # measured seconds of a save
    user: str = "user"
    sbatch: Callable[[], LocalSbatch] = LocalSbatch  # used only for options that our table lacks


class Trap(NamedTuple):
    line: int
    handler: str  # "" where the signals are ignored
    signals: tuple[str, ...]


@dataclass(frozen=True)
class BatchScript:
    """A parsed batch script."""

    text: str
    options: Sequence[sbatch.Option]
    late: Sequence[int]  # #SBATCH lines that sbatch does not read
    refused: Mapping[int, str]  # line -> why sbatch refuses the script because of it
    last: int  # line after which another directive may stand
    signal: sbatch.SignalOption | None
    commands: Sequence[ShellCommand]  # none, unless a shell reads the script
    around: ScriptContext

    def option(self, *names: str) -> sbatch.Option | None:
        """Return the last of these options."""
        return sbatch.last_option(self.options, *names)

    def line_of(self, *names: str) -> int:
        """Return the line of that option; 1 if it is not given."""
        option = self.option(*names)
        return option.line if option else 1

    @cached_property
    def local_sbatch(self) -> LocalSbatch:
        return self.around.sbatch()

    @cached_property
    def commands_as_run(self) -> list[ShellCommand]:
        """The commands in the order in which they run;
        a function's commands stand where it is called.
        """
        outside = self._commands_by_function.get(None, ())
        called = [
            inner
            for command in outside
            for inner in _expand_calls(command, self._commands_by_function)
        ]
        return [variables.resolve_command(command, self.known_variables) for command in called]

    @cached_property
    def known_variables(self) -> dict[str, str]:
        """The values that the script gives to variables, as they are written."""
        return variables.assigned_values(self.commands)

    @cached_property
    def _commands_by_function(self) -> dict[str | None, list[ShellCommand]]:
        """Return the commands of each function; key None holds those outside of functions."""
        found: dict[str | None, list[ShellCommand]] = {}
        for command in self.commands:
            found.setdefault(command.function, []).append(command)
        return found

    @cached_property
    def main_program(self) -> ShellCommand | None:
        """The program that the job is for."""
        return next(
            (command for command in self.commands_as_run if is_holdfast(command)), None
        ) or work.longest_program(self.commands_as_run)

    @property
    def long_main_program(self) -> ShellCommand | None:
        """The program that the job is for,
        if the job may run so long that simply running it again is no answer.
        """
        return None if sbatch.time_limit_s(self.options) <= work.SHORT_S else self.main_program

    @cached_property
    def traps(self) -> list[Trap]:
        if interpreter(self.text) in C_SHELLS:
            return []  # they have none
        return [
            trap for command in self.commands_as_run if (trap := _parse_trap(command)) is not None
        ]

    def handler_commands(self, trap: Trap) -> list[ShellCommand]:
        """Return the commands of a trap, including those of functions that it calls."""
        return [
            inner
            for command in _parse_handler(trap)
            for inner in _expand_calls(command, self._commands_by_function)
        ]

    @cached_property
    def all_commands(self) -> list[ShellCommand]:
        """All commands, including those of traps."""
        return [*self.commands, *(each for trap in self.traps for each in _parse_handler(trap))]

    @cached_property
    def is_supervised(self) -> bool:
        """Whether `holdfast run`, or a Python script that uses Holdfast, does the work."""
        return any(
            is_holdfast(command) or self._uses_holdfast(command) for command in self.commands_as_run
        )

    def _uses_holdfast(self, command: ShellCommand) -> bool:
        texts = (self.around.read(word) for word in program_words(command) if word.endswith(".py"))
        return any(
            re.search(r"^\s*(from|import) holdfast\b", text or "", re.MULTILINE) for text in texts
        )

    @property
    def run_directory(self) -> str | None:
        """The directory that the script passes to `holdfast run --run`."""
        words = next(
            (command.words for command in self.commands_as_run if is_holdfast(command)), ()
        )
        own = [word.removeprefix("--run=") for word in words[: [*words, "--"].index("--")]]
        if "--run" in own[:-1]:
            return own[own.index("--run") + 1]
        return next(
            (word for word, written in zip(own, words, strict=False) if word != written), None
        )

    @property
    def chdir(self) -> str | None:
        """The directory in which the job runs; None: the one it is submitted from."""
        option = self.option("chdir")
        return option.value if option else None

    @cached_property
    def requeue_commands(self) -> list[ShellCommand]:
        return [
            command for command in self.all_commands if command.words[:2] == ("scontrol", "requeue")
        ]

    @property
    def chain_option(self) -> sbatch.Option | None:
        """The option `--array=1-10%1` and its like, which runs one task after the other."""
        return (
            self.array_option
            if self.array_option and (self.array_option.value or "").endswith("%1")
            else None
        )

    @property
    def array_option(self) -> sbatch.Option | None:
        """The option `--array` with several tasks."""
        array = self.option("array")
        alone = array is None or re.fullmatch(r"(\d+)(-\1)?(%\d+)?", array.value or "")
        return None if alone else array

    def commands_after(self, command: ShellCommand | None) -> list[ShellCommand]:
        """Return the commands behind this one."""
        return (
            self.commands_as_run[self.commands_as_run.index(command) + 1 :]
            if command is not None
            else []
        )

    def next_command(self, command: ShellCommand) -> ShellCommand | None:
        """Return the first command that may run after this one; None at the end of the script."""
        return next(
            (
                each
                for each in self.commands_after(command)
                if each.words[0] != "exit" and not are_exclusive(command, each)
            ),
            None,
        )


def parse_script(text: str, around: ScriptContext) -> BatchScript:
    """Parse the script `text`. Of one that no shell reads, only the directives are looked at."""
    found = sbatch.parse_directives(text)
    in_c_shell = interpreter(text) in C_SHELLS
    parsed = bash.parse(_C_BLOCK.sub(lambda line: " " * len(line[0]), text) if in_c_shell else text)
    is_shell = in_c_shell or interpreter(text) in SHELLS
    late = [line for line in found.late if not is_shell or line in parsed.comments]
    commands = parsed.commands if is_shell else []
    signal = sbatch.requested_signal(found.options)
    return BatchScript(
        text, found.options, late, found.refused, found.last, signal, commands, around
    )


def interpreter(text: str) -> str:
    """Return the name of the program that reads the script: "bash", "python3"; "" if its first line
    names none.

    `env` and the options between are skipped: `#!/usr/bin/env -S bash -l`.
    """
    first, *_ = text.split("\n", 1)
    words = first[2:].split() if first.startswith("#!") else []
    if words and os.path.basename(words[0]) == "env":
        words = [
            word for word in words[1:] if not word.startswith("-") and "=" not in word
        ] or words
    return os.path.basename(words[0]) if words else ""


def is_exec(command: ShellCommand) -> bool:
    return "exec" in command.words[:1] and len(program_words(command)) > 0


def is_holdfast(command: ShellCommand) -> bool:
    words = program_words(command)
    if words[1:4] == ("-m", "holdfast", "run"):
        return True
    return len(words) > 1 and os.path.basename(words[0]) == "holdfast" and words[1] == "run"


def starts_program(command: ShellCommand, name: str) -> bool:
    """Whether the command starts a program of that name, directly or through another program."""
    return any(os.path.basename(word) == name for word in program_words(command)) or (
        name == "torchrun" and any("torch.distributed.run" in word for word in command.words)
    )


def are_exclusive(one: ShellCommand, other: ShellCommand) -> bool:
    """Whether at most one of the two runs: they are branches of one `if` or `case`."""
    parts = {each.number: each.part for each in one.within}
    for each in other.within:
        mine = parts.get(each.number, each.part)
        if mine != each.part and (
            each.kind == "case" or (each.kind == "if" and mine % 2 and each.part % 2)
        ):
            return True
    return False


def _expand_calls(
    command: ShellCommand,
    functions: Mapping[str | None, list[ShellCommand]],
    inside: Sequence[str] = (),
) -> list[ShellCommand]:
    """Return the commands that run when `command` does.

    A function is replaced by its commands. A function that calls itself is expanded once.
    """
    name = command.words[0]
    if name in inside or len(inside) >= _DEEPEST:
        return [command]
    expanded = [
        nested
        for each in functions.get(name, ())
        for nested in _expand_calls(each, functions, (*inside, name))
    ]
    return [_placed_at_caller(each, command) for each in expanded] or [command]


def _placed_at_caller(command: ShellCommand, caller: ShellCommand) -> ShellCommand:
    return command._replace(
        background=command.background or caller.background,
        piped=command.piped or caller.piped,
        joined=command.joined or caller.joined,
        within=(*caller.within, *command.within),
    )


def _parse_handler(trap: Trap) -> list[ShellCommand]:
    commands = bash.commands(trap.handler)
    return [command._replace(line=trap.line + command.line - 1) for command in commands]


def _parse_trap(command: ShellCommand) -> Trap | None:
    words = [word for word in command.words if word != "--"]
    if words[:1] != ["trap"] or len(words) < 3 or words[1] in ("-", "-l", "-p"):
        return None
    return Trap(command.line, words[1], tuple(sbatch.signal_name(word) for word in words[2:]))
