"""Advice: the line that a message asks its reader to write."""

from __future__ import annotations

from typing import NamedTuple

DATA = "data"  # in `accept`: where a position cannot be restored, its batches are skipped and the rest is trained


class Advice(NamedTuple):
    """One way out of an error, in words. `scenario` names the test that follows it: there the run then resumes."""

    scenario: str
    line: str

    def __str__(self) -> str:
        return self.line


def other_samples() -> Advice:
    """The way out that is always open to a start whose position in the data cannot be restored."""
    return Advice(
        "other samples",
        f'To skip as many batches of a new pass and train the rest, not exactly, say Run(..., accept={{"{DATA}"}})',
    )
