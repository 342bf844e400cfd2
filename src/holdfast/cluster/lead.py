"""Lead: how long before its end a job has to be told, by what its saves have taken. Pure."""

from __future__ import annotations

import math

from ..interval import LEAVE_S, SAVE_MARGIN

LATE_S = 30  # limits are looked at every 30 s: a notice may come as much before its lead


def needed_s(save_s: float) -> float:
    """Seconds that a save may take, and leaving after it, when it took `save_s` before."""
    return SAVE_MARGIN * save_s + LEAVE_S


def enough_s(save_s: float) -> int:
    """A lead to ask for, when a save took `save_s`."""
    return math.ceil(needed_s(save_s)) + LATE_S
