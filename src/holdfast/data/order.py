"""The order of an epoch, computed place by place: nothing to store, nothing to draw, any start for free."""

from __future__ import annotations

from collections.abc import Iterator
from math import isqrt

import xxhash

VERSION = "feistel-1"  # names the function below for ever: another order needs another name
ROUNDS = 12
ROUNDS_SMALL = 24  # up to SMALL places a round moves so few bits that chi-square over all orders still sees 12
SMALL = 256
_MASK = (1 << 64) - 1


def key(*parts: object) -> int:
    """64 bits that depend on every part: the seed of whatever the parts name."""
    return xxhash.xxh3_64_intdigest("|".join(map(str, parts)).encode())


class Order:
    """A pseudo-random permutation of range(length) that (seed, epoch) decides; `order[place]` costs a few microseconds.

    A Feistel network over the pairs (left, right) of two nearly equal ranges that cover the length; a value outside
    is sent through again until it falls inside (cycle walking).
    Source: Black and Rogaway, Ciphers with Arbitrary Finite Domains, 2002, section 4.
    """

    def __init__(self, length: int, seed: int, epoch: int) -> None:
        if length < 0:
            raise ValueError(f"an order has a length of 0 or more, not {length}")
        self.length, self.seed, self.epoch = length, seed, epoch
        self._left = max(isqrt(max(length - 1, 0)) + 1, 1)
        self._right = max(-(-length // self._left), 1)
        keys = [key(VERSION, seed, epoch, turn) for turn in range(ROUNDS if length > SMALL else ROUNDS_SMALL)]
        self._keys = tuple(zip(keys[::2], keys[1::2], strict=True))

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, place: int) -> int:
        if not -self.length <= place < self.length:
            raise IndexError(f"place {place} of an order of {self.length}")
        value = self._through(place % self.length)
        while value >= self.length:
            value = self._through(value)
        return value

    def __iter__(self) -> Iterator[int]:
        return self.walk()

    def walk(self, start: int = 0) -> Iterator[int]:
        """The order from place `start` to its end."""
        return map(self.__getitem__, range(start, self.length))

    def _through(self, value: int) -> int:
        left, right = divmod(value, self._right)
        for even, odd in self._keys:
            left = (left + _mixed(right ^ even)) % self._left
            right = (right + _mixed(left ^ odd)) % self._right
        return left * self._right + right


def _mixed(bits: int) -> int:
    """`bits` with each of the 64 depending on all. Source: the finalizer of SplitMix64 (Steele, Lea, Flood, 2014)."""
    bits = ((bits ^ bits >> 30) * 0xBF58476D1CE4E5B9) & _MASK
    bits = ((bits ^ bits >> 27) * 0x94D049BB133111EB) & _MASK
    return bits ^ bits >> 31
