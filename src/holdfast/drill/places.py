"""Places: from which safe points to resume a run, so that each kind of them is tried. Pure.

A resume proves nothing at a number that the script itself counts by: with `if index % 3 == 0`,
index 6 begins as index 0 does. So steps, and counts within an epoch, with few small divisors are
preferred.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence
from itertools import pairwise, takewhile
from math import gcd
from typing import NamedTuple

from ..data.order import derive_key
from .evidence import StateRecord
from .safepoint import SafePoint

FIRST = "in the first epoch"
LATER = "in a later epoch"
LAST = "after an epoch's last batch"
END = "at an epoch's end"
AGAIN = "soon after a resume"
EARLY, LATE = "in the first half", "in the second half"  # of a run without epochs
FURTHER = "elsewhere"

_PERIODS = range(2, 13)  # periods that a loop is likely to use
_SOON = 3  # safe points from a resume to the next one


def seeded_fraction(*parts: object) -> float:
    """Return a number in [0, 1) that depends on every part,
    so that a drill's choices depend only on its seed.
    """
    return derive_key("drill", *parts) / 2**64


class ResumeTarget(NamedTuple):
    """A safe point from which the drill resumes the run, and its kind."""

    place: SafePoint
    kind: str


class SafePointSequence:
    """The safe points of the reference run, in order. A run can be resumed from all but the
    last.
    """

    def __init__(self, states: Sequence[StateRecord]) -> None:
        first = states[0].epoch if states else 0  # 1 with `run.epochs(range(1, 11))`
        self._epochs = {seen.place: seen.epoch - first for seen in states}
        self._all = [*self._epochs]
        self.places = self._all[:-1]
        self._number = {place: number for number, place in enumerate(self.places)}
        self._inner = [
            place
            for place in self.places
            if place.phase == "step" and not self._is_last_batch(place)
        ]
        self._counts: dict[SafePoint, int] = {}  # how many steps of its epoch are done there
        done = Counter[int]()
        for place, epoch in self._epochs.items():
            done[epoch] += place.phase == "step"
            self._counts[place] = done[epoch]
        self._last_epoch = max(self._epochs.values(), default=0)

    def kind_of_place(self, place: SafePoint) -> str:
        """Return what kind of place it is, independent of the reason for choosing it."""
        if place.phase == "end":
            return END
        if self._is_last_batch(place):
            return LAST
        if self._last_epoch:
            return LATER if self._epochs[place] else FIRST
        return EARLY if self._number[place] < len(self.places) // 2 else LATE

    def point_before(self, place: SafePoint) -> SafePoint | None:
        """Return the safe point before `place`."""
        number = self._number[place]
        return self.places[number - 1] if number else None

    def points_after(self, place: SafePoint, most: int) -> list[SafePoint]:
        """Return the next safe points after `place`,
        up to `most`, without the last one of the run.
        """
        number = self._number[place] + 1
        return self.places[number : number + most]

    def free_points_after(
        self, place: SafePoint, most: int, taken: Collection[SafePoint]
    ) -> list[SafePoint]:
        """Return the same, up to the first point that is taken."""
        return list(takewhile(lambda after: after not in taken, self.points_after(place, most)))

    def choose_targets(self, kills: int, seed: int) -> list[ResumeTarget]:
        """Return as many places as kills, or as there are,
        in the order of the run: one of each kind first.
        """
        chosen: dict[SafePoint, str] = {}
        for kind, candidates in self._candidates_by_kind(chosen, seed):
            if len(chosen) < kills and candidates:
                chosen[self._pick_candidate(candidates, chosen, seed, kind)] = kind
        targets = [ResumeTarget(place, kind) for place, kind in chosen.items()]
        return self._sort_targets(
            [*targets, *self.choose_more_targets(kills - len(chosen), chosen, SafePoint(0), seed)]
        )

    def choose_more_targets(
        self, missing: int, taken: Collection[SafePoint], after: SafePoint, seed: int
    ) -> list[ResumeTarget]:
        """Return up to `missing` further places beyond `after`.

        Each is in the middle of the widest gap between those that are taken.
        """
        begin = sum(place.order <= after.order for place in self.places) - 1
        found, used = list[SafePoint](), {*taken}
        while len(found) < missing:
            numbers = {number for place in used if (number := self._number.get(place, -1)) > begin}
            edges = pairwise(sorted({begin, len(self.places), *numbers}))
            before, after_it = max(edges, key=lambda pair: pair[1] - pair[0])
            inside = self.places[before + 1 : after_it]
            if not inside:
                break
            middle = _without_edges(inside, 4)
            steps = [place for place in middle if place.phase == "step"]
            found.append(
                self._pick_candidate(steps or middle, used, seed, f"{FURTHER} {len(found)}")
            )
            used.add(found[-1])
        return self._sort_targets(ResumeTarget(place, FURTHER) for place in found)

    def _candidates_by_kind(
        self, chosen: Collection[SafePoint], seed: int
    ) -> Iterator[tuple[str, Sequence[SafePoint]]]:
        """Yield each kind of place with its candidates, the most informative kind first."""
        if self._last_epoch:
            epochs: dict[int, list[SafePoint]] = {}
            for place in self._inner:
                epochs.setdefault(self._epochs[place], []).append(place)
            # after the one-time work of early epochs
            late = range(self._last_epoch // 2 + 1, self._last_epoch + 1)
            yield (
                LATER,
                [place for epoch in late for place in _without_edges(epochs.get(epoch, []), 5)],
            )
            yield FIRST, _without_edges(epochs.get(0, []), 5)
        else:
            half = len(self._inner) // 2
            yield LATE, _without_edges(self._inner[half:], 4)
            yield EARLY, self._inner[half // 4 : half]
        last = [place for place in self.places if self._is_last_batch(place)]
        # not the run's last batch, if there is another: after it little is left to do
        yield LAST, last[:-1] or last
        yield END, [place for place in self.places if place.phase == "end"]
        yield AGAIN, self._points_soon_after(chosen, seed)

    def _points_soon_after(self, chosen: Collection[SafePoint], seed: int) -> list[SafePoint]:
        """Return the places a few steps beyond one of those chosen,
        with no chosen one in between.
        """
        places = sorted(chosen, key=lambda place: seeded_fraction(seed, AGAIN, *place))
        return next(
            filter(None, (self.free_points_after(place, _SOON, chosen) for place in places)), []
        )

    def _pick_candidate(
        self, candidates: Sequence[SafePoint], chosen: Collection[SafePoint], seed: int, kind: str
    ) -> SafePoint:
        """Return one of the candidates with the fewest small divisors, and no divisor common to
        all chosen before.
        """
        inside = [self._steps_done(place) for place in chosen if place in self._inner]

        def cost(place: SafePoint) -> float:
            both = (
                [gcd(*numbers) for numbers in zip(*inside, self._steps_done(place), strict=True)]
                if inside
                else []
            )
            return self.regularity(place) + 100 * sum(each > 1 for each in both)

        costs = {place: cost(place) for place in candidates}
        least = min(costs.values())
        good = [place for place in candidates if costs[place] == least]
        if len(good) == 1:  # so that seeds differ
            good = [place for place in candidates if costs[place] <= least + 0.5]
        return good[int(seeded_fraction(seed, kind) * len(good))]

    def regularity(self, place: SafePoint) -> float:
        """Return how likely a script counts by a number that divides the steps done there; small
        numbers weigh most.
        """
        return sum(
            1 / period
            for number in set(self._steps_done(place))
            for period in _PERIODS
            if number % period == 0
        )

    def _steps_done(self, place: SafePoint) -> tuple[int, int]:
        """Return how many steps are done there, of the run and of the epoch."""
        return place.step, self._counts[place]

    def _is_last_batch(self, place: SafePoint) -> bool:
        return place.phase == "step" and self._all[self._number[place] + 1] == SafePoint(
            place.step, "end"
        )

    def _sort_targets(self, targets: Iterable[ResumeTarget]) -> list[ResumeTarget]:
        return sorted(targets, key=lambda target: target.place.order)


def _without_edges(places: Sequence[SafePoint], part: int) -> Sequence[SafePoint]:
    """Return the places without 1/`part` of them at each edge."""
    edge = len(places) // part
    return places[edge : len(places) - edge]
