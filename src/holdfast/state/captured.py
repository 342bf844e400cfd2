"""Captured:
a copy of a state in which objects that save themselves are replaced by their captured state.
"""

from __future__ import annotations

import copy
import operator
import sys
from abc import ABC, abstractmethod
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from itertools import chain, groupby, islice
from typing import Any, Protocol

ATOMS = frozenset({str, int, float, bool, bytes, complex, type(None)})
MAPPINGS = (dict, OrderedDict, defaultdict, Counter)
_LEVELS = 8  # levels of tuples and lists that are searched at once
_FEW = 16  # members of a tuple or list that may all be of different kinds
_LONG = 256  # members of a sequence whose answer is kept
# in a block of `looked_once`: long sequences by their ids, and whether they are plain
_known: ContextVar[dict[int, tuple[Any, bool]] | None] = ContextVar("_known", default=None)
# containers that can be filled in place
MUTABLE = frozenset({*MAPPINGS, list, deque, set, bytearray})


def kept_factory() -> Any:
    """Placeholder for the factory of a defaultdict: a restore keeps the live one's factory."""
    raise TypeError(
        "the factory of this defaultdict is the script's own, and no part of the checkpoint"
    )


class StateAdapter(Protocol):
    """How to capture and restore objects that save themselves, wherever they are in a state."""

    def has(self, value: Any) -> bool: ...
    def capture(self, value: Any) -> Any: ...
    def differences(self, value: Any, stored: Any) -> list[str]: ...
    def restore(self, value: Any, stored: Any) -> None: ...


class AttributeSet:
    """Named attributes of an object, or named values of a dict, that are saved in place of the
    object.
    """

    def __init__(self, target: Any, names: tuple[str, ...]) -> None:
        self.target, self.names = target, names

    def values(self) -> dict[str, Any]:
        if type(self.target) is dict:
            return {name: self.target[name] for name in self.names}
        return {name: getattr(self.target, name) for name in self.names}

    def set_attribute(self, name: str, value: Any) -> None:
        """Set one attribute."""
        if type(self.target) is dict:
            self.target[name] = value
        else:
            setattr(self.target, name, value)


class CutState(AttributeSet, ABC):
    """Members of an object of which each rank holds other names, so that all ranks together hold
    the whole.
    """

    @abstractmethod
    def live_names(self) -> list[str]:
        """Return the names that this rank holds."""

    @abstractmethod
    def shared_with(self, beside: Any) -> str | None:
        """Return a name of which `beside`, a tracked object, has the state, too; None: there is
        none.
        """

    @abstractmethod
    def replicated(self) -> Iterable[tuple[str, Any]]:
        """Yield, by name, what must be equal on all ranks that hold the name."""

    @abstractmethod
    def by_name(self, captured: Mapping[str, Any]) -> dict[str, Any]:
        """Return the captured members as they are saved: by names that no two ranks use for
        different things.
        """

    @abstractmethod
    def recut(
        self, own: Any, others: Callable[[], Iterable[Any]], everywhere: frozenset[str] | None
    ) -> tuple[Any, list[str]]:
        """Return the stored states of this rank's members, from what all ranks have saved by name,
        and what does not fit.

        `own`: what this rank has saved. `everywhere`: the names that some rank holds now; None: not
        compared.
        """


def capture_objects(
    value: Any, own: StateAdapter, known: dict[int, tuple[Any, Any]] | None = None
) -> Any:
    """Return `value` with each object that saves itself replaced by its captured state; arrays and
    tensors by reference.

    A container without such an object is returned itself. So is one that contains itself: `flatten`
    refuses it. `known`: values captured before, by id, each with its capture; it keeps them alive,
    so that no id is used twice.
    """
    known = {} if known is None else known
    if type(value) in ATOMS:
        return value
    if id(value) not in known:
        known[id(value)] = value, value
        known[id(value)] = value, _capture_value(value, own, known)
    return known[id(value)][1]


def _capture_value(value: Any, own: StateAdapter, known: dict[int, tuple[Any, Any]]) -> Any:
    kind = type(value)
    if isinstance(value, AttributeSet):
        found = {name: capture_objects(each, own, known) for name, each in value.values().items()}
        return value.by_name(found) if isinstance(value, CutState) else found
    if own.has(value):
        return own.capture(value)
    is_mapping = kind in MAPPINGS
    if not is_mapping and kind not in (list, tuple, deque) and not is_named_tuple(kind):
        return value
    old = value.values() if is_mapping else value
    if is_plain(old):
        return value
    new = [capture_objects(each, own, known) for each in old]
    if all(map(operator.is_, new, old)):
        return value
    if issubclass(kind, tuple):
        return tuple.__new__(kind, new)
    twin = copy.copy(value)  # with a deque's bound and an ordered mapping's attributes
    for place, each in zip(value if is_mapping else range(len(new)), new, strict=True):
        twin[place] = each
    return twin


def is_plain(values: Any) -> bool:
    """Return whether the values hold only text, numbers, NumPy's arrays, and tuples and lists of
    these.

    Plain values need not be visited one by one. Tensors do not count as plain: a parameter among
    them is a weight.
    """
    known = _known.get()
    if known is None or type(values) not in (list, tuple, deque) or len(values) < _LONG:
        return all(map(_is_plain, _batches_of(values)))
    if id(values) not in known:
        known[id(values)] = values, all(map(_is_plain, _batches_of(values)))
    return known[id(values)][1]


@contextmanager
def looked_once() -> Iterator[None]:
    """Search each long sequence only once in this block, in which only a restore changes one.

    A save asks this of the same rows several times.
    """
    token = _known.set({})
    try:
        yield
    finally:
        _known.reset(token)


def look_anew() -> None:
    """Forget what is known in the block: a restore has changed rows."""
    if (known := _known.get()) is not None:
        known.clear()


def is_unshared(values: Iterable[Any]) -> bool:
    """Return whether the values are plain, and no other code refers to a member, to a tuple or list
    in it, or to an array's memory.

    CPython's reference counts decide. If so, it makes no difference whether members are filled in
    place or replaced.
    """
    return _COUNTS and all(_is_plain(block, loose=True) for block in _batches_of(values))


def _is_plain(level: list[Any], *, loose: bool = False) -> bool:
    kinds = set(map(type, level))
    for _ in range(_LEVELS):
        inner = kinds & {list, tuple}
        arrays = kinds - inner - ATOMS
        if not all(is_array(kind) and kind.__module__ == "numpy" for kind in arrays):
            return False
        if loose and (inner or arrays):
            held = [each for each in level if type(each) not in ATOMS]
            if max(map(sys.getrefcount, held)) > _ALONE:
                return False
            if any(each.base is not None for each in held if type(each) in arrays):  # a view
                return False
        if not inner:
            return True
        held = [each for each in level if type(each) in inner]
        members = chain.from_iterable(held)
        if len(held[-1]) < _FEW:
            kinds = set(map(type, members))
        else:  # long ones hold mostly one kind: this looks up each run of a kind once
            kinds = {kind for kind, _ in groupby(members, type)}
        level = list(chain.from_iterable(held)) if kinds - ATOMS else []
    return False


def _batches_of(values: Iterable[Any]) -> Iterator[list[Any]]:
    """Yield the members, some thousands at a time: all at once they would take much memory."""
    rest = iter(values)
    while block := list(islice(rest, 4096)):
        yield block
        block.clear()


def is_array(kind: type) -> bool:
    """Return whether `kind` is exactly NumPy's or torch's own array type."""
    return kind.__name__ in ("ndarray", "Tensor") and kind.__module__ in ("numpy", "torch")


def _unshared_refcount() -> int:
    container: list[list[Any]] = [[]]
    block, held = list(container), list(container)
    return max(map(sys.getrefcount, held)) - (len(block) - 1)


_ALONE = _unshared_refcount()  # references to a value that its container and two lists hold
_COUNTS = sys.implementation.name == "cpython" and "t" not in getattr(sys, "abiflags", "")


def fields_of(record: Any) -> dict[str, Any]:
    """Return a dataclass's fields and other attributes, as far as they are set."""
    import dataclasses

    names = dict.fromkeys(
        [*(each.name for each in dataclasses.fields(record)), *getattr(record, "__dict__", ())]
    )
    return {name: getattr(record, name) for name in names if hasattr(record, name)}


def is_dataclass(kind: type) -> bool:
    """Return whether `kind` is a dataclass. `dataclasses` is not imported for that: the import
    takes as long as all of `state`.
    """
    return hasattr(kind, "__dataclass_fields__")


def is_frozen(kind: type) -> bool:
    """Whether attributes of its objects cannot be set: a frozen dataclass, or a class whose own
    `__setattr__` says so, as of attrs, Equinox and Flax.
    """
    if is_dataclass(kind) and kind.__dataclass_params__.frozen:  # type: ignore[attr-defined]
        return True
    code = getattr(kind.__setattr__, "__code__", None)
    return code is not None and any("Frozen" in name for name in code.co_names)


def is_named_tuple(kind: type) -> bool:
    return issubclass(kind, tuple) and isinstance(getattr(kind, "_fields", None), tuple)
