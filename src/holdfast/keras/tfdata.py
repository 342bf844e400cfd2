"""tf.data: pipelines by TensorFlow's own iterator checkpoint,
arrays on TensorFlow, batches handed to it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from functools import cached_property
from typing import Any

import keras
import tensorflow as tf
from keras.src import tree
from keras.src.trainers.data_adapters import array_slicing

from ..errors import UsageError
from ..terminal import warn
from .arrays import ArrayBatches, batches_from
from .feed import BatchGroup, BatchSource


class ArraysOfTensorFlow(ArrayBatches):
    """Arrays that TensorFlow gathers, ahead of the step that takes them. Gathering draws no random
    numbers.
    """

    by_keras = True

    @cached_property
    def _whole(self) -> Any:
        inputs = array_slicing.convert_to_sliceable(
            self.adapter._inputs,  # noqa: SLF001
            target_backend="tensorflow",
        )
        return tf.data.Dataset.from_tensors(tree.lists_to_tuples(inputs)).repeat()

    def begin_pass(self, number: int, seen: int, place: Any) -> Iterator[Any]:  # noqa: ARG002
        places = tf.data.Dataset.from_tensor_slices(self.sample_order(number, seen)).batch(
            self.size
        )
        batches = tf.data.Dataset.zip((places, self._whole)).map(
            _gather_batch, num_parallel_calls=tf.data.AUTOTUNE
        )
        return iter(batches.prefetch(tf.data.AUTOTUNE))


def _gather_batch(places: Any, inputs: Any) -> Any:
    def one(array: Any) -> Any:
        if isinstance(array, array_slicing.TensorflowSparseWrapper):
            return array_slicing.slice_tensorflow_sparse_wrapper(array, places)
        if isinstance(array, list | tuple | dict):
            return None  # goes on into it
        return tf.gather(array, places, axis=0) if tf.is_tensor(array) else array

    return tree.traverse(one, inputs)


class TfDataBatches(BatchSource):
    """Batches of a tf.data pipeline. TensorFlow saves its iterator's position: buffers of
    shuffle(), seeds, numbers of passes.
    """

    def __init__(self, iterator: Any) -> None:
        self._iterator, self._adapter = iterator, iterator.data_adapter
        self.by_keras = keras.backend.backend() == "tensorflow"
        self.length = self._adapter.num_batches
        self._at: Any = None  # TensorFlow's iterator
        self._start = b""  # its state when this pass began

    def facts(self) -> dict[str, Any]:
        return {
            "length": self._adapter.num_batches,
            "elements": str(self._adapter._dataset.element_spec),  # noqa: SLF001
        }

    def begin_pass(self, number: int, seen: int, place: Any) -> Iterator[Any]:  # noqa: ARG002
        dataset = self._iterator._get_iterator() if self.by_keras else self._adapter._dataset  # noqa: SLF001
        if place is None:
            self._at = iter(dataset)
            self._start = self._state()  # fails here if the position cannot be saved
        else:
            # At its end an iterator has dropped the counter of passes for shuffle(); its state at
            # the start still has it.
            first, self._at, self._start = iter(dataset), iter(dataset), place["start"]
            _restore(first, self._start)
            _restore(self._at, place["now"])
            if self.length is None:  # only a fetch shows whether it is at its end
                if not bool(self._at.get_next_as_optional().has_value()):
                    self.length = seen
                    warn(
                        "this tf.data pipeline of unknown length was "
                        "stopped just behind the last batch of its first "
                        "pass: the next one is shuffled otherwise. "
                        "tf.data.experimental.assert_cardinality avoids it"
                    )
                _restore(self._at, place["now"])
        here: Iterator[Any] = self._at
        if self.by_keras:
            return here
        return batches_from(self._adapter, "_dataset", self._at)

    def place(self, seen: int) -> dict[str, bytes]:  # noqa: ARG002
        return {"now": self._state(), "start": self._start}

    def _state(self) -> bytes:
        """Return the pipeline's position, as TensorFlow saves it.

        Raises:
            UsageError: TensorFlow cannot save the pipeline's position.
        """
        try:
            state = self._at._serialize_to_tensors()["_STATE"]  # noqa: SLF001
            return bytes(tf.io.serialize_tensor(state).numpy())
        except (AttributeError, tf.errors.OpError) as error:
            why = (getattr(error, "message", "") or str(error)).splitlines()[0]
            raise UsageError(
                "TensorFlow cannot save the position of this tf.data pipeline: "
                f"{why}. Draw random numbers with "
                "tf.random.stateless_uniform and seeds from "
                "tf.data.Dataset.random(), take layers that draw them "
                "(RandomFlip) into the model, "
                "and give a PyDataset instead of from_generator() or py_function"
            ) from error


def _restore(iterator: Any, state: bytes) -> None:
    iterator._restore_from_tensors({"_STATE": tf.io.parse_tensor(state, tf.variant)})  # noqa: SLF001


class TensorFlowHandover:
    """Fetches batches here, in the loop's own thread, and hands them to TensorFlow on demand.

    Keras would let TensorFlow fetch them ahead, in a thread of its own: random numbers would then
    be drawn at any time.
    """

    def __init__(self, iterator: Any) -> None:
        self._spec = iterator._distributed_dataset.element_spec  # noqa: SLF001
        self._batches = deque[Any]()
        options = tf.data.Options()
        options.autotune.enabled = False
        options.experimental_optimization.apply_default_optimizations = False
        self._dataset = tf.data.Dataset.from_generator(
            self._yield_batches, output_signature=self._spec
        ).with_options(options)
        self._iterator: Any = None

    def iterate_group(self, group: BatchGroup) -> Any:
        """Return TensorFlow's iterator over the batches of this group; it ends where the epoch is
        known to end.
        """
        if self._iterator is None or group.first == 0:
            self._iterator = iter(self._dataset)
        self._batches.extend(tree.map_structure(_to_tensors, batch) for batch in group.batches)
        return self._iterator

    def _yield_batches(self) -> Iterator[Any]:
        while self._batches:
            yield self._batches.popleft()


def _to_tensors(value: Any) -> Any:
    return tf.experimental.Optional.empty(None) if value is None else value
