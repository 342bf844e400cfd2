"""Arguments: checks the arguments of a loop at once; an error shows what to write instead."""

from __future__ import annotations

import sys
from operator import index
from typing import Any

from ..errors import UsageError

ENDLESS = sys.maxsize  # the total of a run.steps() without one


def epochs_wanted(total: int | range) -> range:
    """Return the range of epochs of run.epochs(total).

    Raises:
        UsageError: `total` is neither a number of epochs nor a range of them with step 1.
    """
    if isinstance(total, range):
        if total.step != 1 or total.start < 0:
            raise UsageError(f"run.epochs({total!r}): give a range with step 1 and no negative start: range(1, 11)")
        return range(total.start, max(total.start, total.stop))
    return range(
        _whole(total, f"run.epochs({total!r}): give a number of epochs, as in run.epochs(10), or range(1, 11)")
    )


def steps_wanted(total: int) -> int:
    """Check the number of steps.

    Raises:
        UsageError: `total` is not a number of steps.
    """
    return _whole(total, f"run.steps({total!r}): give a number of steps, as in run.steps(1000); run.steps() has no end")


def group_wanted(accumulate: int) -> int:
    """Check the number of batches per group.

    Raises:
        UsageError: `accumulate` is not a whole number of at least 1.
    """
    asked = f"accumulate={accumulate!r}: at least 1 is wanted, as in run.batches(loader, accumulate=4)"
    found = _whole(accumulate, asked)
    if found < 1:
        raise UsageError(asked)
    return found


def consumed_wanted(batches: int, least: int) -> int:
    """Check the number of batches that a step consumed.

    Raises:
        UsageError: `batches` is not a whole number of at least `least`.
    """
    return _whole(
        batches, f"batches={batches!r}: at least {least} is wanted, the batches that the step consumed", least
    )


def name_wanted(name: str) -> str:
    """Check the name of a loader.

    Raises:
        UsageError: `name` cannot name a loader's position.
    """
    if not isinstance(name, str) or not name:
        raise UsageError(f'name={name!r}: give each loader a name of its own, as in run.batches(loader, name="train")')
    return name


def start_wanted(start: int) -> int:
    """Check the first number of an enumeration.

    Raises:
        UsageError: run.enumerate() cannot count from `start`.
    """
    asked = f'start={start!r}: give a whole number; the loader\'s name is name=, as in run.enumerate(loader, name="a")'
    return _whole(start, asked, least=-ENDLESS)


def _whole(value: Any, asked: str, least: int = 0) -> int:
    try:
        found = None if isinstance(value, bool) else index(value)
    except TypeError:  # a float, a string, None
        found = None
    if found is None or not least <= found <= ENDLESS:
        raise UsageError(asked)
    return found
