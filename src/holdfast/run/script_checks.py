"""Checks of the script at safe points, for mistakes that would cost hours later.

Forgotten: objects that the script's loop changes from step to step, and that no tracked object
holds.

Optimizers are seen by torch's own hook while the first steps are made. Schedulers, gradient
scalers, averaged models and random generators are found among the variables that the loop's frames
reach, at a few safe points. Their content is compared, by a sample of each array. Nothing of the
script is called. Each object is reported once. The loops of trainers are not watched.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from typing import Any

import msgspec

from .. import owner
from ..errors import DiskError, UsageError
from ..ranks import Ranks
from ..script.carried import accesses_member
from ..script.contents import (
    MOST_ITEMS,
    ObservedObject,
    UnsavedAttributes,
    arrays_in_container,
    content_of,
    hook_values,
    is_candidate,
    is_copy_of_module,
    is_scheduler,
    module_arrays,
    shapes,
)
from ..script.visible import (
    Variable,
    find_variables,
    has_own_state,
    is_module,
    own_attributes,
    script_frames,
    variables_inside,
)
from ..state.captured import ATOMS, AttributeSet
from ..state.tree import flatten
from ..stateful.objects import is_random
from ..stateful.tracked import RESERVED, Tracked, framework_modules
from ..stateful.watch import LostValue, UnusedValueWatch
from ..store import unsound
from . import alive
from .position import RunProgress
from .report import Reporter
from .saver import Saver

LAST_POINT = 32  # the hooks are removed there
# the safe points, by kind, at which contents are compared
LOOKS = {"step": (1, 2, 4), "end": (1, 2, 3)}
EVENT = "changed_once"  # names the schedulers that one attempt has seen change in one epoch
MOST_OBJECTS = 20_000  # objects that are visited in the search
DEEPEST = 6


class ScriptChecks(msgspec.Struct):
    """The checks of one attempt."""

    _tracked: Tracked
    _ranks: Ranks  # of the store
    _watch: UnusedValueWatch
    _progress: RunProgress
    _reporter: Reporter
    _saves: Saver
    _stop_on_nan: bool
    _steps: list[tuple[Any, Any]] = []  # a framework's module, and its recorded steps
    _seen: dict[str, dict[int, ObservedObject]] = {}
    _left_out: dict[str, UnsavedAttributes] = {}
    _ends: int = 0
    _at_each: list[Callable[[], Any]] = []  # an adapter's own checks at each safe point
    _told: set[int] = set()  # ids of objects
    _told_names: set[tuple[str, str]] = set()

    def __post_init__(self) -> None:
        self._seen = {kind: {} for kind in LOOKS}
        self._left_out = {kind: UnsavedAttributes(self._tracked) for kind in LOOKS}

    def check_safe_point(self) -> None:
        """Count a safe point of this attempt, and check the script's objects.

        The first safe point refuses a state or `run.vars` that cannot be saved. A name added to
        `run.vars` later is checked when it is new. If a value is replaced by one that cannot be
        saved, the next save refuses it. A warning names tracked values that the loop does not use.

        Raises:
            UsageError: a value cannot be saved; the message names its place.
        """
        number, tracked, reporter = self._progress.count_safe_point(), self._tracked, self._reporter
        try:
            new = tracked.variables.take_new()
            if number == 1:
                state, weights = tracked.capture_with_weights()
                if self._stop_on_nan and not weights:
                    raise UsageError(unsound.NOTHING_KNOWN)
                held = {**state, RESERVED: {"vars": tracked.captured_variables()}}
                self._saves.prepare_memory(flatten(held).leaves.values())
            elif new:
                flatten({RESERVED: {"vars": new}})
            for lost in self._find_forgotten(number):
                reporter.warn(lost.line, kind=lost.kind, name=lost.name)
        except UsageError as error:
            self._ranks.report("a save", error)  # the other ranks wait for this message
            raise
        if number == 1 and self._ranks.leads:
            reporter.record("first_step", process_s=round(owner.age_s(), 3))
            with suppress(DiskError):  # the line is kept, and written the next time
                reporter.attempt.flush_unless_busy()
            alive.write_import_list()
        if number == 3 or number & (number - 1) == 0:
            for lost in self._watch.take_lost():
                reporter.warn(lost.line, kind=lost.kind, name=lost.name)

    def _find_forgotten(self, number: int) -> Iterator[LostValue]:
        """Yield objects that a resume would lose. `number`: of the safe point in this attempt."""
        if "loop" in self._progress.walks.kinds:
            return
        ended = self._progress.position.phase == "end"
        self._ends += ended
        kind, count = ("end", self._ends) if ended else ("step", number - self._ends)
        if number == 1:
            self._steps = [(module, module.StepObserver()) for module in framework_modules()]
            for _, steps in self._steps:
                steps.begin()
            self._at_each = (
                []
                if self._tracked.keeps_gradients
                else self._tracked.adapter_calls("detect_gradient_use")
            )
        for act in self._at_each:
            if act():
                self._saves.request_another_save()  # the newest checkpoint lacks this content
        if number in (1, 3, 4, 8, 16, LAST_POINT):
            yield from self._find_optimizers()
        for _, steps in self._steps if number <= LAST_POINT else ():
            steps.count_from(number)
            if number == LAST_POINT:
                steps.end()
        if count in LOOKS["step"] and not ended:
            self._tracked.call_adapters("check_buffers")
        if count in LOOKS[kind]:
            last = count == LOOKS[kind][-1]
            known = count > 1 and (last or not ended)  # what is new has no time to change twice
            inside, captured = self._tracked.self_restoring_objects(), self._tracked.capture()
            found = (
                self._seen[kind].values() if known else _candidates(self._tracked.objects | inside)
            )
            values = [each.value for each in found]
            saved = {
                place
                for each in framework_modules()
                for place in each.memory_of_run(inside, captured)
            }
            self._left_out[kind].compare_content(saved)
            self._compare_contents(kind, values, saved)
            if number == 1 and not ended:
                self._compare_contents("end", [*filter(is_scheduler, values)], saved)
            if last:
                for lost in self._left_out[kind].report_changed(self._held_objects()):
                    yield from self._first_reports(lost)
            if last or ended:
                yield from self._find_changed_twice(kind)
            if last:
                self._seen[kind].clear()

    def close(self) -> None:
        """Remove the hooks."""
        for _, steps in self._steps:
            steps.end()

    def _find_optimizers(self) -> Iterator[LostValue]:
        """Yield tracked optimizers that step untracked parameters,
        and optimizers that are untracked.
        """
        for module, steps in self._steps:
            inside = self._tracked.self_restoring_objects()
            variables = {"vars": self._tracked.variables.state_dict()}
            captured = {**self._tracked.capture(), RESERVED: variables}
            held = module.memory_of_run(inside, captured)
            reached = _HeldObjects(module, self._tracked)
            for name, line in module.untracked_parameters(inside, held, reached, steps):
                yield from self._first_reports(LostValue("untracked_parameters", name, line))
            kept = {id(each) for each in inside.values()} | self._told
            for optimizer, what in module.unsaved_optimizers(steps, held, kept, captured):
                if not reached.holds(optimizer):
                    self._told.add(id(optimizer))
                    yield from self._first_reports(_forgotten_optimizer(optimizer, what))

    def _first_reports(self, lost: LostValue) -> Iterator[LostValue]:
        """Yield each name once: each epoch may make a new optimizer under the same name."""
        if (lost.kind, lost.name) not in self._told_names:
            self._told_names.add((lost.kind, lost.name))
            yield lost

    def _held_objects(self) -> Callable[[Any], bool]:
        reached = [_HeldObjects(each, self._tracked) for each in framework_modules()]
        return lambda value: any(each.holds(value) for each in reached)

    def _compare_contents(self, kind: str, values: list[Any], saved: set[int]) -> None:
        """Note which of these objects have changed since the last comparison of this kind."""
        before, self._seen[kind] = self._seen[kind], {}
        for value in values:
            with suppress(Exception):  # a script's objects may raise anything
                content = content_of(value, saved)
                seen = before.get(id(value))
                if seen is None or not seen.refers_to(value):
                    seen = ObservedObject(value)
                self._seen[kind][id(value)] = seen.with_content(content)

    def _find_changed_twice(self, kind: str) -> Iterator[LostValue]:
        """Yield objects whose content changed in two comparisons.

        A scheduler also counts if it changed once here and once in another attempt. A single change
        may be the object's first use in the process.
        """
        suspects = {
            id(seen.value): seen.value
            for seen in self._seen[kind].values()
            if seen.changes >= (1 if kind == "end" and is_scheduler(seen.value) else 2)
            and not seen.is_set
            and seen.value is not None
        }
        for each in self._told | self._drawn_by_loaders():
            suspects.pop(each, None)
        if not suspects:
            return
        once: list[str] = []
        is_held = self._held_objects()
        objects = self._tracked.objects | self._tracked.self_restoring_objects()
        for variable in _candidates(objects):
            value = suspects.pop(id(variable.value), None)
            if value is None or is_held(value) or is_copy_of_module(value, objects):
                continue
            if any(module.is_stepped(value, steps) for module, steps in self._steps):
                continue
            name = _list_name(variable.path.rpartition(":")[2])
            if self._seen[kind][id(value)].changes < 2 and not self._changed_before(name):
                once.append(name)
                continue
            self._told.add(id(value))
            yield from self._first_reports(
                _forgotten_object(name, value, "step" if kind == "step" else "epoch")
            )
        if once:
            self._reporter.record(EVENT, names=once)

    def _changed_before(self, name: str) -> bool:
        """Whether an earlier attempt has seen it change once."""
        found = False
        for log in self._reporter.attempt.earlier:
            names = [event.get("names") for event in log.newest(EVENT)]
            found |= any(isinstance(each, list) and name in each for each in names)
            log.forget()
        return found

    def _drawn_by_loaders(self) -> set[int]:
        return {
            id(each.value)
            for source in self._progress.sources.values()
            for each in variables_inside(Variable("loader", source.loader))
        }


def _list_name(name: str) -> str:
    """Return the name of the list that holds the object: all members share one line and one
    tracked name.
    """
    row, _, rest = name.rpartition("[")
    return row if row and rest.endswith("]") else name


def _forgotten_object(name: str, value: Any, each: str) -> LostValue:
    does = f"is drawn from in each {each}" if is_random(value) else f"changes from {each} to {each}"
    line = (
        f"{does}, and is not tracked: a resume begins it anew. {_warning_line(name, 'it', value)}"
    )
    return LostValue("forgotten", name, f"{name} ({_kind_name(value)}) {line}")


def _forgotten_optimizer(optimizer: Any, what: str) -> LostValue:
    name = _name_of(optimizer)
    line = (
        f"{name or 'an optimizer'} ({_kind_name(optimizer)}) steps "
        "what the run saves, and is not tracked: a resume loses "
        f"{what} and goes on with other weights. {_warning_line(name, 'optimizer', optimizer)}"
    )
    return LostValue("forgotten", name or "optimizer", line)


def _candidates(objects: Mapping[str, Any]) -> Iterator[Variable]:
    """Variables that the loop carries: schedulers, scalers, modules, random generators, and
    averages of a model.

    These are containers of arrays with the shapes of a tracked module's. `objects`: the tracked
    ones.
    """
    held = {id(value): name for name, value in objects.items()}
    modules = [each for each in objects.values() if is_module(each)]
    trained = [
        shapes(each)
        for module in modules
        for each in ([*module.parameters()], module_arrays(module))
        if not any("Uninitialized" in type(one).__name__ for one in each)  # lazy parameters
    ]
    found = find_variables({}, held).variables
    live = {id(each.value) for each in found if each.live}
    of_hooks = {id(each.value): Variable(each.name, each.value) for _, each in hook_values(objects)}
    found += [
        each for place, each in of_hooks.items() if place not in live and is_candidate(each.value)
    ]
    in_loaders = {
        id(each.value)
        for one in found
        if _is_loader(one.value)
        for each in variables_inside(one)
        if is_random(each.value)
    }
    codes = {frame.f_code for frame in script_frames()}
    for variable in found:
        value, owner = variable.value, variable.owner
        if id(value) in held or not variable.live or (owner is not None and is_module(owner)):
            continue
        if is_random(value):
            name = variable.path.replace(":", ".").rpartition(".")[2]
            if id(value) not in in_loaders and not any(
                accesses_member(code, name, "seed") for code in codes
            ):
                yield variable
        elif ((is_module(value) or has_own_state(value)) and not _is_optimizer(value)) or (
            (arrays := arrays_in_container(value)) and shapes(arrays) in trained
        ):
            yield variable


def _is_optimizer(value: Any) -> bool:
    return "param_groups" in getattr(value, "__dict__", {})


def _is_loader(value: Any) -> bool:
    return hasattr(type(value), "__iter__") and hasattr(value, "__dict__") and not is_module(value)


class _HeldObjects(msgspec.Struct):
    """The objects that tracked objects hold in attributes and containers, by ids, and the memory of
    their arrays.

    A tracked object with a state_dict() of its own may save any of them.
    """

    _module: Any
    _tracked: Tracked
    _objects: dict[int, Any] = {}
    _places: set[int] = set()

    def holds(self, value: Any) -> bool:
        return id(value) in self._collect_objects() or self._is_too_large

    def __contains__(self, place: object) -> bool:
        """Whether it is the memory of an array that one of them is."""
        self._collect_objects()
        return place in self._places or self._is_too_large

    @property
    def _is_too_large(self) -> bool:
        return len(self._objects) >= MOST_OBJECTS

    def _collect_objects(self) -> dict[int, Any]:
        waiting = (
            [] if self._objects else [(each, DEEPEST) for each in self._tracked.objects.values()]
        )
        while waiting and not self._is_too_large:
            value, depth = waiting.pop()
            if type(value) in ATOMS or isinstance(value, type) or id(value) in self._objects:
                continue
            self._objects[id(value)] = value
            self._places.add(self._module.memory_of(value))
            if depth and not self._module.omits_references(value):
                waiting += [(each, depth - 1) for each in _members(value)]
        return self._objects


def _members(value: Any) -> list[Any]:
    if isinstance(value, AttributeSet):
        return [*value.values().values(), value.target]
    if isinstance(value, dict):
        return [*value.values()]
    if isinstance(value, list | tuple | set):
        return [*value]
    return (
        []
        if callable(getattr(value, "__code__", None))
        else [*(own_attributes(value) or {}).values()]
    )


def _kind_name(value: Any) -> str:
    return type(value).__name__


def _name_of(wanted: Any) -> str:
    """The name by which the script's frames know an object:
    `optimizer`, `agent.optimizer`, `optimizers[0]`.
    """
    for frame in reversed(script_frames()):
        for names in (frame.f_locals, frame.f_globals):
            for name, value in list(names.items()):
                if value is wanted:
                    return name
            for name, value in list(names.items()):
                if inner := "" if name.startswith("__") else _path_inside(value, wanted):
                    return f"{name}{inner}"
    return ""


def _path_inside(value: Any, wanted: Any) -> str:
    if isinstance(value, list | tuple | dict) and len(value) <= MOST_ITEMS:
        items = value.items() if isinstance(value, dict) else enumerate(value)
        return next((f"[{key!r}]" for key, each in items if each is wanted), "")
    return next(
        (f".{key}" for key, each in (own_attributes(value) or {}).items() if each is wanted), ""
    )


def _warning_line(name: str, otherwise: str, value: Any) -> str:
    key = name.rpartition(".")[2].partition("[")[0] or otherwise
    how = f"Write Run(..., dict(..., {key}={name or otherwise}))"
    return how if name or not _is_optimizer(value) else f"{how}, and make it before the run"
