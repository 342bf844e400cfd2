"""Program: what the supervisor needs from the adapter of a program that it cannot change."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Literal, NamedTuple, Protocol

from .. import disk

# damaged: it could not resume from `begin`'s files
Verdict = Literal["done", "stopped", "failed", "damaged"]


class ProgramExit(NamedTuple):
    """How one start of a program ended."""

    code: int  # in subprocess's notation: -9 for SIGKILL
    tail: str  # the end of its output
    told: bool  # it had been told to stop
    resumed: bool = False  # it had resumed from a checkpoint


class ProgramCheckpoint(NamedTuple):
    """The files that a program needs to resume.

    `take.copy_if_unchanged` copies them into the store.
    """

    files: Sequence[Path]  # complete, and not being written any more
    # the program's own count, if it can be read; else the supervisor counts
    step: int | None = None
    # in the store, file names are relative to it; without it, only last names are used
    root: Path | None = None
    # the files themselves show that they are complete: no need to wait until they have settled
    whole: bool = False
    # complete once unchanged for so long; None: the supervisor decides
    settle_s: float | None = None


class Program(Protocol):
    """One program in one working directory."""

    def begin(
        self, command: Sequence[str], checkpoint: Path | None, time_left_s: float | None
    ) -> Sequence[str]:
        """Return the command line that starts it, or resumes from the files in `checkpoint`, a
        directory of our store.

        Raises:
            UsageError: the command does not start this program.
        """

    def checkpoint(self) -> ProgramCheckpoint | None:
        """Return its newest complete checkpoint since `begin`; None if there is none yet.

        Called while it runs, and once more after `verdict`. The same one is returned again and
        again.
        """

    def stop(self, signal: int, pid: int) -> int | Sequence[str]:
        """Return what makes it write a checkpoint and end: a signal for its process group, or a
        command to run.

        That command's exit code is not reliable; only the program's end counts.
        """

    def verdict(self, ended: ProgramExit) -> Verdict:
        """The result of this start; the exit code alone is not reliable."""


def make_empty(directory: Path) -> None:
    """Make `directory`, empty. What it holds is lost:
    never give a directory that may hold a user's file.
    """
    disk.remove_tree(directory)
    disk.make_dirs(directory)
