"""Safe point: the place in a run at which something happened, as its journal names it. Pure."""

from __future__ import annotations

from typing import NamedTuple

from ..journal import Event

PHASES = ("step", "end", "exit")


class SafePoint(NamedTuple):
    """A safe point. Places sort as the run went."""

    step: int
    phase: str = "step"

    @property
    def order(self) -> tuple[int, int]:
        return self.step, PHASES.index(self.phase)

    def __str__(self) -> str:
        return f"step {self.step}" + {"end": ", after the epoch", "exit": ", after the loop"}.get(self.phase, "")


def place_of(event: Event) -> SafePoint:
    """Where an event happened."""
    return SafePoint(int(event.get("step", 0)), str(event.get("phase", "step")))
