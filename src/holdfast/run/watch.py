"""Watch: tracked values that the loop no longer uses, because a name or an attribute was bound to another object.

A value that somebody besides the run held when the run was entered, and that nobody besides the run holds now, cannot be
the one that the loop changes. CPython's reference counts say so. Where they do not (another interpreter, no GIL) nothing
is told. Neither is anything told of a value that may still be reached: by a view, a member, or memory that it shares.
The frame that entered the run must still be running: a function that has returned drops its names, and rebinds none.
"""

from __future__ import annotations

import sys
import sysconfig
from collections import deque
from collections.abc import Iterator, Mapping
from inspect import CO_NEWLOCALS
from types import CodeType, FrameType
from typing import Any, NamedTuple

from ..state import codec
from ..state.captured import ATOMS, MAPPINGS, MUTABLE
from .objects import is_generator
from .tracked import Tracked, framework_modules
from .vars import Vars

MOST_MEMBERS = 1000  # of a container that is looked through
COUNTS = sys.implementation.name == "cpython" and not sysconfig.get_config_var("Py_GIL_DISABLED")


class Lost(NamedTuple):
    """A tracked value that only the run holds."""

    kind: str  # "rebound", "generator_replaced"
    name: str
    line: str


class Watch:
    """What was held besides by the run when the run was entered; told once when that has ended."""

    def __init__(self, tracked: Tracked, variables: Vars) -> None:
        self._state, self._given = tracked.objects, tracked.given
        self._vars = variables
        self._caller = _caller()
        self._held_state: list[str] = []
        self._unreachable: list[str] = []  # that nobody held from the beginning
        self._held_vars: dict[str, int] = {}  # and the ids of their values
        if not COUNTS:
            return
        reachable = type(self._given) is not dict or _others([self._given], 2) > 0  # the tracked objects' and ours
        for name in self._state:
            if _is_watched(self._state[name]) and (others := self._others(name)) > 0:
                self._held_state.append(name)
            elif not reachable and _is_value(self._state[name]) and _is_abandoned(self._state[name], others):
                self._unreachable.append(name)
        variables._read.clear()  # noqa: SLF001 -- its watch
        for name in _values(variables):
            if _is_plain(_values(variables)[name]) and self._other_vars(name) > 0:
                self._held_vars[name] = id(_values(variables)[name])
        self._let_go()

    def lost(self) -> Iterator[Lost]:
        """The values of which it has become true since it was asked last."""
        while self._unreachable:
            name = self._unreachable.pop()
            yield _unreachable(name, self._state[name])
        if not (self._held_state or self._held_vars) or not _is_running(self._caller):
            return
        for name in list(self._held_state):
            others = self._others(name)
            if _is_abandoned(self._state[name], others):
                self._held_state.remove(name)
                yield _of_state(name, self._state[name])
        for name, place in list(self._held_vars.items()):
            others = self._other_vars(name) if name in _values(self._vars) else 1
            if others > 0 and id(_values(self._vars).get(name)) == place and name not in self._vars._read:  # noqa: SLF001
                continue
            if name in self._vars._read or id(_values(self._vars).get(name)) != place:  # noqa: SLF001
                del self._held_vars[name]  # the loop uses run.vars
            elif _is_abandoned(_values(self._vars)[name], others):
                del self._held_vars[name]
                yield _of_vars(name, _values(self._vars)[name])
        self._let_go()

    def _let_go(self) -> None:
        """Keep no first value alive that nobody watches."""
        if not self._held_vars:
            object.__setattr__(self._vars, "_given", {})

    def _others(self, name: str) -> int:
        """References to a tracked object besides those of the run, and of the mapping that the run was given."""
        return _others([self._state[name]], 1 + _gives(self._given, name, self._state))

    def _other_vars(self, name: str) -> int:
        values = _values(self._vars)
        return _others([values[name]], 1 + _gives(self._vars._given, name, values))  # noqa: SLF001


def _values(variables: Vars) -> dict[str, Any]:
    return variables._values  # noqa: SLF001 -- state_dict() would hold each value once more


def _gives(given: Mapping[str, Any], name: str, values: Mapping[str, Any]) -> bool:
    return type(given) is dict and given.get(name) is values[name]


def _count(box: list[Any]) -> int:
    return sys.getrefcount(box[0])


_ALONE = _count([object()])  # of what lies in such a box and nowhere else


def _others(box: list[Any], ours: int) -> int:
    """References to what lies in `box`, besides `ours`."""
    return _count(box) - _ALONE - ours


def _is_plain(value: Any) -> bool:
    """Whether it is a container, an array or a tensor."""
    return type(value) in MUTABLE or (codec.framework(type(value)) is not None and codec.is_leaf(value))


def _is_random(value: Any) -> bool:
    return is_generator(value) or (type(value).__name__ == "Generator" and codec.framework(type(value)) is not None)


def _is_value(value: Any) -> bool:
    return not hasattr(value, "state_dict") and _is_plain(value)


def _is_watched(value: Any) -> bool:
    return _is_random(value) or _is_value(value)


def _is_abandoned(value: Any, others: int) -> bool:
    """Whether nobody can reach it, nor what is in it, but through the run. `others`: references besides known ones."""
    if others > 0:
        return False
    kind = type(value)
    if kind in MAPPINGS:
        return len(value) <= MOST_MEMBERS and all(_is_member_abandoned(value, key) for key in value)
    if kind in (list, tuple, deque):
        return len(value) <= MOST_MEMBERS and all(_is_member_abandoned(value, index) for index in range(len(value)))
    if kind is set:
        return ATOMS.issuperset(map(type, value))
    bits = getattr(value, "bit_generator", None)
    if bits is not None:
        return _others([bits], 2) <= 0  # the generator, and the name here
    if getattr(value, "base", None) is not None:  # an array that shows another one's memory
        return False
    return all(module.alone(value) for module in framework_modules())


def _is_member_abandoned(container: Any, key: Any) -> bool:
    if type(container[key]) in ATOMS:
        return True
    others = _others([container[key]], 1)
    return _is_abandoned(container[key], others)


class _Place(NamedTuple):
    """Where names stand: a frame by its identity and code (the frame itself would keep them alive), or a module's names."""

    frame: int
    code: CodeType | None
    module: dict[str, Any] | None


def _caller() -> _Place:
    """The nearest frame that is not Holdfast's."""
    frame: FrameType | None = sys._getframe()  # noqa: SLF001
    while frame is not None and str(frame.f_globals.get("__name__")).partition(".")[0] == "holdfast":
        frame = frame.f_back
    if frame is None:
        return _Place(0, None, None)
    in_function = frame.f_code.co_flags & CO_NEWLOCALS
    return _Place(id(frame), frame.f_code, None if in_function else frame.f_globals)


def _is_running(place: _Place) -> bool:
    """Whether it is among the frames of this thread. A module's names last: a notebook's cells are frames of their own."""
    frame: FrameType | None = sys._getframe()  # noqa: SLF001
    while frame is not None:
        if frame.f_globals is place.module or (id(frame) == place.frame and frame.f_code is place.code):
            return True
        frame = frame.f_back
    return False


def _of_state(name: str, value: Any) -> Lost:
    if _is_random(value):
        line = (
            f"state[{name!r}]: only the run still holds this random generator; the loop draws from another one, which is "
            "not saved. env.reset(seed=...) makes a new one: call it before Run(...), and give the run the one it made"
        )
        return Lost("generator_replaced", name, line)
    line = (
        f"state[{name!r}]: only the run still holds this {type(value).__name__}; the loop has bound the name to another "
        f"one, which is not saved. Write run.vars.{name} in the place of {name} in the loop (first value: "
        f"vars=dict({name}={name})), or change it in place: {_in_place(name, value)}"
    )
    return Lost("rebound", name, line)


def _unreachable(name: str, value: Any) -> Lost:
    line = (
        f"state[{name!r}]: nobody but the run holds this {type(value).__name__}, so the loop cannot change it. Give the "
        "object that the loop uses: an object itself, and not its state_dict(); or keep the value in run.vars"
    )
    return Lost("rebound", name, line)


def _of_vars(name: str, value: Any) -> Lost:
    line = (
        f"run.vars.{name}: only the run still holds this {type(value).__name__}; the loop has bound the name to another "
        f"one, which is not saved. Write run.vars.{name} in the place of {name} in the loop, or change it in place: "
        f"{_in_place(name, value)}"
    )
    return Lost("rebound", name, line)


def _in_place(name: str, value: Any) -> str:
    if isinstance(value, dict | set | deque):
        return f"{name}.clear() and {name}.{'extend' if isinstance(value, deque) else 'update'}(...)"
    return f"{name}.copy_(....detach())" if hasattr(value, "copy_") else f"{name}[:] = ..."
