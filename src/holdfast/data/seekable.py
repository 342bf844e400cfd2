"""What feeds need of a loader whose batches can be made at any place, without NumPy."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator
from typing import Any, NamedTuple

from .facts import Feed, FeedPosition, LoaderFacts, batches_before

# names the order of streams for ever, in positions and facts: another order needs another name
STREAM_ORDER = "stream-1"


class GlobalBatch(NamedTuple):
    """The samples of one step over all ranks: the places `start` to `stop` of an epoch's order."""

    epoch: int
    start: int
    stop: int
    shards: tuple[int, ...]  # of each source, when the epoch began


class Step(NamedTuple):
    """One batch of indices, and the position once the loop has consumed it."""

    indices: Any
    position: FeedPosition


class SeekableBatches:
    """A loader, or a dataset of torch's DataLoader, whose batches can be made at any place."""

    @abstractmethod
    def __getitem__(self, batch: Any) -> Any:
        """Return this rank's share of a GlobalBatch."""

    @property
    @abstractmethod
    def makes_batches(self) -> bool:
        """Whether an item is a whole batch; else it is one sample."""

    @abstractmethod
    def steps(self, epoch: int, position: FeedPosition | None) -> Iterator[Step]:
        """Return the steps of an epoch, from a position in it or from its start.

        Raises:
            Mismatch: the position is one in other samples.
        """

    @abstractmethod
    def describe(self) -> LoaderFacts:
        """Return the facts that decide the batches."""


class SeekableFeed(Feed):
    """The feed of a stream: the number of samples taken is the position."""

    _loader: SeekableBatches

    def __init__(self, loader: SeekableBatches) -> None:
        super().__init__(loader)
        self._consumed: dict[int, FeedPosition] = {}

    def open(self, epoch: int, position: FeedPosition | None) -> Iterator[Any]:
        self._epoch = epoch
        begun = position if batches_before(position, epoch) else None
        self._consumed = {} if begun is None else {begun["batches"]: begun}
        return self._batches(self._loader.steps(epoch, begun))

    def position(self, consumed: int) -> FeedPosition:
        return self._consumed.get(consumed) or super().position(consumed)

    def describe(self) -> LoaderFacts:
        return {**super().describe(), **self._loader.describe()}

    def _batches(self, steps: Iterator[Step]) -> Iterator[Any]:
        for step in steps:
            number = step.position["batches"]
            self._consumed[number] = step.position
            self._consumed.pop(number - 8, None)  # zip() may take one more than it hands out
            yield self._loader[step.indices]
