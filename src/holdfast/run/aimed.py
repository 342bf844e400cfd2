"""Aimed: in a drilled attempt, saves exactly where the drill wants them, and waits there for its signal."""

from __future__ import annotations

import time
from collections.abc import Callable

from ..store.format import Name
from .session import Session
from .settings import Aim

MOST_S = 30.0  # of waiting; a drill that has died sends nothing
_NAP_S = 0.001


def aim_of(session: Session) -> Aim | None:
    """What the drill wants of this attempt: the first aim beyond the checkpoint that it came back to.

    The drill chooses by the same rule, from the journal. So both agree also after a restart by a launcher.
    """
    checkpoint = session.resumed.checkpoint
    begun = (Name(0) if checkpoint is None else checkpoint.head.name).order
    return next((aim for aim in session.drilled.aims if Name(*aim.place).order > begun), None)


def wants_save(session: Session, aim: Aim) -> bool:
    return session.here in {Name(*place) for place in aim.saves}


def is_past(session: Session, aim: Aim) -> bool:
    """Whether the place is reached. Further saves, of a new best too, would lead the next attempt to another place."""
    return session.here.order >= Name(*aim.place).order


def is_at_once(session: Session) -> bool:
    """Whether a save here is to be durable before the run goes on: one in the background may be given up for a later one."""
    aim = aim_of(session)
    return aim is not None and (_is_brink(session, aim) or (aim.exact and session.here == Name(*aim.place)))


def _is_brink(session: Session, aim: Aim) -> bool:
    """Whether this is the last safe point at which a kill is of use."""
    return aim.brink is not None and session.here == Name(*aim.brink)


def await_stop(session: Session, land: Callable[[Session], None]) -> None:
    """At the place where the drill wants the run to stop, wait until its signal has come."""
    aim = aim_of(session)
    if aim is not None and aim.hold is not None and session.here == Name(*aim.hold):
        _wait(session, land)


def await_kill(session: Session, land: Callable[[Session], None]) -> None:
    """Wait to be killed before the run goes on to its end: a quick one would end before the drill has seen the save."""
    aim = aim_of(session)
    if aim is not None and _is_brink(session, aim):
        _wait(session, land, lambda: session.saved is not None and session.saved.order >= Name(*aim.place).order)


def _wait(session: Session, land: Callable[[Session], None], of_use: Callable[[], bool] = lambda: True) -> None:
    if session.ranks.alone:
        land(session)  # the save in flight may need the loop to go on
    until = time.monotonic() + MOST_S
    while session.ranks.rank == 0 and session.stop.reason is None and of_use() and time.monotonic() < until:
        time.sleep(_NAP_S)
