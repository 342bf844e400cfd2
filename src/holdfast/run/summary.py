"""Summary: from the journals of all attempts, whether the run has finished and how many steps were repeated."""

from __future__ import annotations

import itertools
import time
from collections.abc import Sequence
from typing import NamedTuple

from .. import journal
from ..journal import Log
from ..legible import counted, duration
from ..store.format import Name
from .session import Session


class Redone(NamedTuple):
    """Steps that a later attempt repeated."""

    steps: int
    exact: bool  # False: an attempt was killed and may have done more than its journal shows


def redone(logs: Sequence[Log]) -> Redone:
    """Count the steps of each attempt after the place from which the next one resumed."""
    begun = [log for log in logs if log.restored is not None]
    steps, exact = 0, True
    for log, after in itertools.pairwise(begun):
        furthest = max((journal.position(event)[0] for event in log.events), default=0)
        steps += max(0, furthest - (after.restored or (0, 0))[0])
        exact = exact and log.closed
    return Redone(steps, exact)


def finished_s(session: Session) -> float | None:
    """When an earlier attempt finished the run at this position, in Unix seconds; None if unknown."""
    for log in reversed(session.earlier_logs if session.position.finished() else ()):
        if log.last.get("event") == "end" and journal.position(log.last) == journal.position(session.here._asdict()):
            return float(log.last["time"])
    return None


def at_the_end(session: Session) -> str:
    """Return one line for the end of a run: steps, attempts and repeated steps."""
    position = session.position
    said = "finished" if position.finished() or not position.targets else "ended before its loop did"
    steps = counted(position.step, "step")
    try:
        logs = journal.logs(session.path)
        again = redone(logs)
    except OSError:  # all is saved, and the disk fails now
        return f"{said}: {steps}"
    attempts = sum(log.restored is not None for log in logs)
    # Where the run came from a place, journals of earlier attempts stayed elsewhere.
    all_here = [log.attempt for log in logs] == [*range(1, session.attempt.number + 1)]
    made = f" in {counted(attempts, 'attempt')}" if all_here else f"; this was attempt {session.attempt.number}"
    line = f"{said}: {steps}{made}"
    if not again.steps:  # not known for a run that is not exact
        return line
    return f"{line}, {'' if again.exact and all_here else 'at least '}{counted(again.steps, 'step')} done again"


def what_is_saved(session: Session, saved: Name) -> str:
    """Return one line for an attempt that fails: from where the next one goes on."""
    again = session.position.step - saved.step
    after = f"; {counted(again, 'step')} after it will be done again" if again > 0 else ""
    return f"step {saved.step} is saved{after}"


def ago(then_s: float) -> str:
    return f"{duration(round(max(0.0, time.time() - then_s)))} ago"
