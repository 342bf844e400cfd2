"""Left out: attributes of tracked objects that change from step to step, and that are not in their state_dict()."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from typing import Any

from ..state.captured import Attributes
from .contents import MOST_ARRAYS, is_random, part_of
from .tracked import Tracked, framework_modules
from .watch import Lost

MOST_NAMED = 3  # attributes that one line names


class LeftOut:
    """The attributes of tracked objects that are not in their state_dict(), at safe points of one kind."""

    def __init__(self, tracked: Tracked) -> None:
        self._tracked = tracked
        self._before: dict[tuple[int, str], Any] = {}
        self._changes: dict[tuple[int, str], int] = {}
        self._parts: dict[int, Any] = {}  # kept alive, so that no other object gets their ids

    def look(self, saved: set[int]) -> None:
        """Compare with the last look. `saved`: the memory of the tensors that the run saves."""
        now = {}
        for _, _, part, name in self._attributes():
            with suppress(Exception):  # a script's objects may raise anything
                value = vars(part)[name]
                content = part_of(value, saved, [MOST_ARRAYS], 3)
                key = id(part), name
                self._parts[id(part)] = part
                now[key] = content
                if key in self._before and content != self._before[key]:
                    self._changes[key] = self._changes.get(key, 0) + 1
        self._before = now

    def told(self) -> Iterator[Lost]:
        """Return one line for each tracked object with an attribute that changed at both looks."""
        found: dict[str, list[tuple[str, Any, str]]] = {}
        for name, path, part, attribute in self._attributes():
            if self._changes.get((id(part), attribute), 0) >= 2:
                found.setdefault(name, []).append((path, part, attribute))
        for name, places in found.items():
            yield Lost("left_out", name, _line(name, self._tracked.inside()[name], places))

    def _attributes(self) -> Iterator[tuple[str, str, Any, str]]:
        tracked = [each for each in self._tracked.objects.values() if isinstance(each, Attributes)]
        known = {(id(each.target), name) for each in tracked for name in each.names}
        inside = self._tracked.inside()
        held = {id(each) for each in (*self._tracked.objects.values(), *inside.values())}
        for name, target in inside.items():
            for module in framework_modules():
                for path, part, attribute in module.left_out(target):
                    if (id(part), attribute) not in known and id(vars(part)[attribute]) not in held:
                        yield name, path, part, attribute


def _line(name: str, target: Any, places: list[tuple[str, Any, str]]) -> str:
    path, part, attribute = places[0]
    named = ", ".join(f"{at}.{each}" if at else each for at, _, each in places[:MOST_NAMED])
    where = f"state[{name!r}] ({type(target).__name__})"
    if any(module.saves_nothing(part) for module in framework_modules()):
        return (
            f"{where}: {path or 'its'} state_dict() is empty, and {named} changes in each step: a resume begins it "
            f"anew. Write {'.'.join(each for each in (name, path) if each)}.persistent(True) before Run(...)"
        )
    does = "is drawn from" if is_random(vars(part)[attribute]) else "changes"
    owner = "".join(f"[{each}]" if each.isdecimal() else f".{each}" for each in (name, *path.split(".")) if each)[1:]
    return (
        f"{where} keeps {named} outside of its state_dict(), and that {does} in each step: a resume begins it anew. "
        f'Write Run(..., dict(..., {attribute.strip("_")}=Fields({owner}, "{attribute}")))'
    )
