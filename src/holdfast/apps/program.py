"""Program: what the supervisor has to know of a program that it cannot change."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Literal, NamedTuple, Protocol

from .. import disk

Verdict = Literal["done", "stopped", "failed", "damaged"]  # damaged: it could not go on from what `begin` gave it


class ProgramExit(NamedTuple):
    """How one start of a program went."""

    code: int  # as subprocess has it: -9 for SIGKILL
    tail: str  # the end of what it printed
    told: bool  # it had been told to stop
    resumed: bool = False  # it had gone on from a checkpoint


class ProgramCheckpoint(NamedTuple):
    """What a program has written to go on from. `take.take` copies it into the store."""

    files: Sequence[Path]  # complete, and not being written any more
    step: int | None = None  # its own count, where it can be known; else the supervisor counts
    root: Path | None = None  # in the store, files bear their names relative to it; without it, their last names
    whole: bool = False  # the files themselves show that they are complete: nobody need wait until they have settled
    settle_s: float | None = None  # complete once unchanged for so long; None: for as long as the supervisor thinks fit


class Program(Protocol):
    """One program in one working directory."""

    def begin(self, command: Sequence[str], checkpoint: Path | None, time_left_s: float | None) -> Sequence[str]:
        """The command line that starts it, or goes on from the files in `checkpoint`, which is a directory of our
        store.

        Raises:
            UsageError: the command is not one of this program's.
        """

    def checkpoint(self) -> ProgramCheckpoint | None:
        """Its newest complete checkpoint since `begin`; None when it has none yet.

        Looked at while it runs, and once more after `verdict`. The same one is given again and again.
        """

    def stop(self, signal: int, pid: int) -> int | Sequence[str]:
        """What makes it write a checkpoint and end: a signal for its process group, or a command to run.

        What that command's exit code says is not to be trusted; whether the program ends is.
        """

    def verdict(self, ended: ProgramExit) -> Verdict:
        """Whether it is done: exit codes lie."""


def emptied(directory: Path) -> None:
    """Make `directory`, empty: what an earlier start left there is in the store already."""
    disk.remove_tree(directory)
    disk.make_dirs(directory)
