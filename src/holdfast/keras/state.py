"""The state of Keras objects: variables, as arrays of NumPy on every backend, so that any backend
reads a checkpoint.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import keras
import numpy as np
from keras.src.backend.common.variables import Variable

from ..errors import Mismatch, UsageError

# Keras counts the layers of a process: "dense_1" may be "dense_3" in the next one
_NUMBER = re.compile(r"_\d+")


class Variables:
    """Some variables of a model, in their order, as state of a run."""

    def __init__(self, what: str, find: Callable[[], Sequence[Any]], model: Any = None) -> None:
        self._what, self._find, self._model = what, find, model

    def is_subset_of(self, others: Iterable[Any]) -> bool:
        return {id(each) for each in self._find()} <= {id(each) for each in others}

    def trainable_flags(self) -> list[bool]:
        """Return for each variable whether it is a parameter that training changes, in the order of
        `state_dict`.
        """
        return [bool(each.trainable) for each in self._find()]

    def state_dict(self) -> dict[str, Any]:
        if self._model is not None:
            write_back_jax_state(self._model)
        return variable_arrays(self._find())

    def load_state_dict(self, stored: Mapping[str, Any]) -> None:
        if self._model is not None:
            write_back_jax_state(self._model)
        assign(self._find(), stored, self._what)


class Metrics(Variables):
    """A model's metrics. Keras resets them before each epoch, so they are part of the state only
    inside an epoch.
    """

    def __init__(self, model: Any) -> None:
        super().__init__("the metrics", lambda: model.metrics_variables, model)
        self.inside = False

    def state_dict(self) -> dict[str, Any]:
        return super().state_dict() if self.inside else {}

    def load_state_dict(self, stored: Mapping[str, Any]) -> None:
        self.inside = bool(stored)
        if self.inside:
            super().load_state_dict(stored)


class Optimizer:
    """An optimizer as state of a run. Keras builds it for the variables that it steps; the
    checkpoint records which.
    """

    def __init__(self, optimizer: Any, model: Any) -> None:
        self._optimizer, self._model = optimizer, model
        self.base_rate = learning_rate(
            optimizer
        )  # that of the script; callbacks may change the present one

    def _steps(self) -> list[int]:
        """Return the indexes of the model's variables that the optimizer steps."""
        places = {id(each): place for place, each in enumerate(self._model.variables)}
        return [places.get(id(each), -1) for each in self._optimizer._trainable_variables]  # noqa: SLF001

    def state_dict(self) -> dict[str, Any]:
        write_back_jax_state(self._model)
        optimizer = self._optimizer
        steps = self._steps() if optimizer.built else None
        return {
            "steps": steps,
            "variables": variable_arrays(optimizer.variables),
            "base_rate": self.base_rate,
        }

    def load_state_dict(self, stored: Mapping[str, Any]) -> None:
        optimizer, steps = self._optimizer, stored["steps"]
        if steps is not None and not optimizer.built and -1 not in steps:
            everything = self._model.variables
            optimizer.build([everything[place] for place in steps])
        if optimizer.built and steps != self._steps():
            raise Mismatch(
                "the optimizer of the checkpoint steps other "
                "variables than this one: as many as before must be "
                "trainable. A fit after another compile() wants a run of its own: another path"
            )
        assign(optimizer.variables, stored["variables"], "the optimizer")
        self.base_rate = stored.get("base_rate", self.base_rate)

    def set_learning_rate(self, new: float) -> str:
        """Set the learning rate; callbacks may change it from there. Return a line of the form old
        -> new.

        Raises:
            UsageError: a schedule gives the rate.
        """
        old = learning_rate(self._optimizer)
        if old is None:
            raise UsageError(
                "overrides: a schedule gives the learning rate "
                "of this optimizer; change it in the script"
            )
        self._optimizer.learning_rate = new
        self.base_rate = learning_rate(self._optimizer)
        return f"learning_rate {old:g} -> {new:g}"


def learning_rate(optimizer: Any) -> float | None:
    """Return the learning rate that is a variable of `optimizer`;
    None where a schedule gives it.
    """
    inner = getattr(optimizer, "inner_optimizer", optimizer)  # of a LossScaleOptimizer
    value = inner._learning_rate  # noqa: SLF001  the property computes a schedule's
    return float(as_array(value)) if isinstance(value, Variable) else None


def optimizers(model: Any) -> dict[str, Optimizer]:
    """Return the optimizer of `model`, and those that a train_step of its own uses, by their
    attributes.

    They may stand in lists and dicts, and in the layers of `model`.
    """
    return {name: Optimizer(each, model) for name, each in _optimizers(model).items()}


def _optimizers(model: Any) -> dict[str, Any]:
    found = dict(_find_optimizers("optimizer", model.optimizer))
    for place, layer in enumerate(model._flatten_layers()):  # noqa: SLF001
        for name, value in vars(layer).items():
            if name.startswith("_self_"):
                continue  # TensorFlow's lists of the same objects
            for path, each in _find_optimizers(
                name.lstrip("_") if layer is model else f"layer{place}.{name}", value
            ):
                if all(each is not other for other in found.values()):
                    found[path] = each
    return found


def _find_optimizers(name: str, value: Any) -> Iterator[tuple[str, Any]]:
    """Yield the optimizers that `value` is or holds."""
    if isinstance(value, keras.optimizers.Optimizer):
        yield name, value
    elif isinstance(value, dict | list | tuple):
        for key, each in value.items() if isinstance(value, dict) else enumerate(value):
            yield from _find_optimizers(f"{name}.{key}", each)


def variables_of(model: Any) -> list[Any]:
    """Return the variables that are saved with `model`, so that no other object saves them."""
    more = [each for optimizer in _optimizers(model).values() for each in optimizer.variables]
    return [*model.variables, *model.metrics_variables, *more]


def as_trackable(value: Any) -> Any:
    """Return an object that a run can track for a value in the user's `state`:
    Keras objects by their variables.
    """
    if isinstance(value, keras.Layer):
        return Variables(f"the layer {value.name}", lambda: value.variables)
    if isinstance(value, keras.optimizers.Optimizer):
        return Variables(f"the optimizer {value.name}", lambda: value.variables)
    if isinstance(value, keras.random.SeedGenerator):
        return Variables(f"the generator {value.name}", lambda: [value.state])
    if isinstance(value, keras.metrics.Metric):
        return Variables(f"the metric {value.name}", lambda: value.variables)
    if isinstance(value, Variable):
        return Variables(f"the variable {value.path}", lambda: [value])
    return value


def write_back_jax_state(model: Any) -> None:
    """Write the state of JAX's steps back into the model's variables,
    which are not updated during an epoch.
    """
    if keras.backend.backend() == "jax" and hasattr(model, "jax_state_sync"):
        model.jax_state_sync()


def variable_arrays(variables: Sequence[Any]) -> dict[str, Any]:
    """Return the values of variables by their paths; of equal paths, all but the first have a
    number.
    """
    return dict(zip(unique_paths(variables), map(as_array, variables), strict=True))


def as_array(variable: Any) -> Any:
    return np.asarray(keras.ops.convert_to_numpy(variable.value))


def unique_paths(variables: Sequence[Any]) -> list[str]:
    seen, found = Counter[str](), []
    for each in variables:
        seen[each.path] += 1
        found.append(each.path if seen[each.path] == 1 else f"{each.path}#{seen[each.path]}")
    return found


def assign(variables: Sequence[Any], stored: Mapping[str, Any], what: str) -> None:
    """Give the variables the values of a checkpoint, in their order.

    Raises:
        Mismatch: they are others; nothing was assigned.
    """
    lines = differences(variables, stored)
    if lines:
        shown = "".join(f"\n  {line}" for line in lines[:20])
        raise Mismatch(
            f"{what}: the {len(variables)} variables here do not "
            f"fit the {len(stored)} of the checkpoint. Build the "
            "model before fit() as it was, and compile() it alike; "
            f"another structure wants a run of its own.{shown}"
        )
    for each, value in zip(variables, stored.values(), strict=True):
        each.assign(value)


def differences(variables: Sequence[Any], stored: Mapping[str, Any]) -> list[str]:
    here = dict(zip(unique_paths(variables), variables, strict=True))
    lines = []
    for (name, each), (was, value) in zip(here.items(), stored.items(), strict=False):
        here_is, there_was = (each.dtype, tuple(each.shape)), (value.dtype.name, tuple(value.shape))
        if here_is != there_was or _NUMBER.sub("", name) != _NUMBER.sub("", was):
            lines.append(f"{was} {there_was} was saved, {name} {here_is} is here")
    lines += [f"{name}: not in the checkpoint" for name in [*here][len(stored) :]]
    return lines + [f"{name}: in the checkpoint, not here" for name in [*stored][len(here) :]]
