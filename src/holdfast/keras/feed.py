"""BatchFeed: the training data of one fit() as a feed, in groups of as many batches as one
execution takes.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import Any, NamedTuple

from ..data.facts import Feed, FeedPosition, LoaderFacts
from ..state import rng


class BatchGroup(NamedTuple):
    """The batches of one execution."""

    first: int  # the number of its first batch in the epoch
    batches: Any  # the iterator from which Keras takes the batches
    last: bool  # whether the epoch is known to end with it


class BatchSource:
    """A source of batches. A pass is one iteration over the data; with steps_per_epoch several
    epochs share a pass.
    """

    length: int | None = None  # batches of a pass
    by_keras = False  # whether Keras itself iterates, inside TensorFlow
    replays = False  # whether a resume reads the batches again
    unknown: Any = None  # as of a feed

    def begin_pass(self, number: int, seen: int, place: Any) -> Iterator[Any]:
        """Yield the batches of pass `number` after its first `seen`. `place`: what `place()`
        returned there; None: at the start.
        """
        raise NotImplementedError

    def place(self, seen: int) -> Any:  # noqa: ARG002
        """Return the part of the position that `begin_pass` needs besides the numbers."""
        return None

    def facts(self) -> dict[str, Any]:
        """Return the facts that decide which samples a position means."""
        return {}


class BatchFeed(Feed):
    """The feed of the training data of one fit()."""

    def __init__(self, source: BatchSource, per_epoch: int | None, group: int) -> None:
        super().__init__(source)
        self.replays, self.unknown = source.replays, source.unknown
        self._source, self._per_epoch, self._group = source, per_epoch, group
        self._pass: Iterator[Any] | None = None
        self._number = self._seen = self._done = 0  # of the pass; its batches; the epoch's batches
        self._ended = False

    def describe(self) -> LoaderFacts:
        return {
            "loader": type(self._source).__name__,
            "groups": self._group,
            **self._source.facts(),
        }

    def position(self, consumed: int) -> FeedPosition:
        place = self._source.place(self._seen) if self._pass is not None else None
        mine = {
            "pass": self._number,
            "seen": self._seen,
            "done": self._done,
            "ended": self._ended,
            "place": place,
        }
        return {**super().position(consumed), **mine, "length": self._source.length}

    def open(self, epoch: int, position: FeedPosition | None) -> Iterator[BatchGroup]:
        source, self._epoch, self._done = self._source, epoch, 0
        inside = position is not None and position["epoch"] == epoch
        if position is not None:
            self._number, self._seen, self._ended = (
                position["pass"],
                position["seen"],
                position["ended"],
            )
            self._done = position["done"] if inside else 0
            source.length = source.length or position["length"]
            with rng.seeded_scope(0):  # batches that are read again draw their own numbers
                self._pass = source.begin_pass(self._number, self._seen, position["place"])
        if not inside and (self._pass is None or self._is_over()):
            self._number = 0 if self._pass is None else self._number + 1
            self._seen, self._ended = 0, False
            self._pass = source.begin_pass(self._number, 0, None)
        return self._groups()

    def note_end_of_pass(self) -> None:
        """Record that the last group had no batch: Keras has found the end of the pass by
        itself.
        """
        self._done, self._seen = self._done - self._group, self._seen - self._group
        self._source.length, self._ended = self._seen, True

    def _is_over(self) -> bool:
        length = self._source.length
        return (
            self._per_epoch is None or self._ended or (length is not None and self._seen >= length)
        )

    def _batches_per_epoch(self) -> int | None:
        """Return the number of batches of this epoch, None if unknown."""
        length = self._source.length
        left = [] if length is None else [length - self._seen]
        left += [] if self._per_epoch is None else [self._per_epoch - self._done]
        return self._done + min(left) if left else None

    def _groups(self) -> Iterator[BatchGroup]:
        total = self._batches_per_epoch()
        while total is None or self._done < total:
            first, size = (
                self._done,
                self._group if total is None else min(self._group, total - self._done),
            )
            batches: Any = self._pass
            if not self._source.by_keras:
                batches = list(islice(batches, size))
                if not batches:
                    self._source.length, self._ended = self._seen, True
                    return
                size = len(batches)
            self._done, self._seen = first + size, self._seen + size
            yield BatchGroup(first, batches, last=total is not None and self._done >= total)
