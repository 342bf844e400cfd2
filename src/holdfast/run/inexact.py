"""Inexact: if no position in the data can be restored, a run continues with other samples, if its caller accepts that.

It skips as many batches of a new pass as were done, equally on all ranks. Each use is reported and journalled, and
every later checkpoint records the step from which the run is not exact.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from ..data.advice import DATA, Advice
from ..data.facts import Feed, FeedPosition, OtherKind
from ..errors import Mismatch
from ..state import rng
from .session import Session


def opened(session: Session, feed: Feed, name: str, position: FeedPosition | None, refusal: Mismatch | None) -> Any:
    """Return the batches of the first loop over a loader after a restore, and whether they are those of `position`.

    Raises:
        Mismatch: `position` cannot be restored, or `refusal` says so before it was tried, and nobody accepts that.
    """
    before, ranks = rng.capture(), session.ranks
    epoch, done = session.position.epoch, session.position.consumed(name)
    accepted = DATA in session.options.accept
    batches: Iterator[Any] = iter(())
    try:
        if refusal is not None:
            raise refusal
        batches, why = feed.open(epoch, position), ""
    except OtherKind as error:
        if done and not accepted:
            raise _with_a_way_back(session, error) from error
        if not done:  # between epochs a loader may be replaced: its position is at the start
            session.tell_changed(f"loader {name}: another kind of loader begins this epoch")
            return feed.open(epoch, None), True
        why = str(error)
    except Mismatch as error:
        if not accepted:
            raise _with_a_way_back(session, error) from error
        why = str(error)
    if accepted:
        found = ranks.collect("a position in the data", why.encode, max).decode()
        if found:
            close = getattr(batches, "close", None)
            if close is not None:
                close()
            rng.restore(before)
            batches = feed.afresh(epoch, done)
            _tell(session, name, done, found)
            return batches, False
    return batches, True


def _with_a_way_back(session: Session, error: Mismatch) -> Mismatch:
    """Return the refusal with the step to go back to, if the run has a checkpoint at an epoch's end before this one."""
    ends = [name for name in session.store.index.names() if name.phase == "end" and name.order < session.here.order]
    if not ends:
        return error
    back = f"To go back to the end of an epoch instead, say Run(..., go_back={ends[-1].step})"
    advice = Advice("an epoch's end", back)
    return Mismatch(f"{error}. {advice}")


def _tell(session: Session, name: str, skipped: int, why: str) -> None:
    step = session.position.step
    session.begin_inexact(step)
    session.attempt.record("inexact", step=step, loader=name, skipped=skipped, why=why)
    cause = why.partition(". ")[0]
    session.tell(
        f"{session.path}: not exact from step {step}: {cause}; {skipped} batches of a new pass of the loader {name!r} "
        "are skipped, and the rest is trained",
        kind="inexact",
        name=name,
    )
