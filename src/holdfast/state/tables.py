"""Tables: the order of a set of numbers, which its hash table keeps, and a set with the same table.

Iteration over a set, and `pop()`, follow the order of its table. That order depends on what was
added and removed before. The hashes of numbers, and of tuples of numbers, are the same in each
process. So a program that takes elements from such a set is repeatable, and a resume must restore
the table.

The table is read where CPython has it (Objects/setobject.c: PySetObject), and built by ordinary
calls: `rebuilt` puts stand-ins where something was removed, and removes them. The result is read
and compared. Where that is not possible (another interpreter), a set has the order of a new one.
"""

from __future__ import annotations

import ctypes
import math
import sys
from collections.abc import Iterable
from contextlib import suppress
from itertools import repeat
from typing import Any, NamedTuple

_HEAD = object.__basicsize__
_WORD = ctypes.sizeof(ctypes.c_ssize_t)
_LINEAR_PROBES, _PERTURB_SHIFT, _LEAST = 9, 5, 8  # of setobject.c
_WORDS = 2**64 - 1
_FARTHEST = 64  # the most times that a table is enlarged to set the place where pop() looks first

EMPTY, FULL, REMOVED = 0, 1, 2


class HashTable(NamedTuple):
    """The content of every slot of a set's hash table, and the slot where `pop()` looks first."""

    slots: bytes
    finger: int


def table_of(members: set[Any]) -> HashTable | None:
    """Return the table of a set, or None where it cannot be read."""
    return _read_table(members) if _CAN_READ else None


def has_table(made: set[Any], members: list[Any], table: HashTable) -> bool:
    """Return whether a set has this table, with these members in its order; of two that collide
    either may come first.
    """
    return table_of(made) == table and list(made) == members


def have_stable_hashes(members: Iterable[Any]) -> bool:
    """Return whether every process gives these members the same hashes."""
    kinds = set(map(type, members))
    if kinds <= {int, bool}:
        return True
    return kinds <= {int, bool, float, tuple} and all(
        have_stable_hashes(each)
        if type(each) is tuple
        else not isinstance(each, float) or not math.isnan(each)
        for each in members  # the hash of NaN is its address
    )


def refill_set(target: set[Any], stored: set[Any]) -> None:
    """Give `target` the members of `stored`, in the same table if that is possible."""
    _refill(target, list(stored), table_of(stored))


def rebuild_set(members: list[Any], table: HashTable) -> set[Any]:
    """Return a set of these members, which are in the table's order;
    with that table if it is possible.
    """
    made: set[Any] = set()
    _refill(made, members, table)
    return made


def _refill(target: set[Any], members: list[Any], table: HashTable | None) -> None:
    target.clear()  # equal members may still differ, as 1 and True do
    target.update(members)
    if (
        table is None
        or table_of(target) is None
        or not have_stable_hashes(members)
        or has_table(target, members, table)
    ):
        return
    if not _rebuild(target, members, table):
        target.clear()
        target.update(members)


class _StandIn:
    """A member that occupies a slot of a hash table and equals nothing else."""

    def __init__(self, slot: int) -> None:
        self._slot = slot

    def __hash__(self) -> int:
        return self._slot


class _StopUpdate:
    """Ends an update from a dict when it is compared with an equal hash:
    by then the set has room for all keys.
    """

    def __init__(self, first: Any) -> None:
        self._hash, self.is_armed = hash(first), False

    def __hash__(self) -> int:
        return self._hash

    def __eq__(self, other: object) -> bool:
        if self.is_armed:
            raise _StoppedError
        return False


class _StoppedError(Exception):
    pass


def _rebuild(target: set[Any], members: list[Any], table: HashTable) -> bool:
    """Fill `target` with the members, given in the table's order.
    Return whether it has that table now.
    """
    size = len(table.slots)
    full = [slot for slot, what in enumerate(table.slots) if what == FULL]
    removed = [_StandIn(slot) for slot, what in enumerate(table.slots) if what == REMOVED]
    if len(full) != len(members) or size < _LEAST or size & (size - 1):
        return False
    _set_finger(target, table.finger if table.finger <= _FARTHEST * size else table.finger % size)
    displaced = {
        slot: each
        for slot, each in zip(full, members, strict=True)
        if hash(each) & (size - 1) != slot
    }
    home = [each for slot, each in zip(full, members, strict=True) if slot not in displaced]
    _enlarge(target, [*removed, *home], size)
    target.update(removed, home)
    _add_displaced(
        target,
        displaced,
        {slot for slot, what in enumerate(table.slots) if what} - displaced.keys(),
        size,
    )
    for each in removed:  # not all at once: that would make the table anew
        target.discard(each)
    made = _read_table(target)
    at_finger = (
        made is not None and made.slots == table.slots and (made.finger - table.finger) % size == 0
    )
    return at_finger and list(target) == members


def _set_finger(target: set[Any], finger: int) -> None:
    """Let `pop()` look first at the slot `finger`, which follows the last slot that it took."""
    target.clear()
    found = _read_table(target)
    if found is None or found.finger == finger:
        return
    last = _StandIn(finger - 1 if finger else _LEAST * _FARTHEST - 1)
    _enlarge(target, [last], max(_LEAST, 1 << hash(last).bit_length()))
    target.add(last)
    target.pop()
    target.clear()


def _enlarge(target: set[Any], members: list[Any], size: int) -> None:
    """Give an empty set a table of that size, with the first of these members in it."""
    if size > _LEAST and members:
        stop = _StopUpdate(members[0])
        # no number of theirs equals a member
        others = dict.fromkeys(map(complex, repeat(0), range(1, size // 2 - 2)))
        keys = {members[0]: None, stop: None, **others}
        stop.is_armed = True
        with suppress(_StoppedError):
            target.update(keys)


def _add_displaced(target: set[Any], displaced: dict[int, Any], taken: set[int], size: int) -> None:
    """Add the members that do not lie where their search begins: each when all slots before its own
    are taken.

    Members that were added to removed slots may wait for each other. A stand-in then holds one slot
    until the others are added.
    """
    held: list[tuple[_StandIn, Any]] = []
    while displaced:
        ready = [
            slot for slot, each in displaced.items() if _is_next(hash(each), slot, taken, size - 1)
        ]
        for slot in ready:
            target.add(displaced.pop(slot))
            taken.add(slot)
        if not ready:
            slot = min(displaced)
            held.append((_StandIn(slot), displaced.pop(slot)))
            target.add(held[-1][0])
            taken.add(slot)
    for stand_in, each in held:
        target.discard(stand_in)
        target.add(each)


def _is_next(hashed: int, slot: int, taken: set[int], mask: int) -> bool:
    """Return whether a search for this hash passes only taken slots until it reaches `slot`."""
    at, perturb = hashed & mask, hashed & _WORDS
    for _ in range(mask + _WORD * 8):
        for near in range(at, at + (_LINEAR_PROBES if at + _LINEAR_PROBES <= mask else 0) + 1):
            if near == slot or near not in taken:
                return near == slot
        perturb >>= _PERTURB_SHIFT
        at = (at * 5 + 1 + perturb) & mask
    return False


def _read_table(members: set[Any]) -> HashTable | None:
    """Read the table from memory; None if the result does not match the members."""
    _, used, mask, table, _, finger = (ctypes.c_ssize_t * 6).from_address(id(members) + _HEAD)
    if used != len(members) or mask + 1 < _LEAST or mask & (mask + 1):
        return None
    entries = (ctypes.c_ssize_t * (2 * (mask + 1))).from_address(table)[:]
    slots = bytes(
        EMPTY if not key else REMOVED if hashed == -1 else FULL
        for key, hashed in zip(entries[::2], entries[1::2], strict=True)
    )
    there = [key for key, what in zip(entries[::2], slots, strict=True) if what == FULL]
    return HashTable(slots, finger) if there == list(map(id, members)) else None


_CAN_READ = sys.implementation.name == "cpython"
