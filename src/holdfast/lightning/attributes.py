"""Attributes of the user's own module, data module and callbacks that training changes: lists, numbers, tensors.

`self.outputs = []`, appended to in each step and read at the epoch's end, is in no checkpoint of Lightning's. What was
not changed since the fit began is not saved, so that a script may give it another value later: a path, for one.
"""

from __future__ import annotations

import dis
import inspect
import random
from collections import Counter, OrderedDict, deque
from collections.abc import Mapping
from typing import Any

import torch

from ..run.tracked import digests
from ..state import codec
from ..state.fill import Fill
from . import framework

_PLAIN = (type(None), bool, int, float, complex, str, bytes)
_SEQUENCES = (list, tuple, set, frozenset, deque)
_MAPPINGS = (dict, OrderedDict, Counter)
_GENERATORS = ("Generator", "RandomState")  # NumPy's and torch's


class Attributes:
    """The plain attributes of one object, but for those named in `framework's`: they are the framework's own."""

    def __init__(self, target: Any, frameworks: set[str]) -> None:
        self._target, self._frameworks = target, frameworks
        self._before = {name: _digest(value) for name, value in self._plain().items()}

    def changed(self) -> dict[str, Any]:
        """Return those that are not as they were when the fit began."""
        return {name: value for name, value in self._plain().items() if self._before.get(name) != _digest(value)}

    def restore(self, stored: Mapping[str, Any]) -> None:
        """Set the stored ones, in place where that is possible."""
        for name, value in stored.items():
            setattr(self._target, name, filled(vars(self._target).get(name), value))

    def _plain(self) -> dict[str, Any]:
        found = vars(self._target)
        return {name: value for name, value in found.items() if name not in self._frameworks and _is_plain(value)}


def attributes_of(trainer: Any, callbacks: Mapping[str, Any]) -> dict[str, Attributes]:
    """Return those of the module, of the data module, and of each callback whose class is the user's own."""
    package = framework.part(trainer, "core")
    found = {"module": Attributes(trainer.lightning_module, set(vars(package.LightningModule())))}
    if trainer.datamodule is not None:
        found["datamodule"] = Attributes(trainer.datamodule, set(vars(package.LightningDataModule())))
    home = framework.package_of(trainer).partition(".")[0]
    for key, callback in callbacks.items():
        theirs = [kind for kind in type(callback).__mro__ if kind.__module__.partition(".")[0] == home]
        if type(callback) not in theirs:
            found[f"callback {key}"] = Attributes(callback, {name for kind in theirs for name in _set_by(kind)})
    return found


def filled(live: Any, stored: Any) -> Any:
    """Return `stored`, in the memory of `live` where both are of one kind."""
    fill = Fill()
    put = fill.plan("", live, stored)
    fill.read()
    return put()


def _set_by(kind: type) -> set[str]:
    """Return the names of the attributes that the methods of a class set."""
    methods = map(inspect.unwrap, filter(inspect.isfunction, vars(kind).values()))
    return {each.argval for method in methods for each in dis.get_instructions(method) if each.opname == "STORE_ATTR"}


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
        return all(type(key) in (str, int) and _is_plain(each, inside) for key, each in value.items())
    if kind is torch.Tensor:
        return not value.is_sparse
    if kind.__name__ in _GENERATORS and codec.framework(kind) is not None:
        return True
    names = f"{kind.__module__}.{kind.__name__}"
    return (names == "numpy.ndarray" and value.dtype.kind in "biufc") or kind is random.Random


def _digest(value: Any) -> dict[str, str]:
    return digests({"it": value}).of
