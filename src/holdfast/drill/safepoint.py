"""Safe point: the place in a run where something happened, as its journal names it. Pure."""

from __future__ import annotations

from typing import NamedTuple

from ..journal import Event

PHASES = ("step", "end", "exit")


class SafePoint(NamedTuple):
    """A safe point. Places sort in the order of the run."""

    step: int
    phase: str = "step"

    @property
    def order(self) -> tuple[int, int]:
        return self.step, PHASES.index(self.phase)

    def __str__(self) -> str:
        return f"step {self.step}" + {"end": ", after the epoch", "exit": ", after the loop"}.get(
            self.phase, ""
        )


def place_of(event: Event) -> SafePoint:
    """Return the place of an event."""
    return SafePoint(int(event.get("step", 0)), str(event.get("phase", "step")))
