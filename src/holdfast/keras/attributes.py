"""Attributes of the user's own models and layers that a step changes in Python: on torch, and with
run_eagerly.

In a compiled step Python runs only while TensorFlow or JAX traces it. Attributes that it changes
then are not state.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import keras

from ..trainers.attributes import PlainAttributes, names_set_by

_THEIRS = ("keras", "tensorflow", "torch", "builtins")


class ModelAttributes:
    """The attributes that methods of the user's classes set."""

    def __init__(self, model: Any) -> None:
        eager = keras.backend.backend() == "torch" or model.run_eagerly
        layers = enumerate(model._flatten_layers()) if eager else ()  # noqa: SLF001
        found = {f"layer{place}": (each, _names_set_by_user(type(each))) for place, each in layers}
        self._all = {
            name: _LayerAttributes(each, only=names)
            for name, (each, names) in found.items()
            if names
        }

    def state_dict(self) -> dict[str, Any]:
        return {name: found for name, each in self._all.items() if (found := each.changed())}

    def load_state_dict(self, stored: Mapping[str, Any]) -> None:
        for name, each in self._all.items():
            each.restore(stored.get(name, {}))


class _LayerAttributes(PlainAttributes):
    def _user_attributes(self) -> Iterator[tuple[str, Any]]:
        for name, value in super()._user_attributes():
            tracked = type(value).__module__.startswith("keras.") and isinstance(
                value, list | dict | set
            )
            yield name, type(value).__base__(value) if tracked else value  # type: ignore[misc]  # Keras' own kind of it


def _names_set_by_user(kind: type) -> set[str]:
    own = (each for each in kind.__mro__ if each.__module__.partition(".")[0] not in _THEIRS)
    return {name for each in own for name in names_set_by(each)}
