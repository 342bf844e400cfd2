"""TreeOutline: which parts of a pytree are state, under which names, and how to rebuild the tree
with other leaves.

JAX's registry walks containers, dataclasses and modules. Objects that change in place (Flax NNX)
are walked here: their variables and plain attributes are state, and are set again in the objects
themselves.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from types import ModuleType
from typing import Any

import jax
import numpy as np
from jax.tree_util import GetAttrKey, keystr, tree_flatten_with_path

from ..state.captured import ATOMS
from ..trainers.known import NAMES
from ..trainers.names import require

Put = Callable[[], Any]  # sets what it stands for, and returns it

_HIDDEN = ("_pytree__", "_object__")  # NNX's own attributes of its objects


class TreeOutline:
    """The state in a value: leaves by name and plain attributes, found in one walk, and how to
    rebuild the value.
    """

    def __init__(self, value: Any) -> None:
        self.in_place = True  # whether all state lies in objects that change in place
        # of each part that JAX's registry walks, with its path
        self.treedefs: list[tuple[str, Any]] = []
        self._leaves: list[tuple[Any, Any]] = []  # path and leaf
        self._plain: list[tuple[Any, Any, str]] = []  # path, object and name of a plain attribute
        self._objects: dict[int, Any] = {}
        self._new: list[Any] = []
        self._put = self._walk_tree((), value, inside=False)
        names = _name_paths([path for path, _ in self._leaves])
        self.leaves: dict[str, Any] = dict(
            zip(names, (leaf for _, leaf in self._leaves), strict=True)
        )
        places = _name_paths([path for path, _, _ in self._plain])
        self._attributes = dict(
            zip(places, ((owner, name) for _, owner, name in self._plain), strict=True)
        )

    @property
    def attributes(self) -> dict[str, Any]:
        """Plain attributes of objects that change in place: numbers, strings, None."""
        return {place: vars(owner)[name] for place, (owner, name) in self._attributes.items()}

    def rebuild(self, leaves: Mapping[str, Any], attributes: Mapping[str, Any]) -> Any:
        """Return the value with other leaves. Objects that change in place stay the same ones."""
        self._new = [leaves[name] for name in self.leaves]
        for place, (owner, name) in self._attributes.items():
            if place in attributes:
                object.__setattr__(owner, name, attributes[place])
        return self._put()

    def _walk_tree(self, path: tuple[Any, ...], value: Any, *, inside: bool) -> Put:
        found: list[Any]
        treedef: Any
        found, treedef = tree_flatten_with_path(value, is_leaf=_changes_in_place)
        self.treedefs.append((keystr(path), treedef))
        puts = [self._walk_leaf((*path, *at), leaf, inside=inside) for at, leaf in found]
        return lambda: treedef.unflatten([put() for put in puts])

    def _walk_leaf(self, path: tuple[Any, ...], leaf: Any, *, inside: bool) -> Put:
        if _changes_in_place(leaf):
            return self._walk_object(path, leaf)
        if callable(leaf):  # an activation function of Equinox: the script makes it
            return lambda: leaf
        number = len(self._leaves)
        self._leaves.append((path, leaf))
        self.in_place = self.in_place and inside
        return lambda: self._new[number]

    def _walk_object(self, path: tuple[Any, ...], live: Any) -> Put:
        if id(live) in self._objects:  # shared: its first place counts
            return lambda: live
        self._objects[id(live)] = live
        # an nnx.Rngs returns a stream for any attribute name
        if hasattr(type(live), "set_raw_value"):
            put = self._walk_tree(path, live.get_raw_value(), inside=True)
            return lambda: _identity(live, live.set_raw_value(put()))
        puts = [
            (name, self._walk_tree((*path, GetAttrKey(name)), member, inside=True))
            for name, member in self._list_members(path, live)
        ]

        def apply() -> Any:
            for name, put in puts:
                object.__setattr__(live, name, put())
            return live

        return apply

    def _list_members(self, path: tuple[Any, ...], live: Any) -> list[tuple[str, Any]]:
        """Return the attributes to be walked; note the plain ones."""
        data = getattr(live, "_pytree__nodes", None)
        found = []
        for name, member in sorted(vars(live).items()):
            if name.startswith(_HIDDEN):
                continue
            if type(member) in ATOMS:
                self._plain.append(((*path, GetAttrKey(name)), live, name))
            elif (
                (data is not None and data.get(name))
                or _changes_in_place(member)
                or _is_array(member)
            ):
                found.append((name, member))
        return found


def structure_changes(
    before: Sequence[tuple[str, Any]], now: Sequence[tuple[str, Any]]
) -> list[str]:
    """Return where the structure differs in more than the kind of a mapping, one line each."""
    if [path for path, _ in before] != [path for path, _ in now]:
        return ["its objects"]
    return [
        line
        for (path, one), (_, other) in zip(before, now, strict=True)
        for line in _node_changes(path, one, other)
    ]


def _node_changes(path: str, one: Any, other: Any) -> list[str]:
    if one == other:
        return []
    (kind, aux), (kind_now, aux_now) = (each.node_data() or (None, None) for each in (one, other))
    children, children_now = one.children(), other.children()
    mappings = all(
        isinstance(each, type) and issubclass(each, Mapping) for each in (kind, kind_now)
    )
    name = getattr(kind, "__name__", "leaf")
    if len(children) != len(children_now) or (kind is not kind_now and not mappings):
        return [
            f"{path or 'the whole'}: a {name} before, a {getattr(kind_now, '__name__', 'leaf')} now"
        ]
    if not mappings and aux != aux_now:
        return [f"{path or 'the whole'}: static fields of a {name}"]
    pairs = zip(children, children_now, strict=True)
    return [
        line
        for number, pair in enumerate(pairs)
        for line in _node_changes(f"{path}[{number}]", *pair)
    ]


def _changes_in_place(value: Any) -> bool:
    nnx = sys.modules.get("flax.nnx")
    return nnx is not None and isinstance(value, _nnx_kinds(nnx))


@cache
def _nnx_kinds(nnx: ModuleType) -> tuple[type, ...]:
    """Return the kinds of objects of NNX that change in place.

    Raises:
        UsageError: this NNX does not have them as we know them.
    """
    require("jax", NAMES["jax"])
    return nnx.Pytree, nnx.Variable


def _is_array(value: Any) -> bool:
    return isinstance(value, jax.Array | np.ndarray)


def _name_paths(paths: Sequence[Any]) -> list[str]:
    """Return a name for each path: its steps with dots between; JAX's own spelling if two names
    were the same.
    """
    short = [keystr(path, simple=True, separator=".") or "value" for path in paths]
    return short if len({*short, "#"}) == len(short) + 1 else [keystr(path) for path in paths]


def _identity(value: Any, _: Any) -> Any:
    return value
