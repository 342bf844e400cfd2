"""Sweep: the tasks of an array, each with a run of its own. Pure."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from ..errors import UsageError

TASK = "{task}"  # in a command's words: the task's number
VARIABLE = "HOLDFAST_TASK"  # in the environment of a task: the same


LARGEST = 4_000_000  # slurm.conf(5): MaxArraySize is 4000001 at the most


class ArrayTasks(NamedTuple):
    """What `--array` asks for. Source: sbatch(1), --array."""

    numbers: Sequence[int]
    at_once: int | None = None  # the most that run at the same time

    def __str__(self) -> str:
        return format_tasks(self.numbers) + (f"%{self.at_once}" if self.at_once else "")


def parse_tasks(text: str, known: int | None = None) -> ArrayTasks:
    """Return the tasks of `1-20%5`, `0-31:4`, `1,3,7-9`; `known`: there is a command for each of 1
    to `known`.

    Raises:
        UsageError: `text` has another form, or names a task without a command.
    """
    spec, percent, most = text.partition("%")
    if percent and not (most.isdecimal() and int(most)):
        raise UsageError(
            f"--array {text}: after % stands how many tasks may run at once, as in 1-20%5"
        )
    numbers: dict[int, None] = {}
    for part in spec.split(",") if spec or known is None else [f"1-{known}"]:
        match = re.fullmatch(r"(\d{1,9})(?:-(\d{1,9})(?::([1-9]\d{0,8}))?)?", part.strip())
        if match is None:
            raise UsageError(f"--array {text}: write it as 1-20, 0-31:4, 1,3,7-9 or 1-20%5")
        first, last, step = int(match[1]), int(match[2] or match[1]), int(match[3] or 1)
        if last > LARGEST:
            raise UsageError(f"--array {text}: no cluster numbers tasks beyond {LARGEST}")
        if last < first:
            raise UsageError(f"--array {text}: {part} has no task")
        numbers |= dict.fromkeys(range(first, last + 1, step))
    beyond = [number for number in numbers if known is not None and not 1 <= number <= known]
    if beyond:
        raise UsageError(
            f"--array {text}: there are commands 1 to {known}, and none has the number {beyond[0]}"
        )
    return ArrayTasks(sorted(numbers), int(most) if most else None)


def format_tasks(numbers: Iterable[int]) -> str:
    """Return the numbers as `--array` takes them: 1-3,7."""
    ranges: list[list[int]] = []
    for number in sorted(numbers):
        if ranges and ranges[-1][1] == number - 1:
            ranges[-1][1] = number
        else:
            ranges.append([number, number])
    return ",".join(str(first) if first == last else f"{first}-{last}" for first, last in ranges)


def _is_simple_command(line: str) -> bool:
    """Whether it is one simple command, without an operator of the shell and an open quote."""
    try:
        shlex.split(line)
    except ValueError:  # a quote that is not closed
        return False
    return not re.search(r"[();<>|&]", re.sub(r"""\\.|'[^']*'|"(?:\\.|[^"\\])*\"""", "_", line))


def command_lines(text: str) -> list[str]:
    """Return the commands of a file that holds one on each line; empty lines and comments are left
    out.

    Raises:
        UsageError: a line holds more than one simple command, or an open quote.
    """
    found = []
    for number, line in enumerate(text.split("\n"), 1):
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        if not _is_simple_command(line):
            raise UsageError(
                f"line {number}: `{line.strip()}` is not one plain command; write it into a script"
            )
        sets = re.match(r"\s*\w+=", line) is not None  # LR=3 python train.py
        found.append(f"env {line.strip()}" if sets else line.strip())
    if not found:
        raise UsageError("it holds no command")
    return found
