"""Lineage: which checkpoints lead to a run's current state, over its directory and all places.
Pure.

All checkpoints of the newest attempt that has resumed, or has saved, belong to it. Of the attempt
that it resumed from, those up to the restored checkpoint belong to it, and so on. A checkpoint that
a replaced process saved later, a *ghost*, does not.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import groupby
from typing import NamedTuple

from ..retention import CheckpointFacts
from ..store.format import parse_name
from .records import ResumeOrigin

HERE = -1  # the run's own directory, as a place


class HeldCheckpoint(NamedTuple):
    """A checkpoint at one place. Places are numbered by their distance:
    the run's own directory is `HERE`.
    """

    place: int
    attempt: int  # that wrote it
    name: str
    digest: str  # of its manifest


class CheckpointCopy(NamedTuple):
    """A copy of this run's lineage at a place."""

    attempt: int  # in whose folder it lies
    facts: CheckpointFacts


class LineageCheckpoint(NamedTuple):
    """A checkpoint of the lineage, and where it is: the nearest first."""

    attempt: int
    name: str
    digest: str
    places: tuple[int, ...]


def merge_origins(known: Iterable[tuple[int, ResumeOrigin | None]]) -> dict[int, ResumeOrigin]:
    """Merge the origin of each attempt from the places and the run's journals. None: it has not
    resumed or begun yet.

    Raises:
        ValueError: two places tell different origins of one attempt: two processes used its number.
    """
    found: dict[int, ResumeOrigin] = {}
    for attempt, origin in known:
        if origin is not None and found.setdefault(attempt, origin) != origin:
            first, second = _describe_origin(found[attempt]), _describe_origin(origin)
            raise ValueError(f"attempt {attempt} went on from {first}, and elsewhere from {second}")
    return found


def compute_lineage(
    came_from: Mapping[int, ResumeOrigin], held: Iterable[HeldCheckpoint]
) -> list[LineageCheckpoint]:
    """Return the checkpoints of the present lineage, the newest first."""
    by_attempt: dict[int, list[HeldCheckpoint]] = {}
    for each in held:
        if parse_name(each.name) is not None:
            by_attempt.setdefault(each.attempt, []).append(each)
    chosen: list[LineageCheckpoint] = []
    attempt = max([*came_from, *by_attempt], default=None)
    until: str | None = None
    while attempt is not None:
        chosen += _attempt_checkpoints(attempt, until, by_attempt.get(attempt, ()))
        origin = came_from.get(attempt)
        earlier = None if origin is None else origin.attempt
        if origin is not None and origin.name is not None:
            # the origin may name an attempt that had gone on from this very checkpoint, or from a
            # later one
            until = origin.name if until is None else min(until, origin.name, key=_name_order)
        # a record that leads forwards or to itself is damaged, and is ignored
        attempt = earlier if earlier is not None and earlier < attempt else None
    return chosen


def _attempt_checkpoints(
    attempt: int, until: str | None, held: Sequence[HeldCheckpoint]
) -> list[LineageCheckpoint]:
    """The checkpoints of one attempt, up to the name `until`,
    the newest first; of one name the nearest first.
    """
    within = [
        each for each in held if until is None or _name_order(each.name) <= _name_order(until)
    ]

    def key(each: HeldCheckpoint) -> tuple[tuple[int, int], str]:
        return _name_order(each.name), each.digest

    groups = [tuple(group) for _, group in groupby(sorted(within, key=key), key=key)]
    found = [
        LineageCheckpoint(
            attempt, group[0].name, group[0].digest, tuple(sorted({each.place for each in group}))
        )
        for group in groups
    ]
    nearest = sorted(found, key=lambda each: each.places)
    return sorted(nearest, key=lambda each: _name_order(each.name), reverse=True)


def _describe_origin(origin: ResumeOrigin) -> str:
    return "nothing" if origin.attempt is None else f"{origin.name} of attempt {origin.attempt}"


def _name_order(name: str) -> tuple[int, int]:
    parsed = parse_name(name)
    return (-1, 0) if parsed is None else parsed.order
