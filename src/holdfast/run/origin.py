"""Origin: where an attempt's state came from: a checkpoint, or the objects of the last block in this process."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from ..store.checkpoint import Checkpoint
from .tracked import Digests


class Ended(NamedTuple):
    """The end of a block, and the checkpoint that holds the state at that end."""

    checkpoint: str
    attempt: int  # that saved it
    objects: Mapping[str, Callable[[], Any] | None]  # what each name tracked; None: that cannot be told


class Reentry(NamedTuple):
    """A new block over the objects of the last one."""

    ended: Ended
    keeps_vars: bool  # it is the same Run
    unknown: str  # the name of an object that cannot be told from another one; empty: there is none


class Origin:
    """The checkpoint that this attempt resumes from or is restoring (None: a fresh start); rejected ones."""

    def __init__(self) -> None:
        self.checkpoint: Checkpoint | None = None
        self.memory: dict[str, Any] = {}  # what the checkpoint stored of the run itself
        self.again: Reentry | None = None  # set: the live objects count, and were not restored
        self.rejected: list[tuple[str, str]] = []  # name of a newer checkpoint, and the reason
        self.overridden_options: dict[
            str, list[str]
        ] = {}  # options in the script that the checkpoint's values replaced
        self.baseline: Digests | None = None  # digests of the restored state, until the first loop begins
        self.generators: dict[str, Any] = {}  # copies of the tracked generators in that state

    def choose(self, checkpoint: Checkpoint | None) -> None:
        """Note `checkpoint` as the one that this attempt tries to restore. This method restores nothing."""
        self.checkpoint = checkpoint

    def restored(self, checkpoint: Checkpoint, memory: dict[str, Any], again: Reentry | None = None) -> None:
        self.checkpoint, self.memory, self.again = checkpoint, memory, again

    def reject(self, name: str, why: str) -> None:
        self.rejected.append((name, why))

    def override_options(self, found: dict[str, list[str]]) -> None:
        """Note them before the first restore: a restore that fails half-way overwrites the script's options."""
        self.overridden_options = found

    def set_baseline(self, baseline: Digests | None, generators: dict[str, Any] | None = None) -> None:
        """Set the state that must stay unchanged until the first loop begins; None: the loop has begun.

        `generators`: copies of the tracked generators in that state; None: those that are known.
        """
        self.baseline = baseline
        self.generators = self.generators if generators is None else generators
