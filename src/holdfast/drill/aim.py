"""Aim: what to do to the command next, decided while it runs, and what its end meant. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from ..journal import Event, Log
from .kill import Ended, Follow, exits_of
from .plan import RANK, Kill, Pace, further
from .report import Attempt


class Options(NamedTuple):
    """What the user may choose."""

    kills: int = 5
    signals: Sequence[str] = ("KILL", "TERM")
    seed: int = 0
    steps: int | None = None  # stop both runs after so many
    save_every_steps: int | None = None  # instead of the command's own interval
    exempt: Sequence[str] = ()  # patterns of metrics' names, besides timings
    damage: bool = True
    keep: Path | None = None  # where to leave the runs


class Aim:
    """Decides, as an attempt goes on, whether and when to interrupt it."""

    def __init__(self, planned: list[Kill], first: Pace, options: Options) -> None:
        self._queue, self._pace, self._options = list(planned), first, options
        self._next: Kill | None = None
        self._number = 0
        self._proven, self._pending = 0, False
        self.wounds: list[str] = []  # kinds of damage that are due

    def begin(self, attempts: Sequence[Attempt]) -> None:
        """A new attempt begins after these."""
        self._proven = sum(attempt.proven for attempt in attempts)
        self._pending = bool(attempts) and attempts[-1].signal is not None

    def fired(self) -> None:
        """The last kill was delivered."""
        if self._next is not None and self._next.damage is not None:
            self.wounds.append(self._next.damage)
        self._next = None
        self._number += 1

    def __call__(self, view: Follow) -> Kill | None:
        if view.restored is None or view.step <= view.restored:
            return None  # a kill before any progress would undo the proof of the last one
        options = self._options
        missing = options.kills - self._proven - (self._pending and view.restored > 0)
        if missing <= 0:
            return None
        if self._next is None:
            more = further(self._pace, view.step, missing, self._number, options.signals, options.seed)
            self._next = self._queue.pop(0) if self._queue else more
        if self._next is not None and self._next.signal in ("KILL", RANK) and self._pace.saves and not view.kept:
            return None  # a save in the background is not durable yet: the blow would lead back to the start
        return self._next


def move(ended: Ended, log: Log | None) -> str:
    """What the end of an attempt means: "finished", "again" or "failed".

    The journal's last record has the word where a launcher eats exit codes.
    """
    last: Event = log.events[-1] if log is not None and log.closed else {}
    if last.get("event") == "stop":
        return "finished" if last.get("reason") == "drill limit" else "again"
    if ended.exit == 75:
        return "again"
    if ended.fired is not None and ended.fired.signal == RANK and ended.exit:
        return "again"  # as the launcher, and the ranks that were left, tell it
    if ended.fired is not None and ended.fired.signal != RANK and ended.exit in exits_of(ended.fired.signal):
        return "again"
    return "finished" if ended.exit == 0 else "failed"
