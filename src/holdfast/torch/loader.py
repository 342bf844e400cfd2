"""The feed of torch's DataLoader: a clone of the loader with the user's settings and an order that
can be resumed.

The clone is made once, so that persistent workers persist. It has a batch sampler and a generator
of Holdfast's own: neither making nor iterating it draws from the global generators. Its batch
sampler follows one of three plans:

    OrderPlan      no sampler, shuffle, or a Holdfast Sampler: the place in the epoch's order; any
                   start for free
    StatefulPlan   a sampler with state_dict(): its state after each batch
    ReplayPlan     any other sampler: its indices are drawn again (not the data), and compared
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import Any

from torch.utils.data import BatchSampler, DataLoader, IterableDataset, IterDataPipe
from torch.utils.data.dataloader import _BaseDataLoaderIter, _DatasetKind

from ..data.facts import Feed, FeedPosition, LoaderFacts, batches_before
from ..data.order import derive_key
from ..data.promise import is_of_datasets
from ..data.seekable import SeekableBatches, Step
from ..data.stateful import loses_its_place
from ..errors import UsageError
from .iterables import DatasetFeed, IterableFeed, unproven_dataset
from .loader_clone import (
    clone_loader,
    draw_as_sampler,
    draw_seed_of_workers,
    facts_of,
    torchdata_class,
)
from .plans import plan_for, position_of
from .workers import iterate


def feed_for(loader: Any, seed: int) -> Feed | None:
    """Return the feed of a DataLoader; None for other loaders, and for one that keeps its state or
    has its own __iter__.
    """
    if not isinstance(loader, DataLoader):
        return None
    indexed = not isinstance(loader.dataset, IterableDataset)
    # a stream in workers that live on would begin each pass at the state that was loaded
    stays = loader.persistent_workers and is_of_datasets(loader.dataset)
    loses_place = loses_its_place(loader.dataset) or stays
    keeps_state = hasattr(loader.dataset, "state_dict") and not loses_place
    of_torchdata = _is_torchdatas(loader)
    # its own state is needed where it contains more than an order and a dataset's state
    if of_torchdata:
        ours = (
            not keeps_state
            if indexed
            else loses_place or (keeps_state and not isinstance(loader.dataset, IterDataPipe))
        )
    else:
        ours = (_iterates_as(loader, DataLoader) or _is_endless(loader)) and not hasattr(
            loader, "state_dict"
        )
    if not ours and isinstance(loader.dataset, SeekableBatches):
        raise UsageError(
            f"a {type(loader).__name__} iterates in its own way, and its stream would have the"
            " order of the first epoch in each: give it a plain DataLoader"
        )
    if not ours:
        return None
    if indexed:
        return DataLoaderFeed(loader, seed)
    stateful = keeps_state and (of_torchdata or loader.num_workers == 0)
    return DatasetFeed(loader, seed) if stateful else IterableFeed(loader, seed)


def _is_endless(loader: DataLoader[Any]) -> bool:
    """Return whether an epoch is the next len(loader) batches of one iterator that never ends, over
    its batch sampler.

    This keeps its workers alive. Source: InfiniteDataLoader of ultralytics, MultiEpochsDataLoader
    of timm.
    """
    code = getattr(type(loader).__iter__, "__code__", None)
    makes = {"_get_iterator", "super", "__iter__"}  # when it is walked first
    takes = code is not None and {*code.co_names} - makes == {"range", "len", "next", "iterator"}
    return takes and type(loader.batch_sampler).__name__ == "_RepeatSampler"


def find_unproven(value: Any) -> Any:
    """Return the class whose replay is unproven, in one of torch's iterators over a DataLoader;
    None if there is none.
    """
    if not isinstance(value, _BaseDataLoaderIter):
        return type(value)
    source: Any = value._index_sampler  # noqa: SLF001
    if value._dataset_kind == _DatasetKind.Iterable:  # noqa: SLF001
        return unproven_dataset(value._dataset)  # noqa: SLF001
    kinds = [type(source), *([type(source.sampler)] if type(source) is BatchSampler else [])]
    known = ("torch.utils.data.", "holdfast.")
    return next((kind for kind in kinds if not kind.__module__.startswith(known)), None)


def _is_torchdatas(loader: DataLoader[Any]) -> bool:
    """Whether it is a StatefulDataLoader with torchdata's own iteration."""
    kind = torchdata_class("StatefulDataLoader")
    return kind is not None and _iterates_as(loader, kind)


def _iterates_as(loader: DataLoader[Any], kind: Any) -> bool:
    own: Any = type(loader)
    return own.__iter__ is kind.__iter__ and own._get_iterator is kind._get_iterator  # noqa: SLF001


class DataLoaderFeed(Feed):
    """The feed of a DataLoader over a map-style dataset."""

    def __init__(self, loader: DataLoader[Any], seed: int) -> None:
        super().__init__(loader)
        self._seed = seed
        repeats = not _iterates_as(loader, DataLoader) and _is_endless(loader)
        self._plan = plan_for(loader, seed, loader.batch_sampler.sampler if repeats else None)  # type: ignore[union-attr]
        self._steps = _StepSampler()
        workers = {"persistent_workers": True} if repeats and loader.num_workers else {}
        self._twin = clone_loader(loader, self._steps, **workers)
        self._draws = not repeats  # a loader that repeats has drawn when it was made
        self._recent: deque[FeedPosition] = deque(maxlen=8)
        self._last: FeedPosition | None = None
        self._once = (
            loader.persistent_workers or repeats
        )  # a plain loader draws its workers' seed only in its first epoch

    def open(self, epoch: int, position: FeedPosition | None) -> Iterator[Any]:
        # as in the run's first attempt: later attempts may have other workers
        if position is not None:
            self._once = bool(position.get("once"))
        resumed = position is not None and batches_before(position, epoch)
        at = position if position is not None and resumed else self._start_position(epoch, position)
        self._steps.start_walk(self._plan.walk(epoch, at))
        self._recent.clear()
        self._recent.append(at)
        self._seed_workers(epoch, at["batches"], first=position is None and self._last is None)
        self._last = at if at["batches"] else self._last
        return self._note_consumed(iterate(self._twin))

    def position(self, consumed: int) -> FeedPosition:
        # zip() takes one more of a longer loader, so the last position may not be the consumed one
        found = self._last = {recent["batches"]: recent for recent in self._recent}[consumed]
        if not self._steps.pending and found is self._recent[-1]:
            found = {**found, **self._plan.end_position()}
        return {**found, "once": True} if self._once else found

    def describe(self) -> LoaderFacts:
        return {**facts_of(self._loader), **self._plan.describe()}

    def _seed_workers(self, epoch: int, batches: int, *, first: bool) -> None:
        """Seed the workers of this pass. `first`: it is the loader's first in the run."""
        # otherwise the restored random numbers already come after those drawn here
        plain = batches == 0
        seed = derive_key("workers", self._seed, epoch, batches)
        if plain and self._draws and (first or not self._once):
            draw_seed_of_workers(self._loader, self._twin, seed)
        else:
            self._twin.generator.manual_seed(seed)
        if plain:
            draw_as_sampler(self._loader)

    def _start_position(self, epoch: int, position: FeedPosition | None) -> FeedPosition:
        before = self._last if position is None else position
        if before is not None and not before["batches"]:
            before = before.get("before")
        start = position_of(epoch, 0, 0)
        return start if before is None or not self._plan.carries else {**start, "before": before}

    def _note_consumed(self, batches: Iterator[Any]) -> Iterator[Any]:
        for batch in batches:
            position = self._last = self._steps.pending.popleft()
            self._recent.append(position)
            self._plan.consumed(position)
            yield batch


class _StepSampler:
    """The batch sampler of the clone: yields one walk, and keeps the positions of batches that are
    not consumed yet.
    """

    def __init__(self) -> None:
        self.pending: deque[FeedPosition] = deque()
        self._walk: Iterator[Step] = iter(())

    def start_walk(self, walk: Iterator[Step]) -> None:
        self._walk = walk
        self.pending.clear()

    def __iter__(self) -> _StepSampler:
        return self  # a loader with workers requests two iterators and drops the first one unused

    def __next__(self) -> Any:
        step = next(self._walk)
        self.pending.append(step.position)
        return step.indices
