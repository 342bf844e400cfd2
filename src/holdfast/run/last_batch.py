"""Last batch: what is special about the safe point behind an epoch's last batch.

Code behind the batch loop may use names that only the loop's body sets: `loss`, a meter. A process that starts from a
checkpoint of this safe point does not run that body, so the code may fail. Therefore a periodic save, and a stop that
has the time, wait for the next safe point, which is the end of the epoch's body. Any other save is taken here, and the
checkpoint before it stays until the next save. If the code fails in such a process, the next one takes that one.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from .. import interval
from ..errors import HoldfastError, RanksError
from ..terminal import say

if TYPE_CHECKING:
    from .session import Session

SHORT_S = 1.0  # so much longer than the safe point a process may take to stop
_INSIDE = ("epochs", "batches")
_WAIT, _SAVE = b"wait", b"save first"  # rank 0's decisions


class LastBatch:
    """How long the code behind an epoch's last batch takes, and the stop that waits for its end."""

    def __init__(self) -> None:
        self.stop: str | None = None  # why the run stops at the next safe point
        self.saves_first = False  # the run saves at this safe point nevertheless
        self._body_s: float | None = None  # the longest time so far from here to the next safe point
        self._is_behind = False  # whether the last safe point was behind an epoch's last batch
        self.body_sets: list[str] = []  # names that the code behind it reads, and only the body that did not run sets
        self._skipped = False  # this process began after an epoch's last batch, and its loop has ended

    def pass_point(self, before_s: float, *, behind: bool) -> None:
        """Note a safe point. The one before was left at `before_s`; `behind`: this one is behind a last batch."""
        if self._is_behind:
            self._body_s = max(self._body_s or 0.0, time.monotonic() - before_s)
        self._is_behind = behind

    def stop_waits(self, session: Session, reason: str) -> bool:
        """Whether the stop for this reason waits for the next safe point.

        It waits if the process certainly lives until then. If that is unknown and the code until then is short, the run
        saves here first.
        """
        if self.stop is not None or not _may_be_here(session):
            return False
        short = self._body_s is not None and self._body_s <= SHORT_S
        words = b"" if not self._is_behind else _WAIT if self._fits(session) else _SAVE if short else b""
        agreed = session.ranks.announce("the last batch", words)
        if agreed:
            self.stop, self.saves_first = reason, agreed == _SAVE
        return bool(agreed)

    def save_waits(self, session: Session) -> bool:
        """Whether a periodic save waits for the next safe point."""
        mine = _WAIT if self._is_behind else b""
        return _may_be_here(session) and bool(session.ranks.announce("the last batch", mine))

    def may_be_behind(self, session: Session) -> bool:
        """Whether this safe point may be behind an epoch's last batch: it is, or the loader has no length."""
        return _may_be_here(session) and (self._is_behind or session.progress.batches_left is None)

    def skip_body(self, session: Session, name: str) -> None:
        """Report that the loop `name` ends without a batch, so that its body did not run in this process.

        If a later loop of the epoch continues, report it only if the code before that loop may need the body.
        """
        if session.progress.steps_here:
            return
        self._skipped = True
        from .body_names import names_of_body  # only such a start needs it

        names = self.body_sets = names_of_body(session.tracked)
        line = (
            f"{session.path}: resumes behind the last batch of epoch {session.position.epoch}: the code that follows "
            "the loop runs without the loop's body"
        )
        if names:
            session.tell(f"{line}, which sets {', '.join(names)}: keep that in run.vars", kind="behind_last_batch")
        elif session.position.current == name:
            say(line)

    def begin_body(self) -> None:
        """Note that a loop's body runs in this process: so the code after an earlier loop did not fail."""
        self._skipped = False

    def has_failed(self, session: Session, error: BaseException) -> bool:
        """Whether the code behind the loop failed because this process began there."""
        ours = isinstance(error, HoldfastError) and not isinstance(error, RanksError)
        return self._skipped and not session.progress.steps_here and isinstance(error, Exception) and not ours

    def _fits(self, session: Session) -> bool:
        until, saves = session.job_clock.grace_until(), session.saves
        if until is None or self._body_s is None:
            return False
        save_s = saves.save_s * (1 if saves.flight is None else 2)
        return not interval.must_stop(time.time(), until, save_s, self._body_s + session.drain_s)


def _may_be_here(session: Session) -> bool:
    """Whether this safe point is one of an epoch's batches. All ranks have the same answer."""
    return session.position.phase == "step" and session.progress.walks.kinds == _INSIDE
