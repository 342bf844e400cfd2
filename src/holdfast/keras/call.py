"""FitCall: a call of fit() as its callback sees it: data, callbacks, and the checks before a run
begins.
"""

from __future__ import annotations

import sys
from contextlib import suppress
from types import FrameType
from typing import Any, NamedTuple

import keras

from ..errors import UsageError
from ..trainers.training import require_one


class FitCall(NamedTuple):
    """A call of fit(): its model, data and callbacks."""

    model: Any
    callbacks: Any  # its CallbackList
    iterator: Any  # its EpochIterator
    epochs: range
    validation: Any  # the data, as fit() was given them


def current_fit_call(model: Any) -> FitCall:
    """Return the call of fit() inside which Keras calls the present callback.

    Raises:
        UsageError: there is none.
    """
    frame: FrameType | None = sys._getframe(1)  # noqa: SLF001  a callback is told of the model alone
    while frame is not None:
        found = frame.f_locals if frame.f_code.co_name == "fit" else {}
        if "epoch_iterator" in found and "callbacks" in found:
            epochs = range(found["initial_epoch"], found["epochs"])
            return FitCall(
                model,
                found["callbacks"],
                found["epoch_iterator"],
                epochs,
                found.get("validation_data"),
            )
        frame = frame.f_back
    raise UsageError(
        "holdfast.keras.Holdfast belongs into model.fit(callbacks=[...]) of Keras. "
        "A loop of your own takes "
        "holdfast.Run: docs/loops.md"
    )


def begin_other_callbacks(call: FitCall, ours: Any) -> None:
    """Begin the callbacks after ours in the list: they must not reset the restored state
    afterwards.
    """
    listed = call.callbacks.callbacks  # Keras is walking it, and calls on_train_begin of each
    place = listed.index(ours)
    later, listed[place + 1 :] = listed[place + 1 :], []
    call.callbacks.callbacks = [*listed[:place], *later, ours]
    for each in later:
        each.on_train_begin({})


def require_alone(call: FitCall, ours: type) -> None:
    """Require that no other callback or strategy conflicts with ours.

    Raises:
        UsageError: another callback, or a strategy, would stand in the way.
    """
    callbacks = call.callbacks.callbacks
    require_one(callbacks, ours)
    if any(isinstance(each, keras.callbacks.BackupAndRestore) for each in callbacks):
        raise UsageError(
            "BackupAndRestore would begin interrupted epochs once more, "
            "on weights of their middle: remove it from "
            "fit(callbacks=[...]), holdfast.keras.Holdfast does its work"
        )
    replicas = getattr(getattr(call.model, "distribute_strategy", None), "num_replicas_in_sync", 1)
    if replicas > 1:
        raise UsageError(f"holdfast.keras knows one replica, and tf.distribute has {replicas}")
    if keras.distribution.distribution() is not None:
        raise UsageError(
            "holdfast.keras knows one device, "
            "and keras.distribution spreads the model or its data over several"
        )


def build_variables(call: FitCall) -> None:
    """Create the variables that Keras on TensorFlow would create with the first batch, after the
    restore.
    """
    model = call.model
    if keras.backend.backend() == "tensorflow":
        specs = call.iterator._distributed_dataset.element_spec  # noqa: SLF001
        # a model that cannot be built from its batch: a resume requires a built model
        with suppress(Exception):
            model._symbolic_build(data_batch=specs)  # noqa: SLF001
    built = all(each.built for each in model._flatten_layers())  # noqa: SLF001  else variables are still to come
    if (
        built
        and isinstance(model.optimizer, keras.optimizers.Optimizer)
        and not model.optimizer.built
    ):
        model.optimizer.build(model.trainable_variables)


def depends_on_process(data: Any) -> bool:
    """Return whether a new process would draw other batches from this data in a later epoch than
    the old process.
    """
    if isinstance(data, keras.utils.PyDataset):
        plain = keras.utils.PyDataset
        return any(
            getattr(type(data), name) is not getattr(plain, name)
            for name in ("on_epoch_begin", "on_epoch_end")
        )
    if hasattr(data, "element_spec"):
        shuffled = "Shuffle" in type(data).__name__ and getattr(
            data, "_reshuffle_each_iteration", True
        )
        return bool(shuffled) or any(map(depends_on_process, data._inputs()))  # noqa: SLF001
    return hasattr(data, "__next__")
