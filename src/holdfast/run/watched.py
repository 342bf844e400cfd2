"""Watched: what a drilled run shows at its safe points, for a comparison with another run."""

from __future__ import annotations

from ..terminal import mark
from .noted import note
from .ranks import merged
from .session import Session
from .tracked import RESERVED, digests


def show(session: Session, epoch: int | None) -> None:
    """Journal the digests of the state, and mark the place in the output. `epoch`: the one that has ended, at its end."""
    memory = session.memory(probe=False)
    memory.pop("means", None)  # sums of metrics: a metric may be a time, which no two runs share
    found = digests({**session.tracked.capture(), RESERVED: memory}).of
    position = session.position
    at = position.epoch if epoch is None else epoch
    leaves = merged(session.ranks, found)
    session.attempt.record("digests", step=position.step, phase=position.phase, epoch=at, leaves=leaves)
    note(session, "point")
    session.attempt.flush()
    mark_output(session)


def mark_output(session: Session) -> None:
    """Write a line into the output that says where the run is. Several ranks share one output: they write none."""
    if session.drilled.marks and session.ranks.alone:
        mark(f"\x1eholdfast {session.position.step} {session.position.phase} {session.attempt.number}\x1e\n")
