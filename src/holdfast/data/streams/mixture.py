"""Mixtures: which source each place of a stream takes, and the how-manieth sample of it."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Mapping, Sequence
from fractions import Fraction
from typing import Any, NamedTuple

import numpy as np

from ...errors import UsageError
from ..order import Shuffle, derive_key
from ..seekable import STREAM_ORDER
from .orders import Ids, RecentValues
from .passes import Pack, Passes
from .source import as_source

FIRST, ALL = "first", "all"  # an epoch ends when such sources have been read whole

_BLOCK = 1024  # places within which the sources are shuffled


class Mix:
    """Several sources, by weight.

    `weights`: None for their lengths, numbers, or numbers by name; a list of (place, weights) for
    weights that change in the course of an epoch. `until`: an epoch ends when the `"first"` source
    has been read whole, when `"all"` have been, or after so many samples.
    """

    def __init__(
        self,
        sources: Mapping[str, Any] | Sequence[Any],
        weights: Any = None,
        *,
        until: str | int = FIRST,
    ) -> None:
        if until not in (FIRST, ALL) and not (isinstance(until, int) and until > 0):
            raise UsageError(f"until is 'first', 'all' or a number of samples, not {until!r}")
        named = sources if isinstance(sources, Mapping) else dict(enumerate(sources))
        self.sources = {
            str(name): each if isinstance(each, Pack) else as_source(each)
            for name, each in named.items()
        }
        phases_of(weights, [*self.sources], [1] * len(named))  # else a mistake shows much later
        self.weights, self.until = weights, until

    def __repr__(self) -> str:
        packs = {
            name: each if isinstance(each, Pack) else None for name, each in self.sources.items()
        }
        return f"Mix({packs}, {self.weights}, until={self.until!r})"


class Phase(NamedTuple):
    """The weights of the sources from a place of the stream on."""

    begins: int
    weights: Sequence[float]


class _Shares(NamedTuple):
    """The sources' shares of the places of one phase."""

    begins: int
    parts: list[int]  # the weights as whole numbers, so that counts are exact

    def counts(self, places: int) -> list[int]:
        """Return how many of the first `places` places each source takes; they sum to `places`, and
        with more places none of them is less.
        """
        return _shared_out(places, self.parts)


class _Block(NamedTuple):
    sources: Ids  # of each place of the block
    ranks: Ids  # how many places of the same source came before it in this epoch


class Mixture:
    """Places of an epoch that are shared out between sources by weight.

    Of every block of places each source takes its share, as whole numbers allow, and the order
    within the block is drawn. A source that has been read whole begins its next pass. What an epoch
    leaves of a source comes in the next one.
    """

    def __init__(
        self, parts: Sequence[Passes], phases: Sequence[Phase], seed: int, until: str | int
    ) -> None:
        self._parts, self._seed = parts, seed
        self._phases = [_shares(phase) for phase in phases]
        self.length = until if isinstance(until, int) else self._length_until(until)
        self._phases = [each for each in self._phases if each.begins < self.length]
        self._ends = [*(each.begins for each in self._phases[1:]), self.length]
        self._each = self._counts(self.length)  # samples of each source in an epoch
        self._block = RecentValues(self._compute_block, 4)

    def read(self, epoch: int, places: Ids) -> list[Any]:
        """Return the samples at these places of an epoch."""
        found: list[Any] = [None] * len(places)
        wanted: dict[tuple[int, int], list[tuple[int, int]]] = {}
        for at, place in enumerate(places.tolist()):
            source, number = self.locate(place)
            number += epoch * self._each[source]
            turn, within = divmod(number, self._parts[source].length)
            wanted.setdefault((source, turn), []).append((at, within))
        for (source, turn), each in wanted.items():
            samples = self._parts[source].read(turn, np.array([within for _, within in each]))
            for (at, _), sample in zip(each, samples, strict=True):
                found[at] = sample
        return found

    def locate(self, place: int) -> tuple[int, int]:
        """Return the source at a place of an epoch, and how many of its samples came before."""
        number = bisect_right(self._ends, place)
        block, at = divmod(place - self._phases[number].begins, _BLOCK)
        found = self._block((number, block))
        return int(found.sources[at]), int(found.ranks[at])

    def _length_until(self, until: str) -> int:
        wanted = [part.length for part in self._parts]
        if until == ALL and not all(self._phases[-1].parts):
            raise UsageError(
                f"until={ALL!r}: a source whose last weight is 0 may never be read whole"
            )

        def reached(places: int) -> bool:
            given = [*map(int.__ge__, self._counts(places), wanted)]
            return all(given) if until == ALL else any(given)

        high = 1
        while not reached(high):
            high *= 2
        return bisect_left(range(high + 1), True, key=reached)

    def _counts(self, places: int) -> list[int]:
        """Return how many of the first `places` places of an epoch each source takes, where a block
        or a phase ends there.
        """
        ends = [*(each.begins for each in self._phases[1:]), places]
        gave = [
            phase.counts(max(0, min(end, places) - phase.begins))
            for phase, end in zip(self._phases, ends, strict=True)
        ]
        return [*map(sum, zip(*gave, strict=True))]

    def _compute_block(self, at: tuple[int, int]) -> _Block:
        number, block = at
        phase = self._phases[number]
        start = block * _BLOCK
        end = min(start + _BLOCK, self._ends[number] - phase.begins)
        before, after = phase.counts(start), phase.counts(end)
        shares = [b - a for a, b in zip(before, after, strict=True)]
        key = derive_key(STREAM_ORDER, self._seed, "mixture", number)
        order = Shuffle(end - start, key, block).block(0, end - start)
        sources = np.repeat(np.arange(len(shares)), shares)[order]
        ranks = np.empty(len(sources), np.int64)
        earlier = self._counts(phase.begins)
        for source, share in enumerate(shares):
            first = earlier[source] + before[source]
            ranks[sources == source] = np.arange(first, first + share)
        return _Block(sources, ranks)


def phases_of(weights: Any, names: Sequence[str], lengths: Sequence[int]) -> list[Phase]:
    """Return the phases that `weights` means.

    None: by length. A number for each source, in a list or by name. Or a list of (place, weights):
    weights from each of these places on, of which the first is 0.
    """
    if weights is None:
        return [Phase(0, lengths)]
    steps = weights if _has_places(weights) else [(0, weights)]
    phases = [Phase(int(place), _by_name(each, names)) for place, each in steps]
    begins = [each.begins for each in phases]
    if begins[0] != 0 or begins != sorted({*begins}):
        raise UsageError(f"weights from the places {begins}: the first is 0, and each is later")
    return phases


def _has_places(weights: Any) -> bool:
    return isinstance(weights, list | tuple) and isinstance(weights[0], list | tuple)


def _by_name(weights: Any, names: Sequence[str]) -> list[float]:
    if isinstance(weights, Mapping):
        if {*weights} != {*names}:
            raise UsageError(f"weights of {sorted(weights)}, and sources {sorted(names)}")
        return [float(weights[name]) for name in names]
    if len(weights) != len(names):
        raise UsageError(f"{len(weights)} weights for {len(names)} sources")
    return [float(each) for each in weights]


def _shares(phase: Phase) -> _Shares:
    total = sum(phase.weights)
    if not total > 0 or min(phase.weights) < 0 or total == float("inf"):
        raise UsageError(f"weights are numbers from 0, one of them above it, not {phase.weights}")
    exact = [Fraction(weight) for weight in phase.weights]
    unit = max(weight.denominator for weight in exact)  # a power of two, as floats have it
    return _Shares(phase.begins, [int(weight * unit) for weight in exact])


def _shared_out(places: int, parts: list[int]) -> list[int]:
    if len(parts) == 1:
        return [places]
    half = len(parts) // 2
    left = places * sum(parts[:half]) // max(1, sum(parts))
    return _shared_out(left, parts[:half]) + _shared_out(places - left, parts[half:])
