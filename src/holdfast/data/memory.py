"""PassMemory: the attributes that an iterable changes from one pass to the next, such as a count of
its epochs.

An attribute belongs to it if a pass was seen to change it. Its value before the pass is saved with
a position inside, its last value with the end of one. So a new process begins a pass with what the
old one had.
"""

from __future__ import annotations

import copy
import random
import sys
from array import array
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from itertools import islice
from types import GeneratorType, ModuleType
from typing import Any

from ..errors import UsageError
from .digest import digest

MOST_BYTES = 1 << 26  # of an array
MOST_OBJECTS, MOST_DEPTH = 64, 4
MANY = 4096  # of a longer container only some members are compared
_ATOMS = (bool, int, float, str, bytes, type(None))
_INTS = "int64"  # key of a long list of whole numbers, packed


class PassMemory:
    """The attributes of the objects that `roots` returns.
    It is called when a pass begins, and for each position.
    """

    def __init__(self, roots: Callable[[], list[Any]]) -> None:
        self._roots = roots
        self._changing: set[str] = set()
        self._before: dict[str, Any] = {}
        self._digests: dict[str, Any] = {}
        self._alive: dict[str, Any] = {}

    def begin_pass(self) -> None:
        """Note the attributes before a pass begins."""
        self._detect_changes()
        found = self._attributes()
        self._digests = {name: _digest(getattr(*at)) for name, at in found.items()}
        self._before = {name: _copy(getattr(*at)) for name, at in found.items()}
        self._alive = self._iterators()

    def values_before_pass(self) -> dict[str, Any]:
        """Return the changing attributes as they were when the present pass began; empty if passes
        change nothing.
        """
        self._detect_changes()
        return {
            name: _pack_numbers(self._before[name])
            for name in sorted(self._changing & self._before.keys())
        }

    def current_values(self) -> dict[str, Any]:
        """Return the changing attributes as they are now."""
        self._detect_changes()
        found = self._attributes()
        return {
            name: _pack_numbers(_copy(getattr(*found[name])))
            for name in sorted(self._changing & found.keys())
        }

    def restore(self, stored: Mapping[str, Any]) -> None:
        """Set the attributes that values_before_pass() or current_values() returned; containers and
        arrays are filled in place.
        """
        found = self._attributes()
        self._changing |= stored.keys()
        for name in stored.keys() & found.keys():
            target, attribute = found[name]
            value = _unpack_numbers(copy.deepcopy(stored[name]))
            if not _fill_in_place(getattr(target, attribute), value):
                setattr(target, attribute, value)

    def continuing_iterator(self, *, over: bool) -> str:
        """Return the name of an attribute with an iterator that continues from pass to pass; empty
        if there is none.

        It existed before the pass, or it is not exhausted although the pass is `over`.
        """
        now = self._iterators()
        alive = {
            name
            for name, each in now.items()
            if self._alive.get(name) is each or (over and _is_unexhausted(each))
        }
        return min(alive, default="")

    def _detect_changes(self) -> None:
        now = (
            {name: _digest(getattr(*at)) for name, at in self._attributes().items()}
            if self._digests
            else {}
        )
        self._changing |= {
            name for name, found in self._digests.items() if name in now and now[name] != found
        }

    def _attributes(self) -> dict[str, tuple[Any, str]]:
        """Return the object and the name of each attribute that can be saved."""
        found = {}
        for path, each in self._objects().items():
            for name, value in vars(each).items():
                if _is_candidate(value):
                    found[f"{path}.{name}"] = (each, name)
        return found

    def _iterators(self) -> dict[str, Any]:
        return {
            f"{path}.{name}": value
            for path, each in self._objects().items()
            for name, value in vars(each).items()
            # torch's DataLoader begins its own anew
            if isinstance(value, Iterator) and name != "_iterator"
        }

    def _objects(self) -> dict[str, Any]:
        """Return the objects that may be walked, by their paths: the roots, and what they hold."""
        found: dict[str, Any] = {}
        seen: set[int] = set()
        new = [(str(number), root) for number, root in enumerate(self._roots())]
        for _ in range(MOST_DEPTH):
            here, new = new, []
            for path, each in here:
                if id(each) in seen or len(seen) >= MOST_OBJECTS or not _is_walked(each):
                    continue
                seen.add(id(each))
                if not isinstance(each, Iterator):
                    found[path] = each
                for name, value in vars(each).items():
                    new += _members(f"{path}.{name}", value)
        return found


def _is_unexhausted(iterator: Any) -> bool:
    """Return whether the iterator is certainly not exhausted: a generator, or torch's sampler
    iterator over one.
    """
    inner = getattr(iterator, "_sampler_iter", iterator)
    return isinstance(inner, GeneratorType) and inner.gi_frame is not None


def _members(path: str, value: Any) -> list[tuple[str, Any]]:
    """Return a value, or the members of a short container,
    by their paths: stages of a pipeline, for one.
    """
    if isinstance(value, list | tuple) and len(value) <= MOST_OBJECTS:
        return [(f"{path}[{number}]", each) for number, each in enumerate(value)]
    return [(path, value)]


def _is_walked(value: Any) -> bool:
    """Return whether a loader may take its batches, or their order, from this object. A model has
    its own state, and does not count.
    """
    has_state = hasattr(value, "state_dict") or hasattr(value, "__call__")  # noqa: B004  a class's, too
    return hasattr(value, "__dict__") and not isinstance(value, type | ModuleType) and not has_state


def _is_candidate(value: Any) -> bool:
    if isinstance(value, _ATOMS) or _is_generator(value):
        return True
    if isinstance(value, list | tuple | set | deque | dict):
        if len(value) > MANY:
            return all(isinstance(each, _ATOMS) for each in _sample_members(value))
        with suppress(UsageError):
            digest(value)
            return all(isinstance(each, (*_ATOMS, list, tuple)) for each in _sample_members(value))
        return False
    return hasattr(value, "nbytes") and hasattr(value, "dtype") and int(value.nbytes) <= MOST_BYTES


def _is_generator(value: Any) -> bool:
    numpy = sys.modules.get("numpy.random")
    kinds = (random.Random, *((numpy.Generator, numpy.RandomState) if numpy else ()))
    return isinstance(value, kinds)


def _sample_members(value: Any) -> list[Any]:
    """Return some members of a container, the same ones each time."""
    if isinstance(value, list | tuple | deque) and len(value) > MANY:
        return [value[at] for at in range(0, len(value), len(value) // 64)]
    return [*islice(value.values() if isinstance(value, dict) else value, MANY)]


def _digest(value: Any) -> Any:
    if isinstance(value, _ATOMS):
        return repr(value)  # NaN counts as equal to NaN
    if isinstance(value, random.Random):
        return hash(value.getstate())
    if isinstance(value, list | tuple | deque | dict | set):
        return len(value), digest([*_sample_members(value)])
    return digest(value)


def _copy(value: Any) -> Any:
    is_long = isinstance(value, list | deque | dict | set) and len(value) > MANY
    return copy.copy(value) if is_long else copy.deepcopy(value)


def _pack_numbers(value: Any) -> Any:
    """Return a long list of whole numbers as bytes; anything else as it is."""
    if type(value) is list and len(value) > MANY and all(type(each) is int for each in value):
        with suppress(OverflowError):
            return {_INTS: array("q", value).tobytes()}
    return value


def _unpack_numbers(value: Any) -> Any:
    if type(value) is dict and value.keys() == {_INTS}:
        return array("q", value[_INTS]).tolist()
    return value


def _fill_in_place(live: Any, value: Any) -> bool:
    """Make `live` equal to `value` in place; return whether that was possible."""
    if isinstance(live, random.Random) and isinstance(value, random.Random):
        live.setstate(value.getstate())
    elif type(live) is list and type(value) is list:
        live[:] = value
    elif isinstance(live, deque | set | dict) and type(live) is type(value):
        live.clear()
        (live.extend if isinstance(live, deque) else live.update)(value)
    elif hasattr(live, "shape") and live.shape == getattr(value, "shape", None) and live.shape:
        live[...] = value
    else:
        return False
    return True
