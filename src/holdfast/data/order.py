"""The order of an epoch, computed for each place alone: nothing is stored, and iteration can start
at any place.
"""

from __future__ import annotations

import operator
import sys
from collections.abc import Iterator
from itertools import chain, islice
from typing import TYPE_CHECKING, NamedTuple, SupportsIndex, overload

import xxhash

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

VERSION = "shuffle-1"  # identifies the function below permanently: another order needs another name
# 6 are enough: over two million keys 5 still show, 6 no longer do (tests/test_shuffle.py)
ROUNDS = 12
SMALL = 256  # up to this length the order is drawn from all orders, and kept
LONGEST = 2**63  # places and values fit 64 bits with a sign

# places that NumPy mixes at once: they fit the processor's cache, and amortise the call
CHUNK = 32_768
FIRST = 1_024  # a walk begins with this many, so that its first index comes quickly
AHEAD = 16_384  # and computes at most this many ahead: 0.7 MB of Python's integers


def derive_key(*parts: object) -> int:
    """Return 64 bits that depend on every part: the seed for these parts."""
    return xxhash.xxh3_64_intdigest("|".join(map(str, parts)).encode())


class Shuffle:
    """A pseudo-random permutation of range(length) that (length, seed, epoch) decides; every place
    costs the same.

        shuffle[10**9]          the value at a place
        shuffle[5:10]           a list of them
        shuffle.walk(10**9)     an iterator from a place to the end
        shuffle.block(0, 4096)  a NumPy array of them: tens of millions a second

    The order is the same without NumPy, only slower: where the program has not imported it, each
    value is computed by itself, in one to three microseconds.
    """

    def __init__(self, length: int, seed: int, epoch: int = 0) -> None:
        self.length = operator.index(length)
        if not 0 <= self.length <= LONGEST:
            raise ValueError(f"an order has a length from 0 to 2**63, not {length}")
        self.seed, self.epoch = seed, epoch
        small = self.length <= SMALL
        words = [
            derive_key(VERSION, self.length, seed, epoch, turn)
            for turn in range(self.length if small else 2 * ROUNDS)
        ]
        self._table = _draw_permutation(words) if small else None
        self._mixing = _make_permutation((self.length - 1).bit_length(), words)

    def __len__(self) -> int:
        return self.length

    @overload
    def __getitem__(self, where: SupportsIndex) -> int: ...
    @overload
    def __getitem__(self, where: slice) -> list[int]: ...
    def __getitem__(self, where: SupportsIndex | slice) -> int | list[int]:
        if isinstance(where, slice):
            places = range(*where.indices(self.length))
            if places.step == 1:
                return list(islice(self.walk(places.start), len(places)))
            return list(map(self._value_at, places))
        place = operator.index(where)
        if not -self.length <= place < self.length:
            raise IndexError(f"place {place} of an order of {self.length}")
        return self._value_at(place % self.length)

    def __iter__(self) -> Iterator[int]:
        return self.walk()

    def walk(self, start: int = 0) -> Iterator[int]:
        """Return an iterator over the order from place `start` to its end, computed in blocks if
        the program has imported NumPy.
        """
        if start < 0:
            raise IndexError(f"a walk from place {start}")
        if self._table is not None or not _is_numpy_imported():
            return map(self._value_at, range(start, self.length))
        return chain.from_iterable(self._blocks(start))

    def block(self, start: int, stop: int) -> NDArray[np.int64]:
        """Return the values at places `start` up to `stop`."""
        import numpy as np

        if not 0 <= start <= stop <= self.length:
            raise IndexError(f"places {start} to {stop} of an order of {self.length}")
        if self._table is not None:
            return np.array(self._table[start:stop], np.int64)
        values = np.arange(start, stop, dtype=np.uint64)
        for first in range(0, len(values), CHUNK):
            self._permute_places(values[first : first + CHUNK])
        return values.view(np.int64)

    def _blocks(self, start: int) -> Iterator[list[int]]:
        size = FIRST
        while start < self.length:
            stop = min(start + size, self.length)
            yield self.block(start, stop).tolist()
            start, size = stop, min(2 * size, AHEAD)

    def _value_at(self, place: int) -> int:
        if self._table is not None:
            return self._table[place]
        value = _permute_value(place, self._mixing)
        while value >= self.length:
            value = _permute_value(value, self._mixing)
        return value

    def _permute_places(self, places: NDArray[np.uint64]) -> None:
        """Replace places in the array by their values."""
        import numpy as np

        length = np.uint64(self.length)
        _permute_array(places, self._mixing)
        outside = np.flatnonzero(places >= length)
        while outside.size:
            again = places[outside]
            _permute_array(again, self._mixing)
            places[outside] = again
            outside = outside[again >= length]


def _is_numpy_imported() -> bool:
    """Return whether the program has imported NumPy, as torch does. Importing it would take longer
    than most walks.
    """
    return sys.modules.get("numpy") is not None


def _draw_permutation(words: list[int]) -> list[int]:
    """Draw one of all orders of this length. Source:
    Fisher and Yates; Durstenfeld, Algorithm 235, 1964.
    """
    order = list(range(len(words)))
    for place in range(len(order) - 1, 0, -1):
        other = words[place] * (place + 1) >> 64
        order[place], order[other] = order[other], order[place]
    return order


class _BitPermutation(NamedTuple):
    """A permutation of the numbers of so many bits: each step of each round can be undone.

    A value beyond the order's length is permuted again until it is inside (cycle walking). That is
    less than one more round on average, as the length is more than half of the numbers. Sources:
    Kensler, Correlated Multi-Jittered Sampling, 2013 (`permute`), with keys of its own for every
    round; Black and Rogaway, Ciphers with Arbitrary Finite Domains, 2002, section 4.
    """

    mask: int
    shift: int  # folds the upper half of the bits onto the lower one
    rounds: tuple[tuple[int, int], ...]  # an odd factor, which carries low bits up, and a summand


def _make_permutation(bits: int, words: list[int]) -> _BitPermutation:
    mask = (1 << bits) - 1
    rounds = zip(words[::2], words[1::2], strict=False)
    return _BitPermutation(
        mask,
        (bits + 1) // 2,
        tuple(((factor | 1) & mask, summand & mask) for factor, summand in rounds),
    )


def _permute_value(value: int, by: _BitPermutation) -> int:
    mask, shift, rounds = by
    for factor, summand in rounds:
        value = value * factor + summand & mask
        value ^= value >> shift
    return value


def _permute_array(values: NDArray[np.uint64], by: _BitPermutation) -> None:
    """Apply `_permute_value` to all values of an array in place."""
    import numpy as np

    # scalars would cost twice as much a call
    mask, shift = np.array(by.mask, np.uint64), np.array(by.shift, np.uint64)
    upper = np.empty_like(values)
    for keys in by.rounds:
        factor, summand = np.array(keys[0], np.uint64), np.array(keys[1], np.uint64)
        np.multiply(values, factor, out=values)
        np.add(values, summand, out=values)
        np.bitwise_and(values, mask, out=values)
        np.right_shift(values, shift, out=upper)
        np.bitwise_xor(values, upper, out=values)
