"""Means: running sums over what an epoch has logged, in the order of the calls."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..errors import UsageError

MOST_WEIGHTS = 8  # of one call's metrics, those that can be weights: the cost of a call is this times its metrics
_PLAIN = ""  # the weight of a mean without one: each call counts 1

Logged = Mapping[str, float | str]


class Means:
    """For each metric, and each weight logged in the same call: the sum and the count so far.

    They are what a loop's own `total += loss * n; count += n` holds, bit for bit, and are saved with the run.
    """

    def __init__(self, stored: Mapping[str, Mapping[str, list[float]]] | None = None) -> None:
        self._sums = {name: {weight: [*pair] for weight, pair in by.items()} for name, by in (stored or {}).items()}

    def state_dict(self) -> dict[str, dict[str, list[float]]]:
        return {name: {weight: [*pair] for weight, pair in by.items()} for name, by in self._sums.items()}

    def clear(self) -> None:
        self._sums.clear()

    def add(self, logged: Logged) -> None:
        """One call of run.log()."""
        values = {name: float(value) if isinstance(value, str) else value for name, value in logged.items()}
        weights = [*values.items()][:MOST_WEIGHTS]
        for name, value in values.items():
            by = self._sums.setdefault(name, {_PLAIN: [0.0, 0.0]})
            pair = by[_PLAIN]
            pair[0] += value
            pair[1] += 1
            for weight, count in weights:
                if weight != name:
                    pair = by.get(weight) or by.setdefault(weight, [0.0, 0.0])
                    pair[0] += value * count
                    pair[1] += count

    def mean(self, name: str, weight: str | None = None) -> float:
        """
        Raises:
            UsageError: there is nothing to take a mean of.
        """
        if weight is not None and not isinstance(weight, str):
            raise UsageError(
                f"run.mean({name!r}, weight={weight!r}): the weight is the name of a metric of the same call: "
                f'run.log({name}=..., n=len(x)), then run.mean({name!r}, weight="n")'
            )
        pair = self._sums.get(name, {}).get(weight or _PLAIN)
        if pair is None:
            raise UsageError(self._missing(name, weight))
        total, count = pair
        if count == 0:
            raise UsageError(f"run.mean({name!r}, weight={weight!r}): the weights add up to 0")
        return total / count

    def _missing(self, name: Any, weight: str | None) -> str:
        if name not in self._sums:
            known = ", ".join(self._sums) or "nothing"
            return f"run.mean({name!r}): run.log() was not given {name!r} in this epoch, but {known}"
        known = ", ".join(other for other in self._sums[name] if other != _PLAIN) or "nothing else"
        return (
            f"run.mean({name!r}, weight={weight!r}): log the weight in the same call, as one of its first {MOST_WEIGHTS} "
            f"metrics: run.log({name}=..., {weight}=...). Logged with {name!r} so far: {known}"
        )
