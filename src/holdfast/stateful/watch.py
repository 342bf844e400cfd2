"""Watch: tracked values that the loop no longer uses, because a name or an attribute was bound to
another object.

The loop cannot change a value that only the run still holds, although the script held it when the
run was entered. CPython's reference counts show that; without them (another interpreter, no GIL)
nothing is reported. Nor is a value that can still be reached by a view, a member, or shared memory.
The frame that entered the run must still be running: a function that has returned drops its names,
and rebinds none.
"""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Iterator, Mapping
from types import CodeType, FrameType
from typing import Any, NamedTuple

from ..state import codec
from ..state.captured import ATOMS, MAPPINGS, MUTABLE
from .objects import adapter_for, is_random
from .tracked import Tracked, framework_modules
from .vars import Vars

_NEW_LOCALS = 0x2  # of a code's flags, as inspect.CO_NEWLOCALS
MOST_MEMBERS = 1000  # of a container that is looked through
LOOKS = 8  # before the trees are judged: the eighth is at step 64
COUNTS = sys.implementation.name == "cpython" and "t" not in sys.abiflags  # free threading


class LostValue(NamedTuple):
    """A tracked value to which only the run still has a reference."""

    kind: str  # "rebound", "generator_replaced"
    name: str
    line: str


class UnusedValueWatch:
    """Reports, once each, tracked values that the script has dropped since it entered the run."""

    def __init__(self, tracked: Tracked) -> None:
        variables = tracked.variables
        self._state, self._given = tracked.objects, tracked.given
        self._vars = variables
        self._caller = _calling_place()
        self.entered_in = "" if self._caller.module is not None else self._caller.code.co_name
        self._held_state: list[str] = []
        self._unreachable: list[str] = []  # values that only the run held from the beginning
        self._held_vars: dict[str, int] = {}  # and the ids of their values
        self._trees = [
            name for name, each in self._state.items() if hasattr(adapter_for(each), "why_unused")
        ]
        self._looks = 0
        if not COUNTS:
            return
        # the tracked objects' and ours
        reachable = type(self._given) is not dict or _references_besides([self._given], 2) > 0
        for name in self._state:
            others = self._other_references(name)
            plain = not hasattr(self._state[name], "state_dict") and _is_container_or_array(
                self._state[name]
            )
            if others > 0 and (plain or is_random(self._state[name])):
                self._held_state.append(name)
            elif not reachable and plain and _is_abandoned(others, self._state[name]):
                self._unreachable.append(name)
        variables._read.clear()  # noqa: SLF001 -- its watch
        for name in _values(variables):
            if (
                _is_container_or_array(_values(variables)[name])
                and self._other_variable_references(name) > 0
            ):
                self._held_vars[name] = id(_values(variables)[name])
        self._release_first_values()

    def take_lost(self) -> Iterator[LostValue]:
        """The values that were lost since the last call."""
        while self._unreachable:
            name = self._unreachable.pop()
            yield _unreachable_value(name, self._state[name])
        yield from self._find_unused()
        if not (self._held_state or self._held_vars) or not _is_running(self._caller):
            return
        for name in list(self._held_state):
            if _is_abandoned(self._other_references(name), self._state[name]):
                self._held_state.remove(name)
                yield _replaced_value(f"state[{name!r}]", name, self._state[name])
        values = _values(self._vars)
        for name, place in list(self._held_vars.items()):
            if name in self._vars._read or id(values.get(name)) != place:  # noqa: SLF001
                del self._held_vars[name]  # the loop uses run.vars
            elif _is_abandoned(self._other_variable_references(name), values[name]):
                del self._held_vars[name]
                yield _replaced_value(f"run.vars.{name}", name, values[name])
        self._release_first_values()

    def _find_unused(self) -> Iterator[LostValue]:
        """Yield the pytrees, once, if none of them has changed so far: a step may only have
        accumulated gradients.

        If another tree has changed, an unchanged one is assumed to be intended, such as a teacher's
        weights.
        """
        self._looks += 1
        if self._looks < LOOKS or not self._trees:
            return
        why = {
            name: adapter_for(self._state[name]).why_unused(self._state[name])
            for name in self._trees
        }
        self._trees = []
        if all(why.values()):
            for name, line in why.items():
                yield LostValue("rebound", name, f"state[{name!r}]: {line}")

    def _release_first_values(self) -> None:
        """Release the first values that are not watched."""
        if not self._held_vars:
            object.__setattr__(self._vars, "_given", {})

    def _other_references(self, name: str) -> int:
        """References to a tracked object besides those of the run,
        and of the mapping that the run was given.
        """
        return _references_besides(
            [self._state[name]], 1 + _is_given(self._given, name, self._state)
        )

    def _other_variable_references(self, name: str) -> int:
        values = _values(self._vars)
        return _references_besides([values[name]], 1 + _is_given(self._vars._given, name, values))  # noqa: SLF001


def _values(variables: Vars) -> dict[str, Any]:
    return variables._values  # noqa: SLF001 -- state_dict() would hold each value once more


def _is_given(given: Mapping[str, Any], name: str, values: Mapping[str, Any]) -> bool:
    return type(given) is dict and given.get(name) is values[name]


def _reference_count(box: list[Any]) -> int:
    return sys.getrefcount(box[0])


_ALONE = _reference_count([object()])  # references to an object that only such a list holds


def _references_besides(box: list[Any], ours: int) -> int:
    """Number of references to the one object in `box`, besides `ours`."""
    return _reference_count(box) - _ALONE - ours


def _is_container_or_array(value: Any) -> bool:
    """Whether it is a container, an array or a tensor."""
    return type(value) in MUTABLE or (
        codec.framework_of(type(value)) is not None and codec.is_leaf(value)
    )


def _is_abandoned(others: int, value: Any) -> bool:
    """Whether only the run can reach the value and its contents.

    `others`: references besides known ones, counted before.
    """
    if others > 0:
        return False
    kind = type(value)
    if kind in MAPPINGS or kind in (list, tuple, deque):
        keys = value if kind in MAPPINGS else range(len(value))
        return len(value) <= MOST_MEMBERS and all(
            type(value[key]) in ATOMS
            or _is_abandoned(_references_besides([value[key]], 1), value[key])
            for key in keys
        )
    if kind is set:
        return ATOMS.issuperset(map(type, value))
    bits = getattr(value, "bit_generator", None)
    if bits is not None:
        return _references_besides([bits], 2) <= 0  # the generator, and the name here
    if getattr(value, "base", None) is not None:  # an array that shows another one's memory
        return False
    return all(module.is_unshared(value) for module in framework_modules())


class _BindingPlace(NamedTuple):
    """Where names are bound: a frame, by its identity and code (a reference would keep them
    alive), or a module.
    """

    frame: int
    code: CodeType
    module: dict[str, Any] | None


def stack_frames() -> Iterator[FrameType]:
    """All frames of this thread, innermost first."""
    frame: FrameType | None = sys._getframe(1)  # noqa: SLF001  the frames' own way is private
    while frame is not None:
        yield frame
        frame = frame.f_back


def _calling_place() -> _BindingPlace:
    """The nearest frame that is not Holdfast's."""
    frame = next(
        each
        for each in stack_frames()
        if str(each.f_globals.get("__name__")).partition(".")[0] != "holdfast"
    )
    in_function = frame.f_code.co_flags & _NEW_LOCALS
    return _BindingPlace(id(frame), frame.f_code, None if in_function else frame.f_globals)


def _is_running(place: _BindingPlace) -> bool:
    """Whether it is on this thread's stack. Names of a module last: each cell of a notebook has
    a frame of its own.
    """
    return any(
        frame.f_globals is place.module or (id(frame) == place.frame and frame.f_code is place.code)
        for frame in stack_frames()
    )


def _replaced_value(place: str, name: str, value: Any) -> LostValue:
    held = f"{place}: only the run still holds this"
    if is_random(value):
        return LostValue(
            "generator_replaced",
            name,
            f"{held} random generator; the loop draws from another one, "
            "which is not saved. env.reset(seed=...) makes "
            "a new one: call it before Run(...), and give the run the one it made",
        )
    first = "" if place.startswith("run.vars") else f" (first value: vars=dict({name}={name}))"
    return LostValue(
        "rebound",
        name,
        f"{held} {type(value).__name__}; "
        "the loop has bound the name to another one, which is not saved. "
        f"Write run.vars.{name} in the place of {name} in the loop{first}, or change it in place: "
        f"{_in_place_code(name, value)}",
    )


def _unreachable_value(name: str, value: Any) -> LostValue:
    line = (
        f"state[{name!r}]: only the run holds this {type(value).__name__}, "
        "so the loop cannot change it. Give the "
        "object that the loop uses: an object itself, "
        "and not its state_dict(); or keep the value in run.vars"
    )
    return LostValue("rebound", name, line)


def _in_place_code(name: str, value: Any) -> str:
    if isinstance(value, dict | set | deque):
        return (
            f"{name}.clear() and {name}.{'extend' if isinstance(value, deque) else 'update'}(...)"
        )
    return f"{name}.copy_(....detach())" if hasattr(value, "copy_") else f"{name}[:] = ..."
