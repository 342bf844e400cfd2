"""A call of fit(), seen from a callback: its data, its callbacks, and what has to be so before a run begins."""

from __future__ import annotations

import sys
from contextlib import suppress
from types import FrameType
from typing import Any, NamedTuple

import keras

from ..errors import UsageError
from ..trainers.training import only_one


class Call(NamedTuple):
    model: Any
    callbacks: Any  # its CallbackList
    iterator: Any  # its EpochIterator
    epochs: range
    validation: Any  # the data, as fit() was given them


def the_call(model: Any) -> Call:
    """The call of fit() in which Keras calls the callback that asks.

    Raises:
        UsageError: there is none.
    """
    frame: FrameType | None = sys._getframe(1)  # noqa: SLF001  a callback is told of the model alone
    while frame is not None:
        found = frame.f_locals if frame.f_code.co_name == "fit" else {}
        if "epoch_iterator" in found and "callbacks" in found:
            epochs = range(found["initial_epoch"], found["epochs"])
            return Call(model, found["callbacks"], found["epoch_iterator"], epochs, found.get("validation_data"))
        frame = frame.f_back
    raise UsageError(
        "holdfast.keras.Holdfast belongs into model.fit(callbacks=[...]) of Keras. A loop of your own takes "
        "holdfast.Run: docs/loops.md"
    )


def begin_the_others(call: Call, ours: Any) -> None:
    """Begin the callbacks that stand behind ours in the list: what a run restores must not be reset afterwards."""
    listed = call.callbacks.callbacks  # Keras is walking it, and calls on_train_begin of each
    place = listed.index(ours)
    later, listed[place + 1 :] = listed[place + 1 :], []
    call.callbacks.callbacks = [*listed[:place], *later, ours]
    for each in later:
        each.on_train_begin({})


def require_alone(call: Call, ours: type) -> None:
    """
    Raises:
        UsageError: another callback, or a strategy, would stand in the way.
    """
    callbacks = call.callbacks.callbacks
    only_one(callbacks, ours)
    if any(isinstance(each, keras.callbacks.BackupAndRestore) for each in callbacks):
        raise UsageError(
            "BackupAndRestore would begin interrupted epochs once more, on weights of their middle: remove it from "
            "fit(callbacks=[...]), holdfast.keras.Holdfast does its work"
        )
    replicas = getattr(getattr(call.model, "distribute_strategy", None), "num_replicas_in_sync", 1)
    if replicas > 1:
        raise UsageError(f"holdfast.keras knows one replica, and tf.distribute has {replicas}")
    if keras.distribution.distribution() is not None:
        raise UsageError(
            "holdfast.keras knows one device, and keras.distribution spreads the model or its data over several"
        )


def build(call: Call) -> None:
    """Make the variables that Keras on TensorFlow makes with the first batch only: too late for a restore."""
    model = call.model
    if keras.backend.backend() == "tensorflow":
        specs = call.iterator._distributed_dataset.element_spec  # noqa: SLF001
        with suppress(Exception):  # a model that is no function of its batch: a resume wants it to be built
            model._symbolic_build(data_batch=specs)  # noqa: SLF001
    built = all(each.built for each in model._flatten_layers())  # noqa: SLF001  else variables are still to come
    if built and isinstance(model.optimizer, keras.optimizers.Optimizer) and not model.optimizer.built:
        model.optimizer.build(model.trainable_variables)


def begins_anew(data: Any) -> bool:
    """Whether a new process would draw other batches of these than the one before in a later epoch."""
    if isinstance(data, keras.utils.PyDataset):
        plain = keras.utils.PyDataset
        return any(getattr(type(data), name) is not getattr(plain, name) for name in ("on_epoch_begin", "on_epoch_end"))
    if hasattr(data, "element_spec"):
        shuffled = "Shuffle" in type(data).__name__ and getattr(data, "_reshuffle_each_iteration", True)
        return bool(shuffled) or any(map(begins_anew, data._inputs()))  # noqa: SLF001
    return hasattr(data, "__next__")
