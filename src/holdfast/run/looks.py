"""Looks: what a run looks at once or rarely at safe points, so that a mistake is told before hours are lost."""

from __future__ import annotations

from ..errors import UsageError
from ..state.tree import flatten
from ..terminal import warn
from .session import Session
from .tracked import RESERVED, framework_modules
from .watch import Lost


def at_safe_point(session: Session) -> None:
    """Refuse what cannot be saved, at the first safe point; tell of tracked values that the loop does not use.

    A name that comes into `run.vars` later is looked at when it is new. A value that is replaced by one that cannot be
    saved is refused by the next save.

    Raises:
        UsageError: something in the state or in `run.vars` cannot be saved; the message names its place.
    """
    number, captured = session.steps_here, {}
    try:
        new = session.vars.take_new()
        if number == 1:
            captured = session.tracked.capture()
            blocks = flatten({**captured, RESERVED: {"vars": session.vars.state_dict()}}).leaves.values()
            session.prepare_saves(blocks)
        elif new:
            flatten({RESERVED: {"vars": new}})
    except UsageError as error:
        session.store.ranks.report("a save", error)  # the others have come to it, or will
        raise
    if number == 1:
        held = {**captured, RESERVED: session.vars.state_dict()}
        for module in framework_modules():
            for name, line in module.untracked(session.tracked.inside(), held):
                _tell(session, Lost("untracked_parameters", name, line))
    if number == 3 or number & (number - 1) == 0:
        for lost in session.watch.lost():
            _tell(session, lost)


def _tell(session: Session, lost: Lost) -> None:
    session.attempt.record("told", kind=lost.kind, name=lost.name, what=lost.line)
    warn(lost.line)
