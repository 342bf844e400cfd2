"""Contents: the numbers and texts of an object,
and a sample of each array, for comparisons at a few steps.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from typing import Any
from weakref import ReferenceType, ref

import msgspec

from ..state.captured import ATOMS, AttributeSet
from ..stateful.objects import OBJECTS, is_generator, is_random
from ..stateful.tracked import Tracked, framework_modules
from ..stateful.watch import LostValue
from .hooks import HookValue, carried_by_hook
from .visible import has_own_state, is_array, is_module

MOST_NAMED = 3  # attributes that one line names
MOST_ARRAYS = 64  # of one object
SAMPLE = 64  # numbers of one row; three rows of an array are read
MOST_ITEMS = 1000  # of one object's containers


class ObservedObject:
    """An object of the script, with its content at the last safe point of one kind."""

    def __init__(self, value: Any) -> None:
        self._ref: ReferenceType[Any] | None = None
        with suppress(TypeError):  # its type has no weak references
            self._ref = ref(value)
        self._value = value if self._ref is None else None
        self.changes = 0
        self.is_set = False  # the script sets it, so nothing is carried over
        self._content: Any = None
        self._basis: Any = None

    @property
    def value(self) -> Any:
        return self._value if self._ref is None else self._ref()

    def refers_to(self, value: Any) -> bool:
        return self.value is value

    def with_content(self, content: Any) -> ObservedObject:
        basis = _constant_part(self.value)
        if self._content is not None:
            self.changes += content != self._content
            self.is_set = self.is_set or basis != self._basis
        self._content, self._basis = content, basis
        return self


def _constant_part(value: Any) -> Any:
    """Return the part that stays the same while an object only advances: a generator's seed, a
    scheduler's offset.

    A scheduler that gets the epoch, as in `scheduler.step(epoch + i / n)`, counts its calls
    separately.
    """
    if is_array(type(value), "Generator") and callable(getattr(value, "initial_seed", None)):
        return value.initial_seed()
    own = getattr(value, "__dict__", {})
    count, last = own.get("_step_count"), own.get("last_epoch")
    return count - last if isinstance(count, int) and isinstance(last, int | float) else None


def is_scheduler(value: Any) -> bool:
    return isinstance(getattr(value, "__dict__", {}).get("last_epoch"), int | float)


def content_of(value: Any, saved: set[int]) -> Any:
    """The numbers and texts of an object,
    and samples of its arrays; not those in the memory `saved`.
    """
    if is_random(value):
        return _generator_content(value)
    left = [MOST_ARRAYS]
    if is_module(value):
        return _module_content(value, saved, left)
    if arrays_in_container(value):
        return sample_value(value, saved, left, 1)
    return [(name, sample_value(each, saved, left, 3)) for name, each in vars(value).items()]


def _generator_content(value: Any) -> Any:
    if not is_generator(value):
        return value.get_state().tolist()
    return repr(
        value.get_state(legacy=False) if hasattr(value, "get_state") else OBJECTS.capture(value)
    )[-4000:]


def _module_content(value: Any, saved: set[int], left: list[int]) -> Any:
    parts = (
        part for module in framework_modules() for part in module.unsaved_tensors(value, saved)
    )
    return [(name, sample_value(each, saved, left, 1)) for name, each in parts]


def sample_value(value: Any, saved: set[int], left: list[int], depth: int) -> Any:
    """Return texts and samples of a value; None if it is not read.
    `left`: how many more arrays may be read.
    """
    if is_random(value):
        return _generator_content(value)
    if type(value) in ATOMS:
        return repr(value)
    if is_array(type(value)):
        apart = not any(module.memory_of(value) in saved for module in framework_modules())
        left[0] -= 1
        return _sample_array(value) if apart and left[0] >= 0 else None
    if is_module(value):
        return _module_content(value, saved, left)
    if depth and isinstance(value, dict | list | tuple | set | deque) and len(value) <= MOST_ITEMS:
        items = value.items() if isinstance(value, dict) else enumerate(value)
        return [(repr(key)[:80], sample_value(each, saved, left, depth - 1)) for key, each in items]
    return None


def _sample_array(array: Any) -> Any:
    """A few numbers of the first row, of the middle one, and of the last."""
    array = array.detach() if hasattr(array, "detach") else array
    rows = [array]
    while rows[0].ndim > 1:
        rows = [
            row[at] for row in rows for at in sorted({0, len(row) // 2, len(row) - 1}) if len(row)
        ][:3]
        if not rows:
            return None
    return repr([row[:SAMPLE].tolist() if row.ndim else row.tolist() for row in rows])


def arrays_in_container(value: Any) -> list[Any]:
    """The members of a container that holds nothing but arrays, at least two."""
    if not isinstance(value, dict | list | tuple) or not 2 <= len(value) <= MOST_ITEMS:
        return []
    members = [*value.values()] if isinstance(value, dict) else [*value]
    return members if all(is_array(type(each)) for each in members) else []


def shapes(arrays: Iterable[Any]) -> list[tuple[int, ...]]:
    return sorted(tuple(each.shape) for each in arrays)


def module_arrays(module: Any) -> list[Any]:
    """The arrays in a module's state_dict()."""
    return [each for each in module.state_dict().values() if is_array(type(each))]


def is_copy_of_module(value: Any, objects: Mapping[str, Any]) -> bool:
    """Whether it has the same numbers as a tracked module,
    from which the script copies them repeatedly.
    """
    others = [each for each in objects.values() if is_module(each)]
    if is_module(value):
        mine = [part for _, part in _module_content(value, set(), [MOST_ARRAYS])]
        return any(
            mine == [part for _, part in _module_content(each, set(), [MOST_ARRAYS])]
            for each in others
        )
    samples = {_sample_array(each) for each in arrays_in_container(value)[:MOST_ARRAYS]}
    return bool(samples) and any(
        samples <= {_sample_array(each) for each in module_arrays(one)} for one in others
    )


class UnsavedAttributes(msgspec.Struct):
    """The attributes of tracked objects that are not in their state_dict(), and what their hooks
    carry, at safe points of one kind.
    """

    _tracked: Tracked
    _before: dict[tuple[int, str], Any] = {}
    _changes: dict[tuple[int, str], int] = {}
    _parts: dict[int, Any] = {}  # kept alive, so that no other object gets their ids

    def compare_content(self, saved: set[int]) -> None:
        """Compare the attributes with the last call. `saved`: memory of the tensors that the
        run saves.
        """
        now = {}
        values = [(part, name, vars(part)[name]) for _, _, part, name in self._attributes()]
        values += [(each.holder, each.name, each.value) for _, each in self._of_hooks()]
        for part, name, value in values:
            with suppress(Exception):  # a script's objects may raise anything
                content = sample_value(value, saved, [MOST_ARRAYS], 3)
                key = id(part), name
                self._parts[id(part)] = part
                now[key] = content
                if key in self._before and content != self._before[key]:
                    self._changes[key] = self._changes.get(key, 0) + 1
        self._before = now

    def report_changed(self, is_held: Callable[[Any], bool]) -> Iterator[LostValue]:
        """Yield one line for each tracked object with an attribute that changed in both
        comparisons, or with a hook that carries such a value. `is_held`: whether a tracked object
        reaches a value, and may save it.
        """
        found: dict[str, list[tuple[str, Any, str]]] = {}
        for name, path, part, attribute in self._attributes():
            if self._changes.get((id(part), attribute), 0) >= 2:
                found.setdefault(name, []).append((path, part, attribute))
        targets = self._tracked.self_restoring_objects()
        for name, places in found.items():
            line = _unsaved_attribute_line(name, targets[name], places)
            yield LostValue("left_out", name, line)
        for name, each in self._of_hooks():
            if self._changes.get((id(each.holder), each.name), 0) < 2 or name in found:
                continue
            if not is_held(each.holder if each.owner else each.value):
                found[name] = []
                yield LostValue("left_out", name, _hook_line(name, targets[name], each))

    def _of_hooks(self) -> Iterator[tuple[str, HookValue]]:
        """Yield the values that hooks carry, but objects with a state of their own: those are
        found among the variables.
        """
        vars_of_run = self._tracked.variables.state_dict().values()
        inside = self._tracked.self_restoring_objects()
        objects = (*self._tracked.objects.values(), *inside.values(), *vars_of_run)
        held = {id(each) for each in objects if type(each) not in ATOMS}
        known = self._known_attributes()
        for name, value in hook_values(inside):
            if id(value.holder) in held or (id(value.holder), value.name) in known:
                continue
            if not is_candidate(value.value) and id(value.value) not in held:
                yield name, value

    def _known_attributes(self) -> set[tuple[int, str]]:
        tracked = [
            each for each in self._tracked.objects.values() if isinstance(each, AttributeSet)
        ]
        return {(id(each.target), name) for each in tracked for name in each.names}

    def _attributes(self) -> Iterator[tuple[str, str, Any, str]]:
        known = self._known_attributes()
        inside = self._tracked.self_restoring_objects()
        held = {id(each) for each in (*self._tracked.objects.values(), *inside.values())}
        for name, target in inside.items():
            for module in framework_modules():
                for path, part, attribute in module.unsaved_attributes(target):
                    if (id(part), attribute) not in known and id(vars(part)[attribute]) not in held:
                        yield name, path, part, attribute


def hook_values(objects: Mapping[str, Any]) -> Iterator[tuple[str, HookValue]]:
    """Yield what the hooks of these objects carry, each with the object's name."""
    for name, target in objects.items():
        for module in framework_modules():
            for hook in module.registered_hooks(target):
                for value in carried_by_hook(hook):
                    if not (value.owner and is_module(value.holder)):
                        yield name, value


def is_candidate(value: Any) -> bool:
    """Whether it is compared by itself, wherever a variable holds it."""
    return is_random(value) or is_module(value) or has_own_state(value)


def _hook_line(name: str, target: Any, value: HookValue) -> str:
    return (
        f"state[{name!r}] ({type(target).__name__}) has a hook that keeps {value.name} from step "
        f"to step, and no tracked object holds that: a resume begins it anew. {value.advice}"
    )


def _unsaved_attribute_line(name: str, target: Any, places: list[tuple[str, Any, str]]) -> str:
    path, part, attribute = places[0]
    named = ", ".join(f"{at}.{each}" if at else each for at, _, each in places[:MOST_NAMED])
    where = f"state[{name!r}] ({type(target).__name__})"
    if any(module.saves_nothing(part) for module in framework_modules()):
        return (
            f"{where}: {path or 'its'} state_dict() is empty, "
            f"and {named} changes in each step: a resume begins it "
            f"anew. Write {'.'.join(each for each in (name, path) if each)}.persistent(True) "
            "before Run(...)"
        )
    does = "is drawn from" if is_random(vars(part)[attribute]) else "changes"
    owner = "".join(
        f"[{each}]" if each.isdecimal() else f".{each}" for each in (name, *path.split(".")) if each
    )[1:]
    return (
        f"{where} keeps {named} outside of its state_dict(), "
        f"and that {does} in each step: a resume begins it anew. "
        f'Write Run(..., dict(..., {attribute.strip("_")}=Fields({owner}, "{attribute}")))'
    )
