"""Advice: the line of code that a message recommends."""

from __future__ import annotations

from typing import NamedTuple

# in `accept`: where a position cannot be restored, its batches are skipped and the rest is trained
DATA = "data"


class Advice(NamedTuple):
    """One way to solve an error, as text.
    `scenario` names the test that follows the advice and resumes the run.
    """

    scenario: str
    line: str

    def __str__(self) -> str:
        return self.line


def other_samples() -> Advice:
    """The advice that always works if a start cannot restore its position in the data."""
    return Advice(
        "other samples",
        "To skip as many batches of a new pass and train the rest, "
        f'not exactly, say Run(..., accept={{"{DATA}"}})',
    )
