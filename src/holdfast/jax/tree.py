"""Tree: a pytree in the state of a run.
The values are immutable; the holder is what a run restores.
"""

from __future__ import annotations

import weakref
from collections.abc import Mapping, Sequence
from typing import Any, Generic, TypeVar

import jax
import numpy as np

from ..errors import UsageError
from ..state import codec
from ..state.fill import read_whole
from . import leaves, shardings
from .outline import TreeOutline, structure_changes

T = TypeVar("T")

FACTS = "#"  # the member of a captured tree that is no leaf
GROUP_BYTES = 64 << 20  # so much is read into host memory at a time
_NO_PLACES: dict[str, Any] = {"distinct": [], "of": {}}


class Tree(Generic[T]):
    """Holds any pytree as state of a run, which restores it with the caller's own types.

        tree = Tree(train_state)
        with Run("runs/x", dict(state=tree)) as run:
            for batch in run.batches(loader):
                tree.value = train_step(tree.value, batch)

    Read `tree.value` inside the run, and assign what each step returns. Objects of Flax NNX change
    in place: they are restored in place, too, and the loop goes on with its own names for them.

    Saved are arrays, typed keys, numbers and strings. Functions and static fields stay as the
    script makes them. Arrays are copied at the safe point and may be donated afterwards. An
    unchanged script gets each array back with the sharding of the save; where the script has chosen
    another sharding since, that one.

    Raises:
        UsageError: later, where a leaf cannot be saved, where the structure has changed since the
            run was entered, or where `value` is assigned and was not read since it was restored.
    """

    def __init__(self, value: T) -> None:
        if isinstance(value, Tree):
            raise UsageError("Tree(tree): give the value itself")
        self._value = value
        self._first: _InitialValue | None = None  # set when a run is entered
        self._is_read = False  # since the run was entered or has restored the value
        self._restored: Any = None

    @property
    def value(self) -> T:
        """The pytree. Assign what a step returns."""
        self._is_read = True
        return self._value

    @value.setter
    def value(self, value: T) -> None:
        if self._first is not None and not self._is_read and not self._first.in_place:
            raise UsageError(
                "tree.value is assigned, and was not read since "
                "the run was entered. The run may have restored it: "
                "begin with what it holds, as in `state = tree.value` inside the run"
            )
        self._value = value

    def __repr__(self) -> str:
        return f"Tree({type(self._value).__qualname__})"

    def capture(self) -> dict[str, Any]:
        """Return the leaves by name, by reference. For the run.

        Raises:
            UsageError: the structure has changed, or an array was donated.
        """
        outline, first = self._outline()
        _require_same(first, outline)
        now, attributes = shardings.sharding_table(outline.leaves), outline.attributes
        facts: dict[str, Any] = {}
        if now != _NO_PLACES or first.places != _NO_PLACES:
            facts["places"] = {"first": first.places, "now": now}
        if attributes:
            facts["attributes"] = attributes
        return {**outline.leaves, FACTS: facts}

    def differences(self, stored: Any) -> list[str]:
        """Return how a captured tree, read or not,
        differs from the value; nothing is changed. For the run.
        """
        if not isinstance(stored, dict) or FACTS not in stored:
            return ["no Tree in the checkpoint, one here"]
        outline = self._outline()[0]
        live = outline.leaves
        lines = [f"{name}: not in the checkpoint" for name in live if name not in stored]
        lines += [
            f"{name}: in the checkpoint, not here"
            for name in stored
            if name not in live and name != FACTS
        ]
        attributes = stored[FACTS].get("attributes", {})
        lines += [
            f"{name}: in the checkpoint, not here"
            for name in attributes
            if name not in outline.attributes
        ]
        both = [name for name in live if name in stored]
        return lines + [
            f"{name}: {line}"
            for name in both
            if (line := leaf_difference(live[name], stored[name]))
        ]

    def restore(self, stored: Mapping[str, Any]) -> None:
        """Take the leaves of a captured tree, which fits. For the run.

        Raises:
            Damaged: a leaf's bytes do not have their digest; nothing was changed.
        """
        outline, first = self._outline()
        facts = stored[FACTS]
        found = read_leaves(
            outline.leaves,
            stored,
            first.places,
            facts.get("places", {"first": _NO_PLACES, "now": _NO_PLACES}),
        )
        if self._value is not self._restored:
            self._is_read = False
        self._value = self._restored = outline.rebuild(found, facts.get("attributes", {}))
        first.refer(found)

    def set_leaves(self, stored: Mapping[str, Any]) -> None:
        """Take some leaves, read or not; the others stay. For the run."""
        outline, first = self._outline()
        live = {name: outline.leaves[name] for name in stored}
        found = read_leaves(
            live, stored, first.places, {"first": first.places, "now": first.places}
        )
        self._value = outline.rebuild({**outline.leaves, **found}, {})
        self._is_read = False
        first.refer(self.leaves())

    def leaves(self) -> dict[str, Any]:
        """Return the leaves by name. For the run."""
        return self._outline()[0].leaves

    def why_unused(self) -> str:
        """Return why the loop seems not to use the tree; empty if it does. For the run."""
        if self._first is None or not self._first.holds(TreeOutline(self._value).leaves):
            return ""
        said = "is still what it was when the run was entered"
        if not (self._is_read or self._first.in_place):
            return (
                f"tree.value {said}, and was not read: "
                "begin with `state = tree.value`, and assign what steps return"
            )
        return (
            f"tree.value {said}: assign what a step returns "
            "(tree.value = state). What never changes is no state"
        )

    def _outline(self) -> tuple[TreeOutline, _InitialValue]:
        outline = TreeOutline(self._value)
        if self._first is None:
            self._first, self._is_read = _InitialValue(outline), False
        return outline, self._first


class _InitialValue:
    """Facts of a tree when its run was entered. It keeps no array alive."""

    def __init__(self, outline: TreeOutline) -> None:
        self.names, self.treedefs, self.in_place = (
            list(outline.leaves),
            outline.treedefs,
            outline.in_place,
        )
        self.attributes = list(outline.attributes)
        self.places = shardings.sharding_table(outline.leaves)
        self._references: dict[str, Any] = {}
        self.refer(outline.leaves)

    def refer(self, found: Mapping[str, Any]) -> None:
        """Record these arrays as the first ones, by weak references."""
        self._references = {
            name: weakref.ref(leaf) for name, leaf in found.items() if is_array(leaf)
        }

    def holds(self, found: Mapping[str, Any]) -> bool:
        """Whether all arrays are still the first ones. NumPy's may have changed in place."""
        arrays = {name: leaf for name, leaf in found.items() if isinstance(leaf, jax.Array)}
        return bool(arrays) and all(
            name in self._references and self._references[name]() is leaf
            for name, leaf in arrays.items()
        )


def is_array(value: Any) -> bool:
    return isinstance(value, jax.Array | np.ndarray)


def leaf_difference(live: Any, stored: Any) -> str:
    """Return why a stored leaf, read or not, cannot replace a live one; empty if it can."""
    if not is_array(live):
        return ""
    if not (is_array(stored) or codec.is_stored_leaf(stored)):
        return f"a {type(stored).__name__} in the checkpoint, an array here" if live.ndim else ""
    if tuple(stored.shape) != tuple(live.shape):
        return f"shape {tuple(stored.shape)} in the checkpoint, {tuple(live.shape)} here"
    both = isinstance(live, jax.Array) and (
        is_array(stored) or getattr(stored, "kind", "") == "jax"
    )
    if both and str(stored.dtype) != str(live.dtype):
        return f"dtype {stored.dtype} in the checkpoint, {live.dtype} here"
    return ""


def read_leaves(
    live: Mapping[str, Any],
    stored: Mapping[str, Any],
    first: Mapping[str, Any],
    then: Mapping[str, Any],
) -> dict[str, Any]:
    """Return the stored leaves with the names of `live`, as arrays laid out where they belong."""
    found: dict[str, Any] = {}
    shared: dict[str, Any] = {}  # a leaf that stood in two places becomes one array again
    for group in _split_into_groups({name: stored[name] for name in live}):
        unread = {
            each.key: each
            for each in group.values()
            if codec.is_stored_leaf(each) and each.key not in shared
        }
        of_jax = {
            key: leaves.empty_array(each) for key, each in unread.items() if each.kind == "jax"
        }
        codec.read_into_memory(
            [(unread[key], leaves.memory(host)) for key, host in of_jax.items() if host.nbytes]
        )
        for name, each in group.items():
            if not codec.is_stored_leaf(each):
                found[name] = _place_on_devices(
                    read_whole(each),
                    live[name],
                    shardings.choose_sharding(name, live[name], first, then),
                )
                continue
            if each.key not in shared:
                sharding = shardings.choose_sharding(name, live[name], first, then)
                host = of_jax.pop(each.key, None)
                shared[each.key] = (
                    codec.decode_leaf(each)
                    if host is None
                    else leaves.array_of(host, each, sharding)
                )
            found[name] = shared[each.key]
    return found


def _place_on_devices(value: Any, live: Any, sharding: Any) -> Any:
    """Return a typed key, or an array of another library, with its sharding; any other value
    unchanged.
    """
    if isinstance(value, jax.Array):
        return value if sharding is None else jax.device_put(value, sharding)
    if not isinstance(value, np.ndarray):
        return value
    if isinstance(live, jax.Array):
        return jax.device_put(value, sharding, may_alias=False)
    # Orbax has arrays alone
    return type(live)(value.item()) if type(live) in (bool, int, float) else value


def _split_into_groups(wanted: Mapping[str, Any]) -> Sequence[dict[str, Any]]:
    """Divide leaves into groups of at most `GROUP_BYTES`, or of one leaf."""
    groups: list[dict[str, Any]] = [{}]
    room = GROUP_BYTES
    for name, each in wanted.items():
        size = each.size_bytes if codec.is_stored_leaf(each) else 0
        if size > room and groups[-1]:
            groups.append({})
            room = GROUP_BYTES
        groups[-1][name] = each
        room -= size
    return groups


def _require_same(first: _InitialValue, outline: TreeOutline) -> None:
    """Require the structure that the value had when the run began.

    Raises:
        UsageError: the structure has changed, so that a resume could not build the value again; or
            a leaf is gone.
    """
    lines = []
    for before, now in ((first.names, outline.leaves), (first.attributes, outline.attributes)):
        lines += [f"{name} has come" for name in now if name not in before]
        lines += [f"{name} is gone" for name in before if name not in now]
    lines = lines or structure_changes(first.treedefs, outline.treedefs)
    if lines:
        more = f" and {len(lines) - 3} more" if len(lines) > 3 else ""
        raise UsageError(
            "the structure of tree.value has changed since the "
            f"run was entered: {'; '.join(lines[:3])}{more}. "
            "A resume would begin with that of then: "
            "give the tree all its parts before the run, and keep in run.vars "
            "what comes later"
        )
    for name, leaf in outline.leaves.items():
        if isinstance(leaf, jax.Array) and leaf.is_deleted():
            raise UsageError(
                f"{name} of tree.value was donated to a compiled function: "
                "assign what that returned, as in "
                "`tree.value = train_step(tree.value, batch)`"
            )
