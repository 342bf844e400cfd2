"""Passes: a source in its order, as samples or packed to sequences of one length."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import numpy as np

from ...errors import UsageError
from .orders import Ids, Order, RecentValues, Window, order_of
from .source import Source, as_source

_SEGMENT = 16_384  # documents whose sizes are added up at once
_KEPT_PASSES = 2  # a batch may have the end of one pass and the beginning of the next


class Passes(Protocol):
    """One source, pass after pass: every pass has `length` samples, in an order of its own."""

    length: int

    def read(self, turn: int, places: Ids) -> list[Any]:
        """Return the samples at these places of pass number `turn`."""


class Ordered:
    """The samples of a source in the order of each pass."""

    def __init__(self, source: Source, shuffle: Window | bool, seed: int) -> None:
        self.length = len(source)
        self.source, self._shuffle, self._seed = source, shuffle, seed
        self.order = RecentValues(self._compute_order, _KEPT_PASSES)

    def read(self, turn: int, places: Ids) -> list[Any]:
        return self.source.read(self.ids(turn, places))

    def _compute_order(self, turn: int) -> Order:
        return order_of(self.source.lengths, self._shuffle, self._seed, turn)

    def ids(self, turn: int, places: Ids) -> Ids:
        """Return the ids of the samples at these places."""
        order = self.order(turn)
        first, last = int(places.min()), int(places.max())
        if last - first < 2 * len(places) + 64:
            return order.block(first, last + 1)[places - first]
        return np.concatenate([order.block(place, place + 1) for place in places.tolist()])


class Pack:
    """Documents, one behind the other in the order of each pass, cut to sequences of `length`
    tokens; `end` is a token put behind each document.

    `tokenize` makes an array of tokens of a document; without it the samples are such arrays.
    Sources that know their documents' sizes are not read for that; others are read once at the
    start.
    """

    def __init__(
        self,
        documents: Any,
        length: int,
        *,
        end: int | None = None,
        tokenize: Callable[[Any], Any] = np.asarray,
    ) -> None:
        if length < 1:
            raise UsageError(f"a sequence has at least one token, not {length}")
        self.source, self.length, self.end = as_source(documents), length, end
        if self.source.leaves_out:
            raise UsageError("Pack needs all documents: a sequence would not be known without one")
        self.tokenize = tokenize
        self._sizes = self.source.sizes if tokenize is np.asarray else None

    def sizes(self) -> Ids:
        """Return the number of tokens of each document, without its end."""
        if self._sizes is None:
            total = len(self.source)
            blocks = (
                self.source.read(range(first, min(first + _SEGMENT, total)))
                for first in range(0, total, _SEGMENT)
            )
            counts = [len(self.tokenize(document)) for block in blocks for document in block]
            self._sizes = np.array(counts, np.int64)
        return self._sizes

    def __repr__(self) -> str:
        return f"Pack({self.length}, end={self.end})"


class Packed:
    """The documents of a source, one behind the other in the order of each pass, cut to sequences
    of one length. What is left at the end of a pass is dropped.

    A document may begin in one sequence and end in the next. The sizes of all documents are added
    up once in a pass, about 20 ns each.
    """

    def __init__(self, documents: Ordered, pack: Pack) -> None:
        self._documents, self._size, self._end = documents, pack.length, pack.end
        self._marks = int(pack.end is not None)
        self._tokenize = pack.tokenize
        self._sizes = pack.sizes()[: len(documents.source)]
        self.length = int(self._sizes.sum() + self._marks * len(self._sizes)) // pack.length
        self._starts = RecentValues(self._compute_starts, _KEPT_PASSES)

    def read(self, turn: int, places: Ids) -> list[Any]:
        begins = places * self._size
        first, stop = int(begins.min()), int(begins.max()) + self._size
        if stop - first > 4 * len(places) * self._size:  # they lie far apart
            return [self.read(turn, places[at : at + 1])[0] for at in range(len(places))]
        start, tokens = self._tokens(turn, first, stop)
        return [tokens[at : at + self._size] for at in (begins - start).tolist()]

    def _tokens(self, turn: int, begin: int, stop: int) -> tuple[int, Ids]:
        """Return whole documents that cover the tokens `begin` to `stop`, and where they begin."""
        starts = self._starts(turn)
        segment = int(np.searchsorted(starts, begin, "right")) - 1
        last = int(np.searchsorted(starts, stop, "left"))
        order = self._documents.order(turn)
        ids = order.block(segment * _SEGMENT, min(last * _SEGMENT, order.length))
        ends = starts[segment] + np.cumsum(self._sizes[ids] + self._marks)
        one = int(np.searchsorted(ends, begin, "right"))
        end = int(np.searchsorted(ends, stop, "left")) + 1
        pieces = []
        for document in self._documents.source.read(ids[one:end]):
            pieces.append(np.asarray(self._tokenize(document)))
            if self._end is not None:
                pieces.append(np.array([self._end], pieces[-1].dtype))
        start = int(ends[one]) - int(self._sizes[ids[one]]) - self._marks
        return start, np.concatenate(pieces)

    def _compute_starts(self, turn: int) -> Ids:
        """Return where each segment of documents begins, in tokens; one more."""
        order = self._documents.order(turn)
        totals = [
            int(self._sizes[ids].sum()) + self._marks * len(ids)
            for ids in (
                order.block(first, min(first + _SEGMENT, order.length))
                for first in range(0, order.length, _SEGMENT)
            )
        ]
        return np.cumsum([0, *totals], dtype=np.int64)
