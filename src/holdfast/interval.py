"""When the next save is due, and when a deadline leaves no time for another step.
Pure: the caller gives the time.
"""

from __future__ import annotations

import math
from typing import NamedTuple

from .rules import Every

SAVE_MARGIN = 1.5  # a save into a busy file system takes longer than the measured one
LATE_S = 30  # Slurm checks its limits every 30 s, so a notice may be that late
LEAVE_S = 1.0  # for the journal, open files and the interpreter's exit, after the save


class SafePointMark(NamedTuple):
    """One safe point: its position and when it was reached."""

    step: int
    epoch: int  # counted from 0
    seconds: float  # on a monotonic clock
    at_end: bool  # whether it is after the epoch's body


def save_is_due(every: Every | None, *, last: SafePointMark, now: SafePointMark) -> bool:
    """Return whether to save at `now`. The last save (or the start) was at `last`.

    Steps and epochs count from the run's beginning, not from the last save: saves forced in between
    (a new best, a stop) do not shift the ones that follow. Epochs are due at their end only.
    """
    if every is None:
        return False
    if every.steps is not None:
        return now.step // every.steps > last.step // every.steps
    if every.minutes is not None:
        return now.seconds - last.seconds >= 60 * every.minutes
    if every.epochs is not None:
        return now.at_end and _epochs_done(now) // every.epochs > _epochs_done(last) // every.epochs
    return False


def must_stop(now_s: float, deadline_s: float, save_s: float, step_s: float) -> bool:
    """Return whether one more step would leave too little time before the deadline to save and
    exit.

    `save_s` and `step_s` are the times that a save and a step have taken so far. Both times use one
    clock.
    """
    return deadline_s - now_s < exit_time_s(save_s) + step_s


def _epochs_done(mark: SafePointMark) -> int:
    return mark.epoch + mark.at_end


def exit_time_s(save_s: float) -> float:
    """Return the seconds that a save and the exit after it may take. The last save took
    `save_s`.
    """
    return SAVE_MARGIN * save_s + LEAVE_S


def notice_time_s(save_s: float) -> int:
    """Return how many seconds before the end of a job to request a notice. A save takes
    `save_s`.
    """
    return math.ceil(exit_time_s(save_s)) + LATE_S
