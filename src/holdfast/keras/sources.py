"""Sources: arrays, PyDataset, DataLoader, generators and tf.data, as batches from any place on."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import keras
import numpy as np
from keras.src import tree
from keras.src.trainers.data_adapters import array_slicing
from keras.src.trainers.data_adapters.array_data_adapter import ArrayDataAdapter
from keras.src.trainers.data_adapters.py_dataset_adapter import PyDatasetAdapter
from keras.src.trainers.data_adapters.tf_dataset_adapter import TFDatasetAdapter
from keras.src.trainers.data_adapters.torch_data_loader_adapter import TorchDataLoaderAdapter

from ..data.feed import feed_for
from ..data.order import Shuffle, key
from ..data.replay import ReplayFeed
from .feed import BatchSource


def batches_of(adapter: Any) -> Iterator[Any]:
    """The batches of a data adapter of Keras, as the backend takes them; for TensorFlow as arrays of NumPy."""
    backend = keras.backend.backend()
    if backend == "jax":
        return iter(adapter.get_jax_iterator())
    return iter(adapter.get_torch_dataloader() if backend == "torch" else adapter.get_numpy_iterator())


class Once:
    """Replaces a dataset inside an adapter: it is iterated once, over batches that are fetched elsewhere."""

    def __init__(self, batches: Iterator[Any]) -> None:
        self._batches = batches

    def __iter__(self) -> Iterator[Any]:
        return self._batches


def batches_from(adapter: Any, name: str, batches: Iterator[Any]) -> Iterator[Any]:
    """The same, from `batches` instead of the data in the adapter's attribute `name`."""
    twin = copy.copy(adapter)
    setattr(twin, name, Once(batches))
    return batches_of(twin)


class Arrays(BatchSource):
    """Arrays, in an order of our own where they are shuffled: the same on each backend, and entered anywhere."""

    def __init__(self, adapter: Any, seed: int) -> None:
        self.adapter, self._seed = adapter, seed
        self.samples, self.size, self._shuffle = adapter._num_samples, adapter._batch_size, adapter._shuffle  # noqa: SLF001
        self.length = int(adapter._size)  # noqa: SLF001

    def facts(self) -> dict[str, Any]:
        return {"length": self.samples, "batch_size": self.size, "shuffle": str(self._shuffle)}

    def order(self, number: int, seen: int) -> Any:
        """The samples of pass `number` after `seen` batches, in their order."""
        first = min(seen * self.size, self.samples)
        if self._shuffle == "batch":
            starts = range(first, self.samples, self.size)
            return np.concatenate([self._in_batch(number, start) for start in starts] or [np.empty(0, np.int64)])
        if self._shuffle:
            return Shuffle(self.samples, self._seed, number).block(first, self.samples)
        return np.arange(first, self.samples)

    def _in_batch(self, number: int, start: int) -> Any:
        size = min(self.size, self.samples - start)
        return start + Shuffle(size, key("batch", self._seed, start), number).block(0, size)

    def begin(self, number: int, seen: int, place: Any) -> Iterator[Any]:  # noqa: ARG002
        backend = keras.backend.backend()
        inputs = array_slicing.convert_to_sliceable(self.adapter._inputs, target_backend=backend)  # noqa: SLF001
        order = self.order(number, seen)

        def taken(chosen: Any) -> Callable[[Any], Any]:
            def take(array: Any) -> Any:
                if array is None:  # an input that is left out
                    return None
                if backend == "torch":
                    return keras.ops.convert_to_tensor(array.convert_to_torch_compatible(array[chosen]))
                return array.convert_to_jax_compatible(array[chosen])

            return take

        for at in range(0, len(order), self.size):
            chosen = order[at : at + self.size]
            if not self._shuffle:
                chosen = slice(int(chosen[0]), int(chosen[-1]) + 1)
            yield tree.map_structure(taken(chosen), inputs)


class RemainingBatches(keras.utils.PyDataset):  # type: ignore[misc]  # keras has no types
    """The remaining batches of a PyDataset, in our order."""

    def __init__(self, dataset: Any, order: list[int] | None, start: int) -> None:
        more = {"workers": dataset.workers, "use_multiprocessing": dataset.use_multiprocessing}
        super().__init__(**more, max_queue_size=dataset.max_queue_size)
        self._dataset, self._order, self._start = dataset, order, start

    @property
    def num_batches(self) -> int | None:
        return None if self._order is None else len(self._order) - self._start

    def __getitem__(self, index: int) -> Any:
        place = self._start + index
        return self._dataset[place if self._order is None else self._order[place]]


class Indexed(BatchSource):
    """A PyDataset: a batch is read by its number."""

    def __init__(self, adapter: Any, seed: int) -> None:
        self._adapter, self._seed, self._shuffle = adapter, seed, bool(adapter.shuffle)
        self.length = adapter.py_dataset.num_batches

    def facts(self) -> dict[str, Any]:
        return {"length": self.length, "shuffle": self._shuffle}

    def begin(self, number: int, seen: int, place: Any) -> Iterator[Any]:  # noqa: ARG002
        count, order = self.length, None
        if count is not None:
            order = Shuffle(count, self._seed, number)[:] if self._shuffle else list(range(count))
        rest = RemainingBatches(self._adapter.py_dataset, order, seen)
        if order is not None and seen >= len(order):
            return iter(())
        return batches_of(PyDatasetAdapter(rest, class_weight=self._adapter.class_weight))


class Fed(BatchSource):
    """A source that the core knows how to walk: torch's DataLoader; any other iterable is read again."""

    def __init__(self, feed: Any, length: int | None, adapt: Callable[[Iterator[Any]], Iterator[Any]]) -> None:
        self._feed, self.length, self._adapt = feed, length, adapt
        self.replays, self.unknown = feed.replays, feed.unknown

    def facts(self) -> dict[str, Any]:
        return {f"of_{name}" if name == "loader" else name: fact for name, fact in self._feed.describe().items()}

    def begin(self, number: int, seen: int, place: Any) -> Iterator[Any]:  # noqa: ARG002
        return self._adapt(self._feed.open(number, place))

    def place(self, seen: int) -> Any:
        return dict(self._feed.position(seen))


def source_of(iterator: Any, seed: int) -> BatchSource:
    """The source for an epoch iterator of Keras."""
    adapter, tensorflow = iterator.data_adapter, keras.backend.backend() == "tensorflow"
    if isinstance(adapter, ArrayDataAdapter):
        if not tensorflow:
            return Arrays(adapter, seed)
        from .tfdata import ArraysOfTensorFlow

        return ArraysOfTensorFlow(adapter, seed)
    if isinstance(adapter, TFDatasetAdapter):
        from .tfdata import Pipeline

        return Pipeline(iterator)
    if isinstance(adapter, PyDatasetAdapter):
        return Indexed(adapter, seed)
    if isinstance(adapter, TorchDataLoaderAdapter):
        loader = adapter._dataloader  # noqa: SLF001
        feed = feed_for(loader, seed, "train")
        return Fed(feed, adapter.num_batches, lambda batches: batches_from(adapter, "_dataloader", batches))
    return Fed(ReplayFeed(_once_or_more(adapter)), adapter.num_batches, iter)


def _once_or_more(adapter: Any) -> Iterable[Any]:
    """A generator is iterated once; a dataset of a kind that only Keras knows is iterated anew for each pass."""
    return batches_of(adapter) if adapter.num_batches is None else _Anew(adapter)


class _Anew:
    def __init__(self, adapter: Any) -> None:
        self._adapter = adapter

    def __iter__(self) -> Iterator[Any]:
        return batches_of(self._adapter)
