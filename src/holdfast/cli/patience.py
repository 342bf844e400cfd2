"""Patience: places for commands, asked again and again while they do not answer."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from ..mirror.backends import open_place

if TYPE_CHECKING:
    from ..mirror.retrying import RetryingPlace

PATIENCE_S = 60.0  # without an answer, before a command that has begun gives up


def patient_place(text: str, tell: Callable[[str], None]) -> RetryingPlace:
    """Return the place of that address. `tell` hears of each error before the place is asked again.

    It is asked once until `wait_longer`: a command begins only with a place that answers.
    """
    from ..mirror.retrying import RetryingPlace  # imported late: most commands ask no place

    return RetryingPlace(open_place(text), lambda error: tell(f"asks again: {error}"), budget_s=0.0)


def wait_longer(place: RetryingPlace) -> None:
    """From now on ask the place again while it does not answer."""
    place.budget_s = PATIENCE_S
