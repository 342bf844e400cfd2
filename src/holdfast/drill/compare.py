"""Compare: where two runs part ways, first in their states, then in their metrics. Pure, bit for bit, without
tolerance.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from fnmatch import fnmatchcase
from typing import NamedTuple

from .evidence import Line, RunEvidence, Trace, generator_of, present
from .safepoint import SafePoint

TIMINGS = ("*_s", "*seconds*", "*time*", "*per_s*", "*throughput*")  # metrics that no two runs share


class Parting(NamedTuple):
    """The first safe point at which a run's state was not the reference run's."""

    place: SafePoint
    attempt: int
    leaves: tuple[str, ...]  # keys that differ, models before what depends on them; empty: one run was never there
    what: str


class MetricDifference(NamedTuple):
    place: SafePoint
    name: str  # empty when a whole line is meant
    what: str  # "missing" | "duplicate" | "extra" | "0.25 became 0.5"

    def __str__(self) -> str:
        return f"{self.name or 'a line'} at {self.place}: {self.what}"


def idle(a: Trace, b: Trace) -> frozenset[str]:
    """Global generators that nobody seeded and nobody drew from: each run has its own state of them, from start to end.

    The comparison asks of them that they stay what they are within a run, across all its resumes.
    """
    mine, others = (_generators(trace.states) for trace in (a, b))
    still = [name for name in mine.keys() & others.keys() if _is_one(mine[name]) and _is_one(others[name])]
    return frozenset(name for name in still if mine[name] != others[name])


def _generators(states: Sequence[RunEvidence]) -> dict[str, set[tuple[str, str]]]:
    """Of each global generator: the parts of its state, and the digests that they had."""
    found: dict[str, set[tuple[str, str]]] = defaultdict(set)
    for seen in states:
        for key, digest in seen.leaves.items():
            name = generator_of(key)
            if name is not None:
                found[name].add((present(key), digest))
    return found


def _is_one(parts: set[tuple[str, str]]) -> bool:
    """Whether each part has one digest only."""
    return len(parts) == len(dict(parts))


def parting(reference: Trace, other: Trace, idle: frozenset[str] = frozenset()) -> Parting | None:
    """Where `other` first left the reference run's states; None when each of them is one of the reference run's.

    Work that was undone by a later kill counts too: it was done after a resume that should have been exact.
    """
    expected = {seen.place: seen.leaves for seen in reference.states}
    own = _own_generators(other, idle)
    for seen in sorted(other.states, key=_when):
        if seen.place not in expected:
            return Parting(seen.place, seen.attempt, (), "the uninterrupted run has no such safe point")
        mine = own.get(seen.attempt, {})
        wanted = {key: mine.get(present(key), digest) for key, digest in expected[seen.place].items()}
        changed = tuple(key for key in {**wanted, **seen.leaves} if wanted.get(key) != seen.leaves.get(key))
        if changed:
            what = f"{len(changed)} of {len(expected[seen.place])} leaves differ"
            return Parting(seen.place, seen.attempt, changed, what)
    reached = {seen.place for seen in other.states}
    missing = [seen for seen in sorted(reference.states, key=_when) if seen.place not in reached]
    if missing:
        last = max((seen.attempt for seen in other.states), default=0)
        return Parting(missing[0].place, last, (), "the interrupted run never came there")
    return None


def _own_generators(trace: Trace, idle: frozenset[str]) -> dict[int, dict[str, str]]:
    """For each attempt, what its idle generators have to be: what they were in the fresh start that it goes back to.

    Under the keys of the present state: that of an epoch's begin, where there is one, is the same.
    """
    found: dict[int, dict[str, str]] = {}
    current: dict[str, str] = {}
    for seen in trace.states:
        if seen.attempt not in found and trace.restored.get(seen.attempt, SafePoint(0)).step == 0:
            current = {present(key): digest for key, digest in seen.leaves.items() if generator_of(key) in idle}
        found.setdefault(seen.attempt, current)
    return found


def _when(seen: RunEvidence) -> tuple[tuple[int, int], int]:
    return seen.place.order, seen.attempt


def metric_differences(
    reference: Sequence[Line], other: Sequence[Line], exempt: Sequence[str] = TIMINGS
) -> list[MetricDifference]:
    """What differs between two metrics logs, in the order of the run; names that match `exempt` are passed over."""
    mine, others = _by_place(reference), _by_place(other)
    passed = exempted([*reference, *other], exempt)
    found: list[MetricDifference] = []
    for place in sorted(mine.keys() | others.keys(), key=lambda place: place.order):
        a, b = mine[place], others[place]
        if len(b) != len(a):
            what = "missing" if len(b) < len(a) else "duplicate" if a else "extra"
            found.append(MetricDifference(place, "", what))
        for line, beside in zip(a, b, strict=False):
            found += _values(place, line, beside, passed)
    return found


def exempted(lines: Sequence[Line], exempt: Sequence[str]) -> list[str]:
    """Names of metrics that a comparison passes over."""
    names = {name for line in lines for name in line.values}
    return sorted(name for name in names if any(fnmatchcase(name, pattern) for pattern in exempt))


def _by_place(lines: Sequence[Line]) -> defaultdict[SafePoint, list[Line]]:
    found = defaultdict[SafePoint, list[Line]](list)
    for line in lines:
        found[line.place].append(line)
    return found


def _values(place: SafePoint, a: Line, b: Line, passed: Sequence[str]) -> Iterable[MetricDifference]:
    for name in sorted({*a.values, *b.values}.difference(passed)):
        was, now = a.values.get(name), b.values.get(name)
        if repr(was) != repr(now):  # repr: exact, and tells -0.0 from 0.0
            was, now = ("nothing" if value is None else value for value in (was, now))
            yield MetricDifference(place, name, f"{was} became {now}")
    if a.epoch != b.epoch:
        yield MetricDifference(place, "epoch", f"{a.epoch} became {b.epoch}")
