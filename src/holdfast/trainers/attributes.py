"""Attributes of the user's own objects that training changes: lists, numbers, tensors.

For example, `self.outputs = []`, appended to in each step and read at the epoch's end, is not in a
trainer's own checkpoints. Attributes that training has not changed are not saved, so that a script
may give them another value later: a path, for example.
"""

from __future__ import annotations

import copy
import dis
import inspect
import random
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Collection, Iterator, Mapping
from typing import Any

from ..state import codec
from ..state.fill import restore_value
from ..state.tree import FACTORIES
from ..stateful.tracked import digest_state
from ..terminal import warn

_PLAIN = (type(None), bool, int, float, complex, str, bytes)
_SEQUENCES = (list, tuple, set, frozenset, deque)
_MAPPINGS = (dict, OrderedDict, Counter, defaultdict)
_CONTAINERS = (list, dict, set, deque)  # with those derived from them
_GENERATORS = ("Generator", "RandomState")  # NumPy's and torch's


class PlainAttributes:
    """The plain attributes of one object, except the framework's own; with `only`, some of them."""

    def __init__(
        self, target: Any, frameworks: Collection[str] = (), *, only: Collection[str] | None = None
    ) -> None:
        self._target, self._frameworks, self._only = target, frameworks, only
        # of what is divided over ranks each has another part, and all save it
        self._before = {
            name: _digest(value) for name, value in self._plain().items() if not _is_divided(value)
        }
        self._sizes = dict(self._unsaved_containers())
        self._said = False

    def changed(self) -> dict[str, Any]:
        """Return the attributes that changed since the training began. Print a line that names
        containers that are lost.
        """
        if not self._said and (
            lost := [
                name for name, size in self._unsaved_containers() if self._sizes.get(name) != size
            ]
        ):
            self._said = True
            warn(
                f"{type(self._target).__name__}.{lost[0]} changes, "
                "and holds what cannot be saved as an attribute: a "
                "resume does not have it. Give it in state=, or keep plain lists, dicts and numbers"
            )
        return {
            name: value
            for name, value in self._plain().items()
            if self._before.get(name) != _digest(value)
        }

    def restore(self, stored: Mapping[str, Any]) -> None:
        """Restore the stored attributes, in place if possible."""
        for name, value in stored.items():
            setattr(
                self._target,
                name,
                restore_value(vars(self._target).get(name), copy.deepcopy(value)),
            )

    def _user_attributes(self) -> Iterator[tuple[str, Any]]:
        for name, value in vars(self._target).items():
            if name not in self._frameworks and (self._only is None or name in self._only):
                yield name, value

    def _plain(self) -> dict[str, Any]:
        return {name: value for name, value in self._user_attributes() if _is_plain(value)}

    def _unsaved_containers(self) -> Iterator[tuple[str, int]]:
        """Yield the containers that cannot be saved, with their sizes."""
        return (
            (name, len(value))
            for name, value in self._user_attributes()
            if isinstance(value, _CONTAINERS) and not _is_plain(value)
        )


def names_set_by(kind: type) -> set[str]:
    """Return the names of the attributes that the methods of a class set."""
    methods = map(inspect.unwrap, filter(inspect.isfunction, vars(kind).values()))
    return {
        each.argval
        for method in methods
        for each in dis.get_instructions(method)
        if each.opname == "STORE_ATTR"
    }


def _is_plain(value: Any, within: tuple[int, ...] = ()) -> bool:
    kind = type(value)
    if kind in _PLAIN:
        return True
    if id(value) in within:
        return False
    inside = (*within, id(value))
    if kind in _SEQUENCES:
        return all(_is_plain(each, inside) for each in value)
    if kind in _MAPPINGS:
        known = kind is not defaultdict or value.default_factory in (None, *FACTORIES.values())
        return known and all(
            _is_plain(key) and _is_plain(each, inside) for key, each in value.items()
        )
    if kind.__name__ in _GENERATORS and codec.framework_of(kind) is not None:
        return True
    if f"{kind.__module__}.{kind.__name__}" == "torch.Tensor" or _is_dtensor(value):
        return not (value.is_sparse or value.is_meta)
    array = kind.__module__ == "numpy" and hasattr(value, "dtype")  # or a number of NumPy's
    return (array and value.dtype.kind in "biufc") or kind is random.Random


def _is_dtensor(value: Any) -> bool:
    return type(value).__name__ == "DTensor" and codec.framework_of(type(value)) is not None


def _is_divided(value: Any) -> bool:
    """Return whether a plain value has a DTensor inside."""
    if isinstance(value, dict):
        return any(map(_is_divided, value.values()))
    return _is_dtensor(value) or (
        isinstance(value, list | tuple | deque) and any(map(_is_divided, value))
    )


def restored_gradient(parameter: Any, stored: Any) -> Any:
    """Return a stored gradient where its parameter is: on its device, and divided over the ranks as
    it is.
    """
    if _is_dtensor(parameter.data):
        return restore_value(parameter.detach().clone(), stored)
    return stored.to(parameter.device, copy=True)


def _digest(value: Any) -> dict[str, str]:
    return digest_state({"it": value}).of
