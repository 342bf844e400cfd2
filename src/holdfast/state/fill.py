"""Restores stored values into live ones, in place wherever type and position are the same.

There is one plan for the whole state. A live value of the same type (arrays and tensors: also dtype
and shape) at the same place is filled; any other is replaced in its container. One live object in
two places stays one if the stored contents agree. A stored leaf that stood in two places becomes
one object again.

`InPlaceRestore.plan` changes nothing. It notes in `misfits` what does not fit, and returns a call
that puts the value in its place. Between the two, `InPlaceRestore.read_leaves` reads the bytes of
all leaves.
"""

from __future__ import annotations

import random
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from ..errors import Mismatch
from ..legible import key_text
from ..pages import is_equal
from . import codec, tables
from .captured import (
    ATOMS,
    MAPPINGS,
    MUTABLE,
    AttributeSet,
    StateAdapter,
    fields_of,
    is_dataclass,
    is_named_tuple,
    is_unshared,
    kept_factory,
)
from .rebinding import RebindingTracker
from .rows import PackedRows

Act = Callable[[], Any]  # stores the value in its place and returns it

NOTHING: Any = object()  # stands for a missing live value


class InPlaceRestore:
    """Restores any number of live values from one checkpoint, once."""

    def __init__(
        self,
        own: StateAdapter | None = None,
        places: RebindingTracker | None = None,
        *,
        compare: bool = False,
    ) -> None:
        self.misfits: list[str] = []
        self._own: Any = own  # None: no object restores itself
        self._places = places  # knows which members are replaced although they could be filled
        self._compare = compare  # whether objects that restore themselves report their differences
        # id of a live object -> the object, and its new content
        self._filled: dict[int, tuple[Any, Any]] = {}
        # identity of a stored leaf -> the live leaf that receives it
        self._homes: dict[Any, Any] = {}
        self._pairs: dict[str, list[tuple[Any, Any]]] = {}  # live leaf and stored one, by framework
        self._packed: list[Callable[[], None]] = []  # make the rows of sequences
        self._fresh: dict[str, Any] = {}  # stored leaves that become new objects
        self._made: dict[str, Any] = {}

    def plan_top(self, path: str, live: Any, stored: Any) -> Act:
        """Return the plan for a value that cannot be replaced:
        it is filled in place, or does not fit.
        """
        if self._is_adapted(live):
            return self.plan(path, live, stored)
        if type(stored) is PackedRows and not self._can_keep_packed(path, live, stored):
            stored = stored.unpack()
        self.misfits += _top_differences(path, live, stored)
        self._require_single_content(path, live, stored)
        if type(stored) is PackedRows:
            return self._plan_rows(path, live, stored)
        put = self.plan(path, live, stored)
        # the checkpoint had one object here, and the live state has two
        if id(live) not in self._filled:
            self._plan_leaf_fill(live, stored)
        return put

    def plan(self, path: str, live: Any, stored: Any) -> Act:
        """Return the plan that restores `stored` in the place of `live`."""
        if type(stored) in ATOMS and not self._has_adapted_members(live):
            return lambda: stored
        if type(stored) is PackedRows:
            if not self._can_keep_packed(path, live, stored):
                return self.plan(path, live, stored.unpack())
            return self._plan_rows(path, live, stored)
        if live is not stored:
            if self._has_adapted_members(live):
                return self._plan_object(path, live, stored)
            if isinstance(live, AttributeSet):
                return self._plan_attributes(path, live, stored)
            if self._is_rebound(path, live):
                _set_factory(live, stored)
                live = NOTHING
            if codec.is_stored_leaf(stored) or codec.is_leaf(stored):
                return self._plan_leaf(live, stored)
            if self._is_filled_differently(live, stored):
                _set_factory(live, stored)
                live = stored
        return self._plan_container(path, live if type(live) is type(stored) else stored, stored)

    def is_filled(self, live: Any) -> bool:
        """Return whether a plan fills this live object in place."""
        return id(live) in self._filled

    def read_leaves(self) -> None:
        """Read the bytes of all planned leaves, into live memory or into new objects.

        Raises:
            Damaged: a leaf's bytes do not have their digest; live values may hold a part of the
                state.
            Mismatch: live leaves share memory, and held different numbers when they were saved.
        """
        for name, wanted in self._pairs.items():
            codec.import_adapter(name).fill_in_place(wanted)
        self._require_unaliased()
        wanted_keys = [key for key in self._fresh if key not in self._homes]
        made = codec.decode_leaves([self._fresh[key] for key in wanted_keys])
        self._made |= dict(zip(wanted_keys, made, strict=True))
        for make in self._packed:
            make()

    def _require_unaliased(self) -> None:
        """Check that live leaves which share memory still hold their own content."""
        placed = [
            (*codec.import_adapter(name).memory_span(live), live, stored)
            for name, wanted in self._pairs.items()
            for live, stored in wanted
        ]
        reached, last = 0, (None, None)
        for start, stop, live, stored in sorted(placed, key=lambda each: each[:2]):
            if start < reached:
                _require_same(*last)
                _require_same(live, stored)
            if stop > reached:
                reached, last = stop, (live, stored)

    def _plan_object(self, path: str, live: Any, stored: Any) -> Act:
        if id(live) in self._filled:
            self._require_single_content(path, live, stored)
            return lambda: live
        self._filled[id(live)] = live, stored
        if self._compare:
            self.misfits += [f"{path}/{line}" for line in self._own.differences(live, stored)]

        def apply() -> Any:
            if self._places is not None:
                self._places.separate_members(path, live)
            self._own.restore(live, stored)
            return live

        return apply

    def _is_rebound(self, path: str, live: Any) -> bool:
        return self._places is not None and self._places.is_rebound(path, live)

    def _can_keep_packed(self, path: str, live: Any, stored: PackedRows) -> bool:
        """Return whether no member of a live sequence is filled in place: then packed rows need not
        be unpacked yet.
        """
        if type(live) is not stored.kind or self._is_rebound(path, live):
            return (
                not self._has_adapted_members(live)
                and not isinstance(live, AttributeSet)
                and not self._has_fillable_members(live)
            )
        here: Any = live
        return id(live) not in self._filled and (not here or is_unshared(here))

    def _has_fillable_members(self, live: Any) -> bool:
        return isinstance(live, list | tuple | dict | deque) and len(live) > 0

    def _plan_rows(self, path: str, live: Any, stored: PackedRows) -> Act:
        most = getattr(live, "maxlen", None)
        if most is not None and stored.count > most:
            self.misfits.append(
                f"{path}: {stored.count} items in the checkpoint, a deque with maxlen={most} here"
            )
        fills = (
            type(live) is stored.kind
            and stored.kind is not tuple
            and not self._is_rebound(path, live)
        )
        if fills:
            self._filled[id(live)] = live, stored
        made: list[Any] = []
        self._packed.append(lambda: made.append(stored.rows() if fills else stored.unpack()))

        def apply() -> Any:
            if not fills:
                return made[0]
            live.clear()
            live.extend(made[0])
            return live

        return apply

    def _is_filled_differently(self, live: Any, stored: Any) -> bool:
        """Return whether the live value also appears elsewhere, and is filled with different
        content there.
        """
        return id(live) in self._filled and not has_same_content(self._filled[id(live)][1], stored)

    def _require_single_content(self, path: str, live: Any, stored: Any) -> None:
        if self._is_filled_differently(live, stored):
            self.misfits.append(f"{path}: one object with another here, two in the checkpoint")

    def _plan_attributes(self, path: str, live: AttributeSet, stored: Any) -> Act:
        here, there = live.values(), stored if type(stored) is dict else {}
        self.misfits += [
            f"{path}/{name}: not in the checkpoint" for name in here if name not in there
        ]
        self.misfits += [
            f"{path}/{name}: in the checkpoint, but not named here"
            for name in there
            if name not in here
        ]
        acts = {
            name: self.plan(f"{path}/{name}", here[name], there[name])
            for name in here
            if name in there
        }

        def apply() -> Any:
            for name, put in acts.items():
                value = put()
                if value is not here[name]:
                    live.set_attribute(name, value)
            return live

        return apply

    def _plan_leaf(self, live: Any, stored: Any) -> Act:
        """Return the plan for a leaf: fill the live one, or replace it by a new one."""
        key = _leaf_identity(stored)
        if key not in self._homes and id(live) not in self._filled:
            self._plan_leaf_fill(live, stored)
        if codec.is_stored_leaf(stored):
            self._fresh[key] = stored
            return lambda: self._homes[key] if key in self._homes else self._made[key]
        return lambda: self._homes.get(key, stored)

    def _plan_leaf_fill(self, live: Any, stored: Any) -> None:
        """Plan to fill the live leaf in place, if it fits."""
        name = codec.framework_of(type(live))
        module = None if name is None else codec.import_adapter(name)
        if (
            module is not None
            and not module.why_not_in_place(live)
            and not module.list_differences(live, stored)
        ):
            self._homes.setdefault(_leaf_identity(stored), live)
            self._filled[id(live)] = live, stored
            self._pairs.setdefault(str(name), []).append((live, stored))

    def _plan_container(self, path: str, live: Any, stored: Any) -> Act:
        kind = type(stored)
        if codec.is_stored_leaf(stored):
            return self._plan_leaf(NOTHING, stored)
        planner = _PLANNERS.get(kind) or _find_planner(kind, live, stored)
        if planner is None:
            return lambda: stored
        if kind in MUTABLE:
            if id(live) in self._filled:
                return lambda: live
            self._filled[id(live)] = live, stored
        return planner(self, path, live, stored)

    def plan_members(
        self, path: str, live: Mapping[Any, Any], stored: Mapping[Any, Any]
    ) -> dict[Any, Act]:
        """Return a plan for each stored member.
        Objects that restore themselves are neither added nor removed.
        """
        own = [
            key
            for key, member in live.items()
            if type(member) not in ATOMS and self._is_adapted(member)
        ]
        if own:
            self.misfits += [
                f"{_member_path(path, key)}: not in the checkpoint"
                for key in own
                if key not in stored
            ]
            come = [
                f"{_member_path(path, key)}: in the checkpoint, but not tracked here"
                for key in stored
                if key not in live
            ]
            self.misfits += come
        return {
            key: self.plan(_member_path(path, key), live.get(key, NOTHING), member)
            for key, member in stored.items()
        }

    def plan_items(
        self, path: str, live: Iterable[Any], stored: Iterable[Any]
    ) -> Callable[[], list[Any]]:
        """Return a call that gives the restored members of a sequence."""
        if ATOMS.issuperset(map(type, stored)) and (
            live is stored or ATOMS.issuperset(map(type, live))
        ):
            return lambda: list(stored)
        acts = self.plan_members(path, dict(enumerate(live)), dict(enumerate(stored)))
        return lambda: [put() for put in acts.values()]

    def _has_adapted_members(self, live: Any) -> bool:
        return self._own is not None and self._own.has(live)

    def _is_adapted(self, member: Any) -> bool:
        return isinstance(member, AttributeSet) or self._has_adapted_members(member)


def _member_path(path: str, key: Any) -> str:
    return f"{path}/{key_text(key)}"


def _plan_list(fill: InPlaceRestore, path: str, live: Any, stored: Any) -> Act:
    """Plan a list, or a deque, which keeps its bound."""
    most = getattr(live, "maxlen", None)
    if most is not None and len(stored) > most:
        fill.misfits.append(
            f"{path}: {len(stored)} items in the checkpoint, a deque with maxlen={most} here"
        )
    values = fill.plan_items(path, live, stored)

    def apply() -> Any:
        found = values()
        live.clear()
        live.extend(found)
        return live

    return apply


def _plan_mapping(
    fill: InPlaceRestore, path: str, live: dict[Any, Any], stored: dict[Any, Any]
) -> Act:
    if live is stored and getattr(stored, "default_factory", None) is kept_factory:
        fill.misfits.append(
            f"{path}: a defaultdict in the checkpoint without its factory, and none here"
        )
    acts = fill.plan_members(path, live, stored)
    attributes = fill.plan_members(f"{path}/", {}, dict(getattr(stored, "__dict__", {})))

    def apply() -> Any:
        found = {key: put() for key, put in acts.items()}
        live.clear()
        # Counter's own would add
        update = dict.update if type(live) is Counter else type(live).update
        update(live, found)
        if type(live) is OrderedDict:
            named = {name: put() for name, put in attributes.items()}
            live.__dict__.clear()
            live.__dict__.update(named)
        return live

    return apply


def _set_factory(live: Any, stored: Any) -> None:
    """Give a restored defaultdict the factory of the live one that it replaces."""
    if type(live) is type(stored) is defaultdict:
        stored.default_factory = live.default_factory


def _plan_set(_: InPlaceRestore, __: str, live: Any, stored: Any) -> Act:
    """Plan a set or a bytearray, whose members are not filled in place."""

    def apply() -> Any:
        if type(live) is bytearray:
            live[:] = stored
        elif live is not stored:
            tables.refill_set(live, stored)
        return live

    return apply


def _plan_tuple(
    fill: InPlaceRestore, path: str, live: tuple[Any, ...], stored: tuple[Any, ...]
) -> Act:
    values = fill.plan_items(path, live, stored)

    def apply() -> Any:
        found = values()
        if len(found) == len(live) and all(
            new is old for new, old in zip(found, live, strict=True)
        ):
            return live
        return tuple.__new__(type(stored), found)

    return apply


def _plan_record(fill: InPlaceRestore, path: str, live: Any, stored: Any) -> Act:
    acts = fill.plan_members(path, fields_of(live), fields_of(stored))

    def apply() -> Any:
        for name, put in acts.items():
            # as when one is restored: no method of the class is called
            object.__setattr__(live, name, put())
        return live

    return apply


def _plan_generator(_: InPlaceRestore, __: str, live: Any, stored: Any) -> Act:
    def apply() -> Any:
        if live is stored:
            return stored
        if type(live) is random.Random:
            live.setstate(stored.getstate())
            return live
        return (
            live
            if codec.import_adapter(str(codec.framework_of(type(live)))).refill_generator(
                live, stored
            )
            else stored
        )

    return apply


_Planner = Callable[[InPlaceRestore, str, Any, Any], Act]

_PLANNERS: dict[type, _Planner] = {
    **dict.fromkeys(MAPPINGS, _plan_mapping),
    list: _plan_list,
    deque: _plan_list,
    tuple: _plan_tuple,
    set: _plan_set,
    bytearray: _plan_set,
    random.Random: _plan_generator,
}


def _find_planner(kind: type, live: Any, stored: Any) -> _Planner | None:
    if is_named_tuple(kind):
        return _plan_tuple
    if is_dataclass(kind):
        frozen = kind.__dataclass_params__.frozen  # type: ignore[attr-defined]
        return (
            _plan_record
            if live is stored or not frozen
            else lambda fill, path, _, new: _plan_record(fill, path, new, new)
        )
    return _plan_generator if codec.framework_of(kind) is not None else None


def _top_differences(path: str, live: Any, stored: Any) -> Iterator[str]:
    """Yield why a container or leaf that cannot be replaced cannot receive the stored value."""
    name = codec.framework_of(type(live))
    if name is not None and (codec.is_stored_leaf(stored) or codec.is_leaf(stored)):
        yield from (
            f"{path}: {line}" for line in codec.import_adapter(name).list_differences(live, stored)
        )
    elif type(live) is not _stored_type(stored):
        there = (
            f"a {stored.kind} leaf"
            if codec.is_stored_leaf(stored)
            else f"a {_stored_type(stored).__name__}"
        )
        yield f"{path}: {there} in the checkpoint, a {type(live).__name__} here"


def _stored_type(stored: Any) -> type:
    return stored.kind if type(stored) is PackedRows else type(stored)


def _require_same(live: Any, stored: Any) -> None:
    wanted = codec.decode_leaf(stored) if codec.is_stored_leaf(stored) else stored
    if not is_equal(codec.encode_leaf(live).data, codec.encode_leaf(wanted).data):
        where = (
            repr(stored.key) if codec.is_stored_leaf(stored) else f"of shape {tuple(stored.shape)}"
        )
        raise Mismatch(
            f"the leaf {where} shares memory with another one here, "
            "and did not when it was saved: copy it, or make it "
            "as it was made then"
        )


def _leaf_identity(stored: Any) -> Any:
    """Return what identifies a stored leaf, read or not."""
    return stored.key if codec.is_stored_leaf(stored) else id(stored)


def has_same_content(one: Any, other: Any) -> bool:
    """Return whether two stored values have the same content: leaves are compared by their keys,
    small values by ==.
    """
    if one is other:
        return True
    if type(one) is not type(other):
        return False
    if codec.is_stored_leaf(one):
        return bool(one.key == other.key)
    if isinstance(one, dict):
        return list(one) == list(other) and all(map(has_same_content, one.values(), other.values()))
    if isinstance(one, list | tuple | deque):
        return len(one) == len(other) and all(map(has_same_content, one, other))
    if codec.is_leaf(one):
        return False
    return bool(one == other) or repr(one) == repr(other)  # NaN does not equal itself


def read_whole(stored: Any) -> Any:
    """Return `stored` with each unread leaf replaced, in place, by a new object."""
    return restore_value(NOTHING, stored)


def restore_value(live: Any, stored: Any) -> Any:
    """Restore `stored` into the memory of `live` where both are of one kind; return the restored
    value.
    """
    fill = InPlaceRestore()
    put = fill.plan("", live, stored)
    fill.read_leaves()
    return put()
