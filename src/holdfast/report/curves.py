"""The metrics of a run as curves: what counts, and what a later start did again. Pure."""

from __future__ import annotations

import math
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from ..journal import Event
from ..legible import counted
from .times import Position

MOST_NAMES = 3  # in a sentence
POINTS = 1000  # of a curve that is drawn
PHASES = ("step", "end", "exit")  # a checkpoint's step, an epoch's end, after the loop


class Curve(NamedTuple):
    """One metric. `steps` may repeat where an epoch ended at a step."""

    name: str
    steps: Sequence[int]
    values: Sequence[float]  # nan and inf are values
    undone: Sequence[tuple[int, Sequence[int], Sequence[float]]]  # (attempt, steps, values)
    again: int = 0  # values of `undone` that were logged again
    different: int = 0  # of them, by a later attempt


class _Values:
    """The values of one metric in one attempt, in order; of equal positions the last counts."""

    def __init__(self) -> None:
        self.at, self.values = array("q"), array("d")

    def add(self, at: int, value: float) -> None:
        if self.at and self.at[-1] == at:
            self.values[-1] = value
        else:
            self.at.append(at)
            self.values.append(value)


class MetricsReader:
    """Collects metrics while journals are read, newest attempt first."""

    def __init__(self) -> None:
        self._kept: dict[int, dict[str, _Values]] = {}
        self._undone: dict[int, dict[str, _Values]] = {}
        self._epochs: dict[int, _Values] = {}  # where each epoch began; nan: no epoch
        self._epoch: tuple[int, int | None] | None = None  # attempt and epoch of the last event

    def add(self, attempt: int, place: Position, event: Event, *, counts: bool) -> None:
        """Note the metrics in an event of an attempt; some were done again and do not count."""
        found = (self._kept if counts else self._undone).setdefault(attempt, {})
        at = place[0] * len(PHASES) + place[1]
        for name, value in event["values"].items():
            if (curve := found.get(name)) is None:
                curve = found[name] = _Values()
            curve.add(at, float(value))
        epoch = event.get("epoch")
        if counts and (attempt, epoch) != self._epoch:
            self._epoch = attempt, epoch
            begun = self._epochs.setdefault(attempt, _Values())
            begun.add(at, math.nan if epoch is None else epoch)

    def curves(self) -> list[Curve]:
        """Return each metric's curve, in the order in which they were logged first."""
        names: dict[str, None] = {}
        for attempt in sorted({*self._kept, *self._undone}):
            for found in (self._kept, self._undone):
                names |= dict.fromkeys(found.get(attempt, ()))
        return [self._curve(name) for name in names]

    def rows(self) -> Iterator[dict[str, Any]]:
        """Yield one row for each step that counts: step, phase, epoch and each metric."""
        places: dict[int, dict[str, float]] = {}
        attempts: dict[int, int] = {}  # the last that logged there
        for attempt in sorted(self._kept):
            for name, found in self._kept[attempt].items():
                for at, value in zip(found.at, found.values, strict=True):
                    places.setdefault(at, {})[name] = value
                    attempts[at] = attempt
        for at in sorted(places):
            step, phase = divmod(at, len(PHASES))
            epoch = self._epoch_at(attempts[at], at)
            yield {"step": step, "phase": PHASES[phase], "epoch": epoch, **places[at]}

    def _epoch_at(self, attempt: int, at: int) -> int | None:
        begun = self._epochs[attempt]
        epoch = begun.values[bisect_right(begun.at, at) - 1]
        return None if math.isnan(epoch) else int(epoch)

    def _curve(self, name: str) -> Curve:
        at, values = array("q"), array("d")
        for attempt in sorted(self._kept):
            if (found := self._kept[attempt].get(name)) is not None:
                again = bisect_left(at, found.at[0])  # the later attempt logged these once more
                at, values = at[:again] + found.at, values[:again] + found.values
        undone, again, different = [], 0, 0
        for attempt in sorted(self._undone):
            if (found := self._undone[attempt].get(name)) is not None:
                undone.append((attempt, [each // len(PHASES) for each in found.at], found.values))
                for place, value in zip(found.at, found.values, strict=True):
                    index = bisect_left(at, place)
                    if index < len(at) and at[index] == place:
                        again += 1
                        kept = values[index]
                        different += kept != value and not (math.isnan(kept) and math.isnan(value))
        steps = array("q", (each // len(PHASES) for each in at))
        return Curve(name, steps, values, undone, again, different)


def downsample(
    steps: Sequence[int], values: Sequence[float], points: int = POINTS
) -> tuple[list[int], list[float]]:
    """Return at most about so many points: of each stretch the least and the greatest value, the
    first and the last point of all, and the first value of a stretch that is no number.
    """
    if len(steps) <= points:
        return list(steps), list(values)
    width = math.ceil(2 * len(steps) / points)
    kept = {0, len(steps) - 1}
    for begin in range(0, len(steps), width):
        part = range(begin, min(begin + width, len(steps)))
        finite = [at for at in part if math.isfinite(values[at])]
        if finite:
            kept |= {min(finite, key=values.__getitem__), max(finite, key=values.__getitem__)}
        if len(finite) < len(part):
            kept.add(next(at for at in part if not math.isfinite(values[at])))
    chosen = sorted(kept)
    return [steps[at] for at in chosen], [values[at] for at in chosen]


def summarize(curve: Curve) -> Mapping[str, Any]:
    """Return the last, least and greatest value of a curve, and the first step without a number."""
    finite = [*filter(math.isfinite, curve.values)]
    least, greatest = min(finite, default=None), max(finite, default=None)
    broken = (s for s, v in zip(curve.steps, curve.values, strict=True) if not math.isfinite(v))
    return {
        "last": curve.values[-1] if curve.values else None,
        "min": least,
        "min_step": _first_step(curve, least),
        "max": greatest,
        "max_step": _first_step(curve, greatest),
        "not_finite_from": next(broken) if len(finite) < len(curve.values) else None,
        "points": len(curve.steps),
        "undone": sum(len(steps) for _, steps, _ in curve.undone),
    }


def describe(curve: Curve) -> str:
    """Return the last, least and greatest value of a curve in words."""
    facts = summarize(curve)
    words = [f"last {facts['last']:.5g}"] if facts["last"] is not None else []
    if facts["min"] is not None:
        words += [
            f"{word} {facts[word]:.5g} at step {facts[f'{word}_step']:,}" for word in ("min", "max")
        ]
    if facts["not_finite_from"] is not None:
        words.append(f"no number at step {facts['not_finite_from']:,}")
    return ", ".join(words)


def soundness(curves: Sequence[Curve]) -> list[str]:
    """Return whether the curves are sound, in sentences; none: there are no curves."""
    broken = [curve.name for curve in curves if not all(map(math.isfinite, curve.values))]
    lines = []
    again, other = sum(curve.again for curve in curves), [c for c in curves if c.different]
    if other:
        names = ", ".join(curve.name for curve in other[:MOST_NAMES])
        lines.append(
            f"Of the {counted(again, 'value')} that were logged again "
            f"{sum(curve.different for curve in other):,} differ ({names}): unless these are "
            "measured times, the run did not resume exactly, and `holdfast drill` finds the cause"
        )
    elif again:
        lines.append(f"One curve: all values logged again ({again:,}) are equal to the first ones")
    if curves:
        bad = "Logged values are NaN or infinite: " + ", ".join(broken[:MOST_NAMES])
        lines.append(bad if broken else "No logged value is NaN or infinite")
    return lines


def _first_step(curve: Curve, value: float | None) -> int | None:
    """Return the first step with this value: of equal ones keep=Best(...) takes it, too."""
    return None if value is None else curve.steps[curve.values.index(value)]
