"""Attempts: what each start of the command did,
from its journal, and which resume points that proves. Pure.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from itertools import pairwise

from ..errors import ChildError
from ..journal import Event, Log
from .evidence import SafePoint
from .kill import SentSignal
from .report import DrillAttempt
from .safepoint import place_of

MOST_IDLE = 3  # attempts in a row without progress, none of them interrupted


def attempts_of(logs: Sequence[Log], strikes: Mapping[int, SentSignal]) -> list[DrillAttempt]:
    """Return the attempts of one start;
    a launcher may begin another itself after it has lost a rank.
    """
    return [_attempt(log, strikes.get(log.attempt)) for log in logs]


def _attempt(log: Log, strike: SentSignal | None) -> DrillAttempt:
    restored: Event = next((event for event in log.events if event["event"] == "restored"), {})
    last = log.events[-1] if log.closed else {}
    places = [
        place_of(event)
        for event in log.events
        if event["event"] in ("restored", "digests", "saved")
    ]
    came, reached = (
        place_of(restored),
        max(places, key=lambda place: place.order, default=SafePoint(0)),
    )
    return DrillAttempt(
        attempt=log.attempt,
        restored=restored.get("checkpoint"),
        restored_step=came.step,
        restored_phase=came.phase,
        reached=reached.step,
        reached_phase=reached.phase,
        signal=None if strike is None else strike.signal,
        in_save=None if strike is None else strike.in_save,
        stop=last.get("reason") or last.get("event"),
        quarantined=[str(event["name"]) for event in log.events if event["event"] == "quarantined"],
    )


def proven_places(
    attempts: Sequence[DrillAttempt], places: Collection[SafePoint]
) -> list[SafePoint]:
    """Return the distinct places from which an attempt resumed after a kill, and beyond which it
    ran.

    Each counts once, even if the run resumed there again; `proven` is set on the kill that led
    there first.
    """
    found: list[SafePoint] = []
    for struck, after in pairwise(attempts):
        came = SafePoint(after.restored_step, after.restored_phase)
        beyond = (
            after.restored is not None
            and came.order < SafePoint(after.reached, after.reached_phase).order
        )
        struck.proven = (
            struck.signal is not None and beyond and came in places and came not in found
        )
        if struck.proven:
            found.append(came)
    return found


def require_progress(attempts: Sequence[DrillAttempt]) -> None:
    """Require progress in one of the last attempts.

    Raises:
        ChildError: several attempts in a row made none, although none was interrupted.
    """
    idle = [
        each.signal is None and each.reached <= each.restored_step for each in attempts[-MOST_IDLE:]
    ]
    if len(idle) == MOST_IDLE and all(idle):
        last = attempts[-1]
        raise ChildError(
            f"{MOST_IDLE} attempts in a row came no further "
            f"than step {last.reached}: {last.stop or last.exit}"
        )


def undetected_damage(attempts: Sequence[DrillAttempt]) -> str | None:
    """Return damage that the next attempt did not detect; None if there is none."""
    for before, after in pairwise(attempts):
        if before.damage and before.damage.partition(":")[0] not in after.quarantined:
            return before.damage
    return None


def describe_attempt(attempt: DrillAttempt) -> str:
    """Return a description of the attempt, on one line."""
    came = (
        f"resumed at {SafePoint(attempt.restored_step, attempt.restored_phase)}"
        if attempt.restored
        else "started fresh"
    )
    how = (
        f"{attempt.signal} at step {attempt.reached}" if attempt.signal else attempt.stop or "ended"
    )
    saving = f" while saving {attempt.in_save}" if attempt.in_save else ""
    aside = f"; set aside {', '.join(attempt.quarantined)}" if attempt.quarantined else ""
    hurt = f"; then {attempt.damage}" if attempt.damage else ""
    return f"attempt {attempt.attempt}: {came}{aside}, {how}{saving}{hurt}"
