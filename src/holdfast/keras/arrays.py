"""Arrays as batches from any position, and the batches of a data adapter of Keras."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from functools import partial
from typing import Any

import keras
import numpy as np
from keras.src import tree
from keras.src.trainers.data_adapters import array_slicing

from ..data.order import Shuffle, derive_key
from .feed import BatchSource


def batches_of(adapter: Any) -> Iterator[Any]:
    """Yield the batches of a data adapter of Keras as the backend takes them; for TensorFlow as
    arrays of NumPy.
    """
    backend = keras.backend.backend()
    if backend == "jax":
        return iter(adapter.get_jax_iterator())
    return iter(
        adapter.get_torch_dataloader() if backend == "torch" else adapter.get_numpy_iterator()
    )


class SingleIteration:
    """Takes the place of a dataset in a data adapter: it is iterated once, over batches that are
    fetched elsewhere.
    """

    def __init__(self, batches: Iterator[Any]) -> None:
        self._batches = batches

    def __iter__(self) -> Iterator[Any]:
        return self._batches


def batches_from(adapter: Any, name: str, batches: Iterator[Any]) -> Iterator[Any]:
    """Yield the batches of a data adapter, with `batches` in place of the data in its attribute
    `name`.
    """
    twin = copy.copy(adapter)
    setattr(twin, name, SingleIteration(batches))
    return batches_of(twin)


class ArrayBatches(BatchSource):
    """Batches of arrays. Shuffled arrays have an order of Holdfast's, the same on each backend,
    that can be entered anywhere.
    """

    def __init__(self, adapter: Any, seed: int) -> None:
        self.adapter, self._seed = adapter, seed
        self.samples, self.size, self._shuffle = (
            adapter._num_samples,  # noqa: SLF001
            adapter._batch_size,  # noqa: SLF001
            adapter._shuffle,  # noqa: SLF001
        )
        self.length = int(adapter._size)  # noqa: SLF001

    def facts(self) -> dict[str, Any]:
        return {"length": self.samples, "batch_size": self.size, "shuffle": str(self._shuffle)}

    def sample_order(self, number: int, seen: int) -> Any:
        """Return the samples of pass `number` after `seen` batches, in their order."""
        first = min(seen * self.size, self.samples)
        if self._shuffle == "batch":
            starts = range(first, self.samples, self.size)
            return np.concatenate(
                [self._in_batch(number, start) for start in starts] or [np.empty(0, np.int64)]
            )
        if self._shuffle:
            return Shuffle(self.samples, self._seed, number).block(first, self.samples)
        return np.arange(first, self.samples)

    def _in_batch(self, number: int, start: int) -> Any:
        size = min(self.size, self.samples - start)
        return start + Shuffle(size, derive_key("batch", self._seed, start), number).block(0, size)

    def begin_pass(self, number: int, seen: int, place: Any) -> Iterator[Any]:  # noqa: ARG002
        backend = keras.backend.backend()
        inputs = array_slicing.convert_to_sliceable(self.adapter._inputs, target_backend=backend)  # noqa: SLF001
        order = self.sample_order(number, seen)

        def take(chosen: Any, array: Any) -> Any:
            if array is None:  # an input that is left out
                return None
            if backend == "torch":
                return keras.ops.convert_to_tensor(array.convert_to_torch_compatible(array[chosen]))
            return array.convert_to_jax_compatible(array[chosen])

        for at in range(0, len(order), self.size):
            chosen = order[at : at + self.size]
            if not self._shuffle:
                chosen = slice(int(chosen[0]), int(chosen[-1]) + 1)
            yield tree.map_structure(partial(take, chosen), inputs)
