"""First step: what an attempt notes once, when its first step is done: how long its start took."""

from __future__ import annotations

from contextlib import suppress

from .. import owner
from ..errors import DiskError
from . import imports
from .session import Session


def done(session: Session) -> None:
    """Journal that the first step is done, and how old the process was then."""
    if session.leads:
        session.record("first_step", process_s=round(owner.age_s(), 3))
        with suppress(DiskError):  # the line is kept, and written the next time
            session.attempt.show()
        imports.tell()
