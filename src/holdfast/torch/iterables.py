"""Feeds for a DataLoader over an IterableDataset: only the dataset knows its order."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from typing import Any

from torch.utils.data import DataLoader, IterableDataset, IterDataPipe

from ..data.facts import FeedPosition, LoaderFacts
from ..data.order import derive_key
from ..data.promise import is_of_datasets
from ..data.replay import ReplayFeed
from ..data.stateful import StatefulFeed
from .loader_clone import clone_loader, draw_seed_of_workers, facts_of, torchdata_class
from .workers import iterate

_NOTHING = object()


def unproven_dataset(dataset: Any) -> Any:
    """Return the dataset's class, unless that is known to yield the same samples again."""
    return None if is_of_datasets(dataset) else type(dataset)


class IterableFeed(ReplayFeed):
    """The feed of an IterableDataset without a state, or in workers: the consumed batches are read
    again and compared.
    """

    def __init__(self, loader: DataLoader[Any], seed: int) -> None:
        self._users, self._seed = loader, seed
        super().__init__(clone_loader(loader))
        # workers that end with their epoch have a fresh copy of the dataset, without earlier epochs
        lives_on = not loader.num_workers or loader.persistent_workers
        self.remembers = lives_on and not is_of_datasets(loader.dataset)

    def describe(self) -> LoaderFacts:
        return facts_of(self._users)

    def _facts_of_pass(self, position: FeedPosition | None) -> dict[str, Any]:
        first = position is None and not self._passes
        return {"draws": first or not self._users.persistent_workers}

    def _begin_pass(self, epoch: int, memory: FeedPosition, *, again: bool) -> Iterator[Any]:
        seed = derive_key("workers", self._seed, epoch)
        if memory.get("draws", True) and not (again and self._users.generator is not None):
            draw_seed_of_workers(self._users, self._loader, seed)
        else:
            self._loader.generator.manual_seed(seed)
        return iterate(self._loader)

    def _unproven_code(self) -> Any:
        return unproven_dataset(self._users.dataset)

    def _roots(self) -> list[Any]:
        return [self._users.dataset]

    def _cause(self) -> str:
        return (
            f"its dataset, a {type(self._users.dataset).__name__}, "
            "depends on more than that and set_epoch(epoch)"
        )


class DatasetFeed(StatefulFeed):
    """The feed of an IterableDataset with a state: the dataset's own without workers, that of
    torchdata's loader with them.
    """

    def __init__(self, loader: Any, seed: int) -> None:
        dataset = loader.dataset
        watched = dataset if isinstance(dataset, IterDataPipe) else _EndTrackingDataset(dataset)
        self._users = loader
        self._seed = seed
        if loader.num_workers:
            kind, steps = torchdata_class("StatefulDataLoader"), loader.snapshot_every_n_steps
            twin = clone_loader(loader, dataset=watched, kind=kind, snapshot_every_n_steps=steps)
            super().__init__(twin, stream=dataset)
        else:
            super().__init__(clone_loader(loader, dataset=watched), watched, dataset)

    def describe(self) -> LoaderFacts:
        return facts_of(self._users)

    def _begin_pass(self, *, first: bool) -> Iterator[Any]:
        if first or not self._users.persistent_workers:
            draw_seed_of_workers(
                self._users, self._loader, derive_key("workers", self._seed, self._epoch)
            )
        return super()._begin_pass(first=first)

    def _forget_loaded_state(self) -> None:
        if not self._users.num_workers:  # else it ends with the workers
            super()._forget_loaded_state()

    def _generator_state(self) -> dict[str, Any]:
        return {}  # it draws only the seed of workers


class _EndTrackingDataset(IterableDataset[Any]):
    """A dataset whose state records whether its pass is over.

    A short last batch ends the pass before it is returned, and a dataset may then have gone back to
    its beginning. Resumed from such a state it would return its samples once more.
    """

    def __init__(self, dataset: Any) -> None:
        self._dataset = dataset
        self._iterator: Any = None  # it may have a state of its own
        self._loaded: Mapping[str, Any] | None = None  # the state from which the next pass resumes
        self._ended = False

    def __iter__(self) -> Iterator[Any]:
        loaded, self._loaded = self._loaded, None
        self._iterator, self._ended = iter(self._dataset), False
        if loaded is not None and loaded["iterator"] is not None:
            self._iterator.load_state_dict(loaded["iterator"])
        if loaded is not None and loaded["ended"]:
            return self._end_pass(loaded)
        return self._pass(self._iterator)

    def state_dict(self) -> dict[str, Any]:
        own = self._iterator is not self._dataset and hasattr(self._iterator, "state_dict")
        iterator = self._iterator.state_dict() if own else None
        return {"dataset": self._dataset.state_dict(), "iterator": iterator, "ended": self._ended}

    def load_state_dict(self, state: Mapping[str, Any] | None) -> None:
        if not state:  # none at all
            self._dataset.load_state_dict(state)
            self._iterator = self._loaded = None
            return
        self._dataset.load_state_dict(copy.deepcopy(state["dataset"]))
        self._iterator, self._loaded, self._ended = None, state, state["ended"]

    def _end_pass(self, loaded: FeedPosition) -> Iterator[Any]:
        """End this pass, so that the next one is new, whether or not the dataset had gone back to
        its beginning.
        """
        if next(self._iterator, _NOTHING) is not _NOTHING:
            self._dataset.load_state_dict(copy.deepcopy(loaded["dataset"]))
        self._ended = True
        return iter(())

    def _pass(self, samples: Iterator[Any]) -> Iterator[Any]:
        yield from samples
        self._ended = True
