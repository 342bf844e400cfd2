"""Cursor: how far one loader has come in one epoch, and where a resume continues."""

from __future__ import annotations

from collections import deque
from typing import Any, NamedTuple

from ..data.facts import Feed, FeedPosition, plain

AHEAD = "ahead"  # in a feed's position: the random numbers before each fetch whose batch is not consumed yet


class Fetch(NamedTuple):
    """What was so just before a batch was fetched ahead."""

    position: FeedPosition
    random: dict[str, Any]  # states of the generators that the fetch drew from, or of all


class Cursor:
    """Of all batches of a loader in this epoch `taken` are fetched, and `consumed` are done."""

    def __init__(self, name: str, feed: Feed, consumed: int, length: int | None, group: int) -> None:
        self.name, self.feed = name, feed
        self.taken = self.consumed = consumed
        self.ended = False  # no batch is left to be fetched
        self.ahead: deque[Fetch] = deque()  # of what was taken and is not consumed; the end, too
        self._length, self._group = length, group

    @property
    def left(self) -> int | None:
        """Number of batches of this epoch that are not consumed; None if the loader's length is not known.

        It is below 0 where no safe point counts as the one behind the last batch: for a trainer, which knows by itself
        where its epochs end, for `run.steps()`, and in an epoch of one step.
        """
        if self._length is None:
            return None
        return -1 if self._length <= self._group else self._length - self.consumed

    def fetched(self, *, end: bool) -> None:
        """Note that one more batch is fetched, or that none is left."""
        if end:
            self.ended = True
        else:
            self.taken += 1

    def consume(self, batches: int) -> None:
        """Note that `batches` more are done."""
        self.consumed += batches
        while len(self.ahead) > self.taken - self.consumed + self.ended:
            self.ahead.popleft()

    def place(self, consumed: int) -> FeedPosition:
        found: FeedPosition = plain(self.feed.position(consumed))
        return found

    def position(self) -> FeedPosition:
        """Where a resume continues: after the consumed batches."""
        if not self.ahead:
            return self.place(self.consumed)
        return {**self.ahead[0].position, AHEAD: [fetch.random for fetch in self.ahead]}
