"""Captured: a state with a capture in the place of each object that is captured in its own way."""

from __future__ import annotations

import copy
from collections import Counter, OrderedDict, defaultdict, deque
from typing import Any, Protocol

ATOMS = frozenset({str, int, float, bool, bytes, complex, type(None)})
MAPPINGS = (dict, OrderedDict, defaultdict, Counter)
MUTABLE = frozenset({*MAPPINGS, list, deque, set, bytearray})  # containers that can be filled in place


class Own(Protocol):
    """Objects that are captured and restored in their own way, wherever they stand."""

    def has(self, value: Any) -> bool: ...
    def capture(self, value: Any) -> Any: ...
    def differences(self, value: Any, stored: Any) -> list[str]: ...
    def restore(self, value: Any, stored: Any) -> None: ...


class Attributes:
    """Named attributes of an object, which stand for it in a state."""

    def __init__(self, target: Any, names: tuple[str, ...]) -> None:
        self.target, self.names = target, names

    def values(self) -> dict[str, Any]:
        return {name: getattr(self.target, name) for name in self.names}


class _Nobody:
    """No object has a way of its own."""

    def has(self, _: Any) -> bool:
        return False

    def capture(self, value: Any) -> Any:
        return value

    def differences(self, _: Any, __: Any) -> list[str]:
        return []

    def restore(self, _: Any, __: Any) -> None: ...


NOBODY = _Nobody()


def captured(value: Any, own: Own, known: dict[int, tuple[Any, Any]] | None = None) -> Any:
    """`value` with the capture in the place of every object that has its own; arrays and tensors by reference.

    A container without such an object is returned itself. So is one inside of itself: it is refused where the state is
    taken apart. `known`: what was captured, by id: the value, which lives as long, and its capture.
    """
    known = {} if known is None else known
    if type(value) in ATOMS:
        return value
    if id(value) not in known:
        known[id(value)] = value, value
        known[id(value)] = value, _captured(value, own, known)
    return known[id(value)][1]


def _captured(value: Any, own: Own, known: dict[int, tuple[Any, Any]]) -> Any:
    kind = type(value)
    if isinstance(value, Attributes):
        return {name: captured(each, own, known) for name, each in value.values().items()}
    if own.has(value):
        return own.capture(value)
    if kind in MAPPINGS:
        return _mapping_captured(value, own, known)
    if kind in (list, tuple, deque) or is_named_tuple(kind):
        if ATOMS.issuperset(map(type, value)):
            return value
        members = [captured(each, own, known) for each in value]
        if all(new is old for new, old in zip(members, value, strict=True)):
            return value
        if kind is deque:
            return deque(members, value.maxlen)
        return members if kind is list else tuple.__new__(kind, members)
    return value


def _mapping_captured(value: Any, own: Own, known: dict[int, tuple[Any, Any]]) -> Any:
    if ATOMS.issuperset(map(type, value.values())):
        return value
    members = {key: captured(each, own, known) for key, each in value.items()}
    if all(members[key] is each for key, each in value.items()):
        return value
    twin = copy.copy(value)  # with the attributes of an ordered one
    for key, each in members.items():
        twin[key] = each
    return twin


def is_named_tuple(kind: type) -> bool:
    return issubclass(kind, tuple) and isinstance(getattr(kind, "_fields", None), tuple)
