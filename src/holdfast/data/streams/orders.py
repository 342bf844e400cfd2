"""Orders of the samples in shards. A seed and the number of the pass decide an order, and any place
of it is computed without the places before it.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import Any, Generic, NamedTuple, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from ...errors import UsageError
from ..order import Shuffle, derive_key
from ..seekable import STREAM_ORDER

Ids = NDArray[np.int64]
Key = TypeVar("Key")
Value = TypeVar("Value")

_KEPT_WINDOWS = 4  # of a pass, computed and kept: 80 kB each at 10,000 samples


class Window(NamedTuple):
    """A shuffle that reads few files at a time.

    The shards come in a random order. `shards` of them are read side by side, in windows of about
    `samples` samples. Each window takes a piece of every open shard, in proportion to its length,
    and is shuffled as a whole.
    """

    shards: int = 8
    samples: int = 10_000


class Order(Protocol):
    """The order of one pass."""

    length: int

    def block(self, start: int, stop: int) -> Ids:
        """Return the ids of the samples at the places `start` up to `stop`."""


def order_of(lengths: Ids, shuffle: Window | bool, seed: int, turn: int) -> Order:
    """Return the order of pass `turn` over shards with these lengths.

    Sample i of shard s has the id sum(lengths[:s]) + i. `shuffle`: False is the order of the ids,
    True any order of all of them, and a Window one that reads few shards at a time.
    """
    if shuffle is False:
        return _Sequential(int(lengths.sum()))
    key = derive_key(STREAM_ORDER, seed)
    if shuffle is True:
        return Shuffle(int(lengths.sum()), key, turn)
    return _Windows(lengths, shuffle, key, turn)


def check_shuffle(shuffle: Any) -> None:
    """Raise UsageError unless it is True, False or a Window of at least one shard and sample."""
    if isinstance(shuffle, bool):
        return
    if not isinstance(shuffle, Window):
        raise UsageError(f"shuffle is True, False or a Window, not {shuffle!r}")
    if shuffle.shards < 1 or shuffle.samples < 1:
        raise UsageError(f"a window has at least one shard and one sample, not {shuffle}")


class RecentValues(Generic[Key, Value]):
    """The values of the last few keys, computed when they are asked for."""

    def __init__(self, compute: Callable[[Key], Value], most: int) -> None:
        self._compute, self._most = compute, most
        self._found: OrderedDict[Key, Value] = OrderedDict()

    def __call__(self, key: Key) -> Value:
        value = self._found.pop(key, None)  # no look before: other threads may be in here
        if value is None:
            value = self._compute(key)
        self._found[key] = value
        while len(self._found) > self._most:
            self._found.popitem(last=False)
        return value

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "_found": OrderedDict()}  # another process computes its own


class _Sequential:
    def __init__(self, length: int) -> None:
        self.length = length

    def block(self, start: int, stop: int) -> Ids:
        return np.arange(start, stop, dtype=np.int64)


class _OpenShards(NamedTuple):
    """Shards that are read side by side."""

    first: Ids  # the id of the first sample of each shard
    cuts: Ids  # [window, shard]: where the shard's piece of the window begins; one row more
    places: Ids  # where each window begins in the pass; one more


class _Windows:
    def __init__(self, lengths: Ids, window: Window, key: int, turn: int) -> None:
        self.length = int(lengths.sum())
        self._window, self._key, self._turn = window, key, turn
        self._shards = Shuffle(len(lengths), derive_key(key, "shards"), turn).block(0, len(lengths))
        self._lengths = lengths[self._shards]
        self._first = (np.cumsum(lengths) - lengths)[self._shards]
        ends = np.cumsum(self._lengths)[window.shards - 1 :: window.shards]
        self._ends = ends if len(ends) and ends[-1] == self.length else [*ends, self.length]
        self._group = RecentValues(self._compute_group, 2)
        self._ids = RecentValues(self._compute_window, _KEPT_WINDOWS)

    def block(self, start: int, stop: int) -> Ids:
        found = [np.empty(0, np.int64)]
        while start < stop:
            number = int(np.searchsorted(self._ends, start, "right"))
            group = self._group(number)
            window = int(np.searchsorted(group.places, start, "right")) - 1
            begin, end = int(group.places[window]), min(stop, int(group.places[window + 1]))
            found.append(self._ids((number, window))[start - begin : end - begin])
            start = end
        return np.concatenate(found)

    def _compute_group(self, number: int) -> _OpenShards:
        shards = slice(number * self._window.shards, (number + 1) * self._window.shards)
        lengths = self._lengths[shards]
        windows = max(1, -(-int(lengths.sum()) // self._window.samples))
        turns = np.arange(windows + 1, dtype=np.int64)[:, None]
        # lengths * turns // windows, where that product does not fit 64 bits
        cuts = lengths // windows * turns + lengths % windows * turns // windows
        begin = int(self._ends[number]) - int(lengths.sum())
        return _OpenShards(self._first[shards], cuts, begin + cuts.sum(1))

    def _compute_window(self, at: tuple[int, int]) -> Ids:
        number, window = at
        group = self._group(number)
        sizes = group.cuts[window + 1] - group.cuts[window]
        ends = np.cumsum(sizes)
        key = derive_key(self._key, "window", number, window)
        chosen = Shuffle(int(ends[-1]), key, self._turn).block(0, int(ends[-1]))
        shard = np.searchsorted(ends, chosen, "right")
        ids: Ids = (group.first + group.cuts[window] - (ends - sizes))[shard] + chosen
        return ids
