"""How a loop walks torch's DataLoader: through a twin with the user's settings and an order that can be come back to.

The twin is made once, so that persistent workers persist. It has a batch sampler and a generator of Holdfast's own:
neither making nor iterating it draws from the global generators. Its batch sampler follows one of three plans:

    OrderPlan      no sampler, shuffle, or a Holdfast Sampler: the place in the epoch's order; any start for free
    StatefulPlan   a sampler with state_dict(): its state after each batch
    ReplayPlan     any other sampler: its indices are drawn again (not the data), and compared
"""

from __future__ import annotations

import warnings
from collections import deque
from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import Any

import torch
from torch.utils.data import DataLoader, IterableDataset

from ..data.feed import Feed, ReplayFeed, StatefulFeed, facts, reached, skip
from ..data.order import key
from ..data.seeded import Seeded
from .plans import Step, plan_for, position_of
from .workers import WorkerInit, iterate


def feed_for(loader: Any, seed: int) -> Feed | None:
    """The feed of a DataLoader; None for what is none, keeps its own state, or iterates in its own way."""
    if not isinstance(loader, DataLoader) or hasattr(loader, "state_dict"):
        return None
    if type(loader).__iter__ is not DataLoader.__iter__ or type(loader)._get_iterator is not DataLoader._get_iterator:  # noqa: SLF001
        return None
    if not isinstance(loader.dataset, IterableDataset):
        return DataLoaderFeed(loader, seed)
    if loader.num_workers == 0 and hasattr(loader.dataset, "state_dict"):
        return StatefulFeed(loader, seed, loader.dataset)
    return IterableFeed(loader, seed)


class DataLoaderFeed:
    """A DataLoader over a dataset with indices."""

    replays = False

    def __init__(self, loader: DataLoader[Any], seed: int) -> None:
        self._loader = loader
        self._seed = seed
        self._plan = plan_for(loader, seed)
        self._steps = _Steps()
        self._twin = _twin(loader, self._steps)
        self._recent: deque[Mapping[str, Any]] = deque(maxlen=8)
        self._last: Mapping[str, Any] | None = None

    def open(self, epoch: int, position: Mapping[str, Any] | None) -> Iterator[Any]:
        at = position if position is not None and reached(position, epoch) else self._start(epoch, position)
        self._steps.begin(self._plan.walk(epoch, at))
        self._recent.clear()
        self._recent.append(at)
        return self._consumed(iterate(self._twin, key("workers", self._seed, epoch, at["batches"])))

    def position(self, consumed: int) -> Mapping[str, Any]:
        found = [recent for recent in self._recent if recent["batches"] == consumed]
        if not found:
            raise ValueError(f"{consumed} batches consumed, but the loader is at {self._recent[-1]['batches']}")
        return found[0]

    def describe(self) -> Mapping[str, Any]:
        return {**_facts(self._loader), **self._plan.describe()}

    def _start(self, epoch: int, position: Mapping[str, Any] | None) -> Mapping[str, Any]:
        before = self._last if position is None else position
        if before is not None and not before["batches"]:
            before = before.get("before")
        start = position_of(epoch, 0, 0)
        return start if before is None or not self._plan.carries else {**start, "before": before}

    def _consumed(self, batches: Iterator[Any]) -> Iterator[Any]:
        for batch in batches:
            position = self._last = self._steps.pending.popleft()
            self._recent.append(position)
            self._plan.consumed(position)
            yield batch


class IterableFeed(ReplayFeed):
    """A DataLoader over an IterableDataset: only the dataset knows its order, so it is read again."""

    def __init__(self, loader: DataLoader[Any], seed: int) -> None:
        self._twin = _twin(loader, None)
        self._loader = loader
        self._seed = seed
        super().__init__(self._twin)

    def open(self, epoch: int, position: Mapping[str, Any] | None) -> Iterator[Any]:
        self._epoch = epoch
        batches = iterate(self._twin, key("workers", self._seed, epoch))
        skip(batches, reached(position, epoch))
        return batches

    def describe(self) -> Mapping[str, Any]:
        return _facts(self._loader)


class _Steps:
    """The twin's batch sampler: hands out one walk, and keeps the positions of the batches that are under way."""

    def __init__(self) -> None:
        self.pending: deque[Mapping[str, Any]] = deque()
        self._walk: Iterator[Step] = iter(())

    def begin(self, walk: Iterator[Step]) -> None:
        self._walk = walk
        self.pending.clear()

    def __iter__(self) -> _Steps:
        return self  # a loader with workers asks for two iterators and drops the first one unused

    def __next__(self) -> Any:
        step = next(self._walk)
        self.pending.append(step.position)
        return step.indices


def _twin(loader: DataLoader[Any], steps: _Steps | None) -> DataLoader[Any]:
    if loader.num_workers and not loader.in_order:
        warnings.warn("in_order=False: batches stay in order, or no run could be repeated", UserWarning, stacklevel=2)
    settings: dict[str, Any] = {"batch_size": loader.batch_size, "drop_last": loader.drop_last}
    if steps is not None:
        settings = (
            {"batch_sampler": steps} if loader.batch_sampler is not None else {"sampler": steps, "batch_size": None}
        )
    if loader.num_workers:
        settings |= {
            "prefetch_factor": loader.prefetch_factor,
            "multiprocessing_context": loader.multiprocessing_context,
        }
    if loader.pin_memory_device:  # deprecated: even naming its default may warn one day
        settings["pin_memory_device"] = loader.pin_memory_device
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the user's own loader has said it all
        return DataLoader(
            loader.dataset,
            num_workers=loader.num_workers,
            collate_fn=loader.collate_fn,
            pin_memory=loader.pin_memory,
            timeout=loader.timeout,
            worker_init_fn=WorkerInit(loader.worker_init_fn),
            persistent_workers=loader.persistent_workers,
            generator=torch.Generator(),
            **settings,
        )


def _facts(loader: DataLoader[Any]) -> dict[str, Any]:
    found = facts(loader) | {"dataset": _dataset_name(loader.dataset)}
    found.pop("length", None)  # of batches, where ours is of samples
    with suppress(TypeError, NotImplementedError):
        found["length"] = len(loader.dataset)  # type: ignore[arg-type]
    return found


def _dataset_name(dataset: Any) -> str:
    inner = dataset.dataset if isinstance(dataset, Seeded) else None
    return type(dataset).__name__ if inner is None else f"Seeded({type(inner).__name__})"
