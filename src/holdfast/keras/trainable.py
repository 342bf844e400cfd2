"""The arrays of a captured Keras object that are trainable variables or moments.

A save checks whether their numbers are finite. Moving statistics, metrics and counters are not
checked.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from .state import Optimizer, Variables


def trainable_leaves(target: object, captured: Any) -> Iterator[Any]:
    """Yield the parameters, or the moments,
    among the arrays of `captured`: the state of `target`.
    """
    if isinstance(target, Variables):
        yield from (
            each
            for each, of_layer in zip(captured.values(), target.trainable_flags(), strict=False)
            if of_layer
        )
    elif isinstance(target, Optimizer):
        yield from (each for each in captured["variables"].values() if each.ndim > 0)
