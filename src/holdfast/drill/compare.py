"""Compare: where two runs diverge, first in their states, then in their metrics. Pure.

The comparison is bit for bit, without tolerance.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from fnmatch import fnmatchcase
from typing import NamedTuple

from ..run.metrics import TIMINGS
from .evidence import MetricLine, RunTrace, StateRecord, generator_of, present_state_key
from .safepoint import SafePoint


class StateDifference(NamedTuple):
    """The first safe point at which a run's state differed from the reference run's."""

    place: SafePoint
    attempt: int
    # keys that differ, models before what depends on them; empty: one run never got there
    leaves: tuple[str, ...]
    what: str


class MetricDifference(NamedTuple):
    place: SafePoint
    name: str  # empty: the whole line
    what: str  # "missing" | "duplicate" | "extra" | "0.25 became 0.5"

    def __str__(self) -> str:
        return f"{self.name or 'a line'} at {self.place}: {self.what}"


def idle_generators(a: RunTrace, b: RunTrace) -> frozenset[str]:
    """Return the global generators that were neither seeded nor used: their state differs by run,
    but never changes.

    The comparison requires that their state is constant within a run, across all resumes.
    """
    mine, others = (_generators(trace.states) for trace in (a, b))
    still = [
        name
        for name in mine.keys() & others.keys()
        if _is_constant(mine[name]) and _is_constant(others[name])
    ]
    return frozenset(name for name in still if mine[name] != others[name])


def _generators(states: Sequence[StateRecord]) -> dict[str, set[tuple[str, str]]]:
    """Return, for each global generator, the parts of its state and the digests of each."""
    found: dict[str, set[tuple[str, str]]] = defaultdict(set)
    for seen in states:
        for key, digest in seen.leaves.items():
            name = generator_of(key)
            if name is not None:
                found[name].add((present_state_key(key), digest))
    return found


def _is_constant(parts: set[tuple[str, str]]) -> bool:
    """Whether each part of a generator's state has only one digest."""
    return len(parts) == len(dict(parts))


def first_state_difference(
    reference: RunTrace, other: RunTrace, idle: frozenset[str] = frozenset()
) -> StateDifference | None:
    """Return where `other` first differed from the reference run's states; None if it never did.

    Work that a later kill undid counts too: it was done after a resume that should have been exact.
    """
    expected = {seen.place: seen.leaves for seen in reference.states}
    own = _own_generators(other, idle)
    for seen in sorted(other.states, key=_run_order):
        if seen.place not in expected:
            return StateDifference(
                seen.place, seen.attempt, (), "the uninterrupted run has no such safe point"
            )
        mine = own.get(seen.attempt, {})
        wanted = {
            key: mine.get(present_state_key(key), digest)
            for key, digest in expected[seen.place].items()
        }
        changed = tuple(
            key for key in {**wanted, **seen.leaves} if wanted.get(key) != seen.leaves.get(key)
        )
        if changed:
            what = f"{len(changed)} of {len(expected[seen.place])} leaves differ"
            return StateDifference(seen.place, seen.attempt, changed, what)
    reached = {seen.place for seen in other.states}
    missing = [
        seen for seen in sorted(reference.states, key=_run_order) if seen.place not in reached
    ]
    if missing:
        last = max((seen.attempt for seen in other.states), default=0)
        return StateDifference(missing[0].place, last, (), "the interrupted run never came there")
    return None


def _own_generators(trace: RunTrace, idle: frozenset[str]) -> dict[int, dict[str, str]]:
    """Return, for each attempt, the required state of its idle generators: that of the fresh start
    from which it descends.

    The keys are those of the present state. The state at an epoch's begin, if there is one, must be
    the same.
    """
    found: dict[int, dict[str, str]] = {}
    current: dict[str, str] = {}
    for seen in trace.states:
        if seen.attempt not in found and trace.restored.get(seen.attempt, SafePoint(0)).step == 0:
            current = {
                present_state_key(key): digest
                for key, digest in seen.leaves.items()
                if generator_of(key) in idle
            }
        found.setdefault(seen.attempt, current)
    return found


def _run_order(seen: StateRecord) -> tuple[tuple[int, int], int]:
    return seen.place.order, seen.attempt


def metric_differences(
    reference: Sequence[MetricLine], other: Sequence[MetricLine], exempt: Sequence[str] = TIMINGS
) -> list[MetricDifference]:
    """Return the differences between two metrics logs, in the run's order; names that match
    `exempt` are ignored.
    """
    mine, others = _by_place(reference), _by_place(other)
    passed = exempt_metrics([*reference, *other], exempt)
    found: list[MetricDifference] = []
    for place in sorted(mine.keys() | others.keys(), key=lambda place: place.order):
        a, b = mine[place], others[place]
        if len(b) != len(a):
            what = "missing" if len(b) < len(a) else "duplicate" if a else "extra"
            found.append(MetricDifference(place, "", what))
        for line, beside in zip(a, b, strict=False):
            found += _value_differences(place, line, beside, passed)
    return found


def exempt_metrics(lines: Sequence[MetricLine], exempt: Sequence[str]) -> list[str]:
    """Return the names of metrics that a comparison ignores."""
    names = {name for line in lines for name in line.values}
    return sorted(name for name in names if any(fnmatchcase(name, pattern) for pattern in exempt))


def _by_place(lines: Sequence[MetricLine]) -> defaultdict[SafePoint, list[MetricLine]]:
    found = defaultdict[SafePoint, list[MetricLine]](list)
    for line in lines:
        found[line.place].append(line)
    return found


def _value_differences(
    place: SafePoint, a: MetricLine, b: MetricLine, passed: Sequence[str]
) -> Iterable[MetricDifference]:
    for name in sorted({*a.values, *b.values}.difference(passed)):
        was, now = a.values.get(name), b.values.get(name)
        if repr(was) != repr(now):  # repr is exact, and distinguishes -0.0 from 0.0
            was, now = ("nothing" if value is None else value for value in (was, now))
            yield MetricDifference(place, name, f"{was} became {now}")
    if a.epoch != b.epoch:
        yield MetricDifference(place, "epoch", f"{a.epoch} became {b.epoch}")
