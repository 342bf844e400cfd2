"""Patience: repeats a request to a place that does not answer."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from ..mirror.place import Silent

T = TypeVar("T")

PATIENCE_S = 60.0  # after which a command gives up
LONGEST_WAIT_S = 5.0


def patiently(act: Callable[[], T], tell: Callable[[str], None]) -> T:
    """Return what `act` returns. While the place is silent, `tell` it, and call `act` again after a growing pause.

    Raises:
        Silent: the place did not answer for a minute.
    """
    import tenacity  # imported late: most commands ask no place

    again = tenacity.Retrying(
        retry=tenacity.retry_if_exception_type(Silent),
        wait=tenacity.wait_random_exponential(multiplier=0.2, max=LONGEST_WAIT_S),
        stop=tenacity.stop_after_delay(PATIENCE_S),
        before_sleep=lambda state: tell(f"asks again: {state.outcome.exception() if state.outcome else ''}"),
        reraise=True,
    )
    return again(act)
