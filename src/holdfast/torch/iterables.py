"""How a loop walks a DataLoader over an IterableDataset: only the dataset knows its order."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from torch.utils.data import DataLoader, IterableDataset, IterDataPipe

from ..data.order import key
from ..data.replay import ReplayFeed
from ..data.stateful import StatefulFeed
from . import draws
from .twin import facts_of, twin_of
from .workers import iterate


class IterableFeed(ReplayFeed):
    """An IterableDataset without a state, or in workers: what was consumed is read again, and compared."""

    def __init__(self, loader: DataLoader[Any], seed: int) -> None:
        self._twin = twin_of(loader)
        self._loader = loader
        self._seed = seed
        # workers that end with their epoch have a fresh copy of the dataset, which remembers no epoch before
        self.remembers = not loader.num_workers or loader.persistent_workers
        super().__init__(self._twin)

    def describe(self) -> Mapping[str, Any]:
        return facts_of(self._loader)

    def _facts_of_pass(self, position: Mapping[str, Any] | None) -> dict[str, Any]:
        first = position is None and self._epoch is None
        return {"draws": first or not self._loader.persistent_workers}

    def _begin(self, epoch: int, memory: Mapping[str, Any], *, again: bool) -> Iterator[Any]:
        seed = key("workers", self._seed, epoch)
        if memory.get("draws", True) and not (again and self._loader.generator is not None):
            draws.seed_of_workers(self._loader, self._twin, seed)
        else:
            self._twin.generator.manual_seed(seed)
        return iterate(self._twin)

    def _advice(self) -> str:
        return (
            f"Its dataset, a {type(self._loader.dataset).__name__}, hands out another order: give it state_dict() and"
            " load_state_dict() and use num_workers=0 or torchdata's StatefulDataLoader; or let its order depend on"
            " nothing but set_epoch(epoch), called before run.batches"
        )


class DatasetFeed(StatefulFeed):
    """An IterableDataset with a state, and no workers: the dataset's own state is the position.

    A short last batch ends the dataset before it is handed out. The dataset may then have gone back to its beginning, so
    that its state alone does not say that the epoch is over.
    """

    def __init__(self, loader: DataLoader[Any]) -> None:
        dataset: Any = loader.dataset
        self._users = loader
        self._watched = None if isinstance(dataset, IterDataPipe) else _Watched(dataset)
        super().__init__(twin_of(loader, dataset=self._watched), self._watched or dataset)

    def describe(self) -> Mapping[str, Any]:
        return facts_of(self._users)

    def _begin(self) -> Iterator[Any]:
        draws.seed_of_workers(self._users, self._loader, 0)
        return super()._begin()

    def _is_at_end(self) -> bool:
        return self._ended or (self._watched is not None and self._watched.ended)

    def _generator(self) -> dict[str, Any]:
        return {}  # nothing but the seed of workers is drawn from it


class _Watched(IterableDataset[Any]):
    """A dataset with its iterator, which may have a state of its own, and whether the last pass is over."""

    def __init__(self, dataset: Any) -> None:
        self._dataset = dataset
        self._iterator: Any = None
        self._waiting: Any = None  # a state for the iterator to come
        self.ended = False

    def __iter__(self) -> Iterator[Any]:
        self._iterator, self.ended = iter(self._dataset), False
        if self._waiting is not None and self._keeps_state():
            self._iterator.load_state_dict(self._waiting)
        self._waiting = None
        return self._pass(self._iterator)

    def state_dict(self) -> dict[str, Any]:
        iterator = self._iterator.state_dict() if self._keeps_state() else None
        return {"dataset": self._dataset.state_dict(), "iterator": iterator}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._dataset.load_state_dict(state["dataset"])
        self._iterator, self._waiting = None, state["iterator"]

    def _keeps_state(self) -> bool:
        return self._iterator is not self._dataset and hasattr(self._iterator, "load_state_dict")

    def _pass(self, samples: Iterator[Any]) -> Iterator[Any]:
        yield from samples
        self.ended = True
