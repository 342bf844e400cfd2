"""Batches of a PyDataset, a DataLoader, a generator and all other data of a fit(), from any
position.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import keras
from keras.src.trainers.data_adapters.array_data_adapter import ArrayDataAdapter
from keras.src.trainers.data_adapters.py_dataset_adapter import PyDatasetAdapter
from keras.src.trainers.data_adapters.tf_dataset_adapter import TFDatasetAdapter
from keras.src.trainers.data_adapters.torch_data_loader_adapter import TorchDataLoaderAdapter

from ..data.feed import feed_for
from ..data.order import Shuffle
from ..data.replay import ReplayFeed
from .arrays import ArrayBatches, batches_from, batches_of
from .feed import BatchSource


class RemainingBatches(keras.utils.PyDataset):  # type: ignore[misc]  # keras has no types
    """The remaining batches of a PyDataset, in an order of Holdfast's."""

    def __init__(self, dataset: Any, order: list[int] | None, start: int) -> None:
        super().__init__(
            workers=dataset.workers,
            use_multiprocessing=dataset.use_multiprocessing,
            max_queue_size=dataset.max_queue_size,
        )
        self._dataset, self._order, self._start = dataset, order, start

    @property
    def num_batches(self) -> int | None:
        return None if self._order is None else len(self._order) - self._start

    def __getitem__(self, index: int) -> Any:
        place = self._start + index
        return self._dataset[place if self._order is None else self._order[place]]


class IndexedBatches(BatchSource):
    """Batches of a PyDataset, each read by its number."""

    def __init__(self, adapter: Any, seed: int) -> None:
        self._adapter, self._seed, self._shuffle = adapter, seed, bool(adapter.shuffle)
        self.length = adapter.py_dataset.num_batches

    def facts(self) -> dict[str, Any]:
        return {"length": self.length, "shuffle": self._shuffle}

    def begin_pass(self, number: int, seen: int, place: Any) -> Iterator[Any]:  # noqa: ARG002
        count, order = self.length, None
        if count is not None:
            order = Shuffle(count, self._seed, number)[:] if self._shuffle else list(range(count))
        rest = RemainingBatches(self._adapter.py_dataset, order, seen)
        if order is not None and seen >= len(order):
            return iter(())
        return batches_of(PyDatasetAdapter(rest, class_weight=self._adapter.class_weight))


class FedBatches(BatchSource):
    """Batches of a loader for which Holdfast has a feed: torch's DataLoader; any other iterable is
    read again.
    """

    def __init__(
        self, feed: Any, length: int | None, adapt: Callable[[Iterator[Any]], Iterator[Any]]
    ) -> None:
        self._feed, self.length, self._adapt = feed, length, adapt
        self.replays, self.unknown = feed.replays, feed.unknown

    def facts(self) -> dict[str, Any]:
        return {
            f"of_{name}" if name == "loader" else name: fact
            for name, fact in self._feed.describe().items()
        }

    def begin_pass(self, number: int, seen: int, place: Any) -> Iterator[Any]:  # noqa: ARG002
        return self._adapt(self._feed.open(number, place))

    def place(self, seen: int) -> Any:
        return dict(self._feed.position(seen))


def source_of(iterator: Any, seed: int) -> BatchSource:
    """Return the source of batches for an epoch iterator of Keras."""
    adapter = iterator.data_adapter
    if isinstance(adapter, ArrayDataAdapter):
        if keras.backend.backend() != "tensorflow":
            return ArrayBatches(adapter, seed)
        from .tfdata import ArraysOfTensorFlow

        return ArraysOfTensorFlow(adapter, seed)
    if isinstance(adapter, TFDatasetAdapter):
        from .tfdata import TfDataBatches

        return TfDataBatches(iterator)
    if isinstance(adapter, PyDatasetAdapter):
        return IndexedBatches(adapter, seed)
    if isinstance(adapter, TorchDataLoaderAdapter):
        loader = adapter._dataloader  # noqa: SLF001
        feed = feed_for(loader, seed, "train")
        return FedBatches(
            feed, adapter.num_batches, lambda batches: batches_from(adapter, "_dataloader", batches)
        )
    # a generator is walked once; a dataset that Keras knows and we do not, anew for each pass
    return FedBatches(
        ReplayFeed(
            batches_of(adapter) if adapter.num_batches is None else _FreshIterations(adapter)
        ),
        adapter.num_batches,
        iter,
    )


class _FreshIterations:
    def __init__(self, adapter: Any) -> None:
        self._adapter = adapter

    def __iter__(self) -> Iterator[Any]:
        return batches_of(self._adapter)
