"""RebindingTracker: finds the places of a state that hold another object than when the run began.

A restore in place writes into the object that the script has put there. When the loop has bound a
place to another object, and other names still hold the first one (`x = start`), its content must
not change: the value is set anew.
"""

from __future__ import annotations

import sys
import weakref
from collections import defaultdict, deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from typing import Any

from ..legible import key_text
from . import codec
from .captured import ATOMS, MAPPINGS, MUTABLE, AttributeSet, StateAdapter, fields_of, is_dataclass

_LONGEST = 10_000  # a container with more members is not searched
_DEEPEST = 8

# by name, each with a call that sets new memory in its place
Members = dict[str, tuple[Any, Callable[[], object]]]


class _FirstObject:
    """The object that was at a place when the run began. It is not kept alive."""

    def __init__(self, value: Any, *, shared: bool) -> None:
        name = codec.framework_of(type(value))
        try:
            self._refer: Any = weakref.ref(value)
        except TypeError:  # a list or a dict
            self._refer = None
        self._identity = id(value)
        self._is_shared = shared  # other holders of a list or a dict are assumed to remain
        self._memory = None if name is None else codec.import_adapter(name).memory_watcher(value)

    def is_same(self, value: Any) -> bool:
        return id(value) == self._identity if self._refer is None else self._refer() is value

    def is_still_held(self) -> bool:
        """Return whether the object, or its memory, is referenced elsewhere after its place was
        bound to another object.
        """
        if self._refer is None:
            return self._is_shared
        return self._refer() is not None if self._memory is None else bool(self._memory())


class RebindingTracker:
    """The places of one attempt's state that were bound to other objects. `roots`: the state's
    values by name, which are filled and never set.

    `given`: values that one more mapping of ours holds, by their places.
    """

    def __init__(
        self,
        own: StateAdapter,
        members: Callable[[Any], Members],
        roots: Callable[[], Mapping[str, Any]],
        given: Mapping[str, Any],
    ) -> None:
        self._own, self._members_of, self._roots = own, members, roots
        self.bound_anew: frozenset[str] = frozenset()  # in the checkpoint that is restored
        self._first: dict[str, _FirstObject] = {}
        defaults, present = set(self._class_attributes()), list(self._fillable_members())
        for (path, value), count in zip(present, _reference_counts(present), strict=True):
            # the caller's mapping, and `given`
            ours = 1 - (path in defaults) + (2 if given.get(path) is value else 0)
            self._first[path] = _FirstObject(value, shared=count > _ALONE + ours)

        self._factories = [path for path, value in present if type(value) is defaultdict]
        steps = (path.split("/") for path in self._first)
        self._around = {"/".join(each[:count]) for each in steps for count in range(1, len(each))}

    def expect_rebound(self, bound_anew: Iterable[str]) -> None:
        """Note which places held another object in the checkpoint that is restored."""
        self.bound_anew = frozenset(bound_anew)

    def rebound_places(self) -> list[str]:
        """Return the places that hold another object than at the beginning, while the first one is
        still referenced elsewhere.
        """
        if not self._first:
            return []
        here = {
            path: value
            for path, value in self._fillable_members(self._around)
            if path in self._first
        }
        left = [path for path, value in here.items() if not self._first[path].is_same(value)]
        here.clear()
        return sorted(path for path in left if self._first[path].is_still_held())

    def is_rebound(self, path: str, live: Any) -> bool:
        """Return whether the restore sets this place anew. An object that a restore has set there
        is filled the next time.
        """
        return path in self.bound_anew and (
            path not in self._first or self._first[path].is_same(live)
        )

    def initial_defaultdicts(self) -> list[defaultdict[Any, Any]]:
        """Return the defaultdicts at places that began with one, innermost first: there a resume
        finds the factory.
        """
        names = {name for name, root in self._roots().items() if type(root) is defaultdict}
        found = [root for name, root in self._roots().items() if name in names]
        if self._factories:
            found += [
                value
                for path, value in self._fillable_members(self._around)
                if path in self._factories
            ]
        return [value for value in reversed(found) if type(value) is defaultdict]

    def separate_members(self, path: str, live: Any) -> None:
        """Give new memory to the members of an object that saves itself, where they are
        set anew.
        """
        for name, (member, part) in self._members_of(live).items() if self.bound_anew else ():
            if self.is_rebound(f"{path}/{name}", member):
                part()

    def _class_attributes(self) -> Iterator[str]:
        """Yield the attributes that the class holds, and not the object."""
        for path, root in self._roots().items():
            if isinstance(root, AttributeSet) and type(root.target) is not dict:
                here = getattr(root.target, "__dict__", {})
                yield from (f"{path}/{name}" for name in root.names if name not in here)

    def _fillable_members(self, around: Collection[str] | None = None) -> Iterator[tuple[str, Any]]:
        """Yield the members that can be filled, by their places;
        only in the containers `around`, if given.
        """
        for name, root in self._roots().items():
            yield from self._walk_members(name, root, _DEEPEST, around)

    def _walk_members(
        self, path: str, value: Any, depth: int, around: Collection[str] | None
    ) -> Iterator[tuple[str, Any]]:
        if not depth or (path and around is not None and path not in around):
            return
        for key, member in self._members(value):
            kind = type(member)
            if kind in ATOMS:
                continue
            place = f"{path}/{key_text(key)}" if path else str(key)
            leaf = _is_fillable_leaf(member)
            fillable = (leaf or _is_fillable_container(kind)) and not self._own.has(member)
            if fillable:
                yield place, member
            if not (leaf and fillable):
                yield from self._walk_members(place, member, depth - 1, around)

    def _members(self, value: Any) -> Iterable[tuple[Any, Any]]:
        kind = type(value)
        if isinstance(value, AttributeSet):
            return value.values().items()
        if kind in MAPPINGS or kind in (list, deque, tuple):
            if len(value) > _LONGEST:
                return ()
            return list(value.items() if kind in MAPPINGS else enumerate(value))
        if self._own.has(value):
            return ((name, member) for name, (member, _) in self._members_of(value).items())
        return fields_of(value).items() if is_dataclass(kind) else ()


def _is_fillable_container(kind: Any) -> bool:
    return kind in MUTABLE or (is_dataclass(kind) and not kind.__dataclass_params__.frozen)


def _is_fillable_leaf(value: Any) -> bool:
    """Return whether it is a tensor or an array that a restore can write into."""
    name = codec.framework_of(type(value))
    return (
        name is not None
        and codec.is_leaf(value)
        and not codec.import_adapter(name).why_not_in_place(value)
    )


def _reference_counts(pairs: list[tuple[str, Any]]) -> list[int]:
    return [sys.getrefcount(value) for _, value in pairs]


_ALONE = _reference_counts([("", [])])[0]  # references to a value that only such a list holds
