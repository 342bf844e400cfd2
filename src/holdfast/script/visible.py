"""Visible: the variables of the script that runs the loop, and their values. Only reads; calls no
code of the script.

Numbers and texts of the functions that lead to the loop come first, innermost first. The rest is
outermost first: names of the module, names of these functions, parts of loaders, and attributes of
tracked objects. Attributes of objects are variables too, as `env.state` and `loader.dataset.calls`.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from contextlib import suppress
from functools import lru_cache
from types import (
    BuiltinFunctionType,
    CodeType,
    FrameType,
    FunctionType,
    MethodType,
    ModuleType,
    NoneType,
)
from typing import Any, NamedTuple

from ..stateful.objects import adapter_for
from ..stateful.watch import stack_frames
from .carried import CarriedVariables, globals_used_by, variables_carried_past

MOST = 1000  # variables
DEEPEST = 4  # attributes in a row
TRAINED = "requires_grad"  # an attribute of parameters that no state_dict() has
_WRAPPED = ".env"  # wrappers of an environment stand in long rows: they do not count as deeper
MOST_ITEMS = 50  # of a list or a dict whose members are objects
_PASSED_OVER = (
    ModuleType,
    FunctionType,
    BuiltinFunctionType,
    MethodType,
    CodeType,
    FrameType,
    type,
    property,
)
# equal ones may be one object
_SHARED = (int, float, complex, str, bytes, tuple, frozenset, range, NoneType)
_OURS, _OURS_SHOWN = "holdfast", "holdfast.data"
_DISPLAYS = {"tqdm", "rich", "progressbar", "alive_progress", "enlighten", "IPython", "ipywidgets"}
# of Python's own modules, those whose objects hold a script's values
_PLAIN = {"argparse", "types", "__main__"}


class Variable(NamedTuple):
    """One variable, or one attribute of an object that a variable holds."""

    path: str  # "best", "train:best" for a local of train(), "env.state", "loader 'train'.dataset"
    value: Any
    live: bool = True  # the next pass may read it before it is assigned
    stored: bool = False  # code that is still to run assigns it
    owner: Any = None  # the object that has it as an attribute

    def member(self, name: str, value: Any) -> Variable:
        """An attribute or an item of this one."""
        return Variable(f"{self.path}{name}", value, self.live, owner=self.value)


def script_frames() -> list[FrameType]:
    """The script's frames on the stack of this call, outermost first."""
    ours = [
        each
        for each in stack_frames()
        if is_user_code(each.f_code.co_filename, str(each.f_globals.get("__name__", "")))
    ]
    return ours[::-1]


@lru_cache(maxsize=1024)
def is_user_code(file: str, module: str) -> bool:
    """Whether code from `file` belongs to the script:
    it is neither Python's, nor installed, nor Holdfast's.
    """
    if (
        module.partition(".")[0] == _OURS
        or module in sys.stdlib_module_names
        or file.startswith("<frozen")
    ):
        return False
    import sysconfig  # takes a while; only a run that looks at variables needs it

    places = sysconfig.get_paths()
    installed = [places[name] for name in ("purelib", "platlib", "stdlib", "platstdlib")]
    return (
        not any(file.startswith(f"{place}/") for place in installed)
        and "/site-packages/" not in file
    )


class FoundVariables(NamedTuple):
    """The script's variables, as far as they were read."""

    variables: list[Variable]
    whole: bool  # whether the limit `MOST` was not reached


def find_variables(roots: Mapping[str, Any], held: Mapping[int, str]) -> FoundVariables:
    """The script's variables, then those of `roots`, each object once.

    `held`: ids of the tracked objects. Attributes that they save themselves are omitted; their
    others are not.
    """
    walk, named = _AttributeFinder(held), list(_named_variables(script_frames()))
    plain = [each for each in reversed(named) if ":" in each.path and type(each.value) in _SHARED]
    found = [each for variable in plain for each in walk(variable, 0)]
    for variable in (*named, *(Variable(path, value) for path, value in roots.items())):
        found += walk(variable, 0)
    return FoundVariables(found, walk.left > 0)


def variables_inside(variable: Variable) -> Iterator[Variable]:
    """A variable and the variables inside its object."""
    return _AttributeFinder({})(variable, 0)


def _named_variables(found: list[FrameType]) -> Iterator[Variable]:
    seen: set[int] = set()
    for frame in found:
        uses = variables_carried_past(frame.f_code, frame.f_lasti)
        if id(frame.f_globals) not in seen:
            seen.add(id(frame.f_globals))
            at_top = frame.f_locals is frame.f_globals
            yield from _global_variables(frame.f_globals, uses if at_top else None)
        if frame.f_locals is not frame.f_globals:
            where = frame.f_code.co_name
            for name, value in dict(frame.f_locals).items():
                yield Variable(f"{where}:{name}", value, name in uses.live, name in uses.stored)


def _global_variables(names: dict[str, Any], uses: CarriedVariables | None) -> Iterator[Variable]:
    found = dict(names)
    used = _names_used_by(found) if uses else ()
    for name, value in found.items():
        if name.startswith("__"):
            continue
        spoken_of = uses is None or name in uses.live or name in used
        yield Variable(name, value, spoken_of, uses is None or name in uses.stored, owner=names)


def _names_used_by(module: dict[str, Any]) -> frozenset[str]:
    """Return the globals that the functions and classes of a module read."""
    functions = [
        each
        for value in module.values()
        for each in (vars(value).values() if isinstance(value, type) else [value])
        if isinstance(each, FunctionType)
    ]
    return frozenset[str]().union(*(globals_used_by(each.__code__) for each in functions))


class _AttributeFinder:
    """Finds the attributes of the objects that a variable holds, recursively."""

    def __init__(self, held: Mapping[int, str]) -> None:
        self._held = held
        self._entered: set[int] = set()
        self.left = MOST

    def __call__(self, variable: Variable, depth: int) -> Iterator[Variable]:
        value = variable.value
        if isinstance(value, FunctionType) and depth <= DEEPEST:
            for each in _variables_of_function(value, variable):
                yield from self(each, depth + 1)
        if self.left <= 0 or isinstance(value, _PASSED_OVER) or is_ours(value) or is_display(value):
            return
        held = id(value) in self._held
        members = _members(variable, held=held)
        if members is None:
            if id(value) not in self._entered:
                self.left -= 1
                yield variable
            # a path by a live variable may be found
            if variable.live and not isinstance(value, _SHARED):
                self._entered.add(id(value))
            return
        if id(value) in self._entered or depth > DEEPEST:
            return
        self._entered.add(id(value))
        if not held and not isinstance(value, dict | list | tuple):
            self.left -= 1
            yield variable
        for member in members:
            yield from self(member, depth + (not member.path.endswith(_WRAPPED)))


def _variables_of_function(function: FunctionType, variable: Variable) -> list[Variable]:
    """Return the values that a function of the script keeps:
    its attributes, and variables of an outer function.
    """
    code = function.__code__
    if not is_user_code(code.co_filename, function.__module__ or ""):
        return []
    found = [
        variable.member(f".{name}", each)
        for name, each in vars(function).items()
        if not name.startswith("_")
    ]
    for name, cell in zip(code.co_freevars, function.__closure__ or (), strict=True):
        with suppress(ValueError):  # it has no value yet
            if not isinstance(cell.cell_contents, FunctionType):
                found.append(
                    Variable(
                        f"{code.co_name}:{name}", cell.cell_contents, variable.live, stored=True
                    )
                )
    return found


def is_display(value: Any) -> bool:
    """Whether it shows progress to people: nothing that a step does depends on it."""
    return any(kind.__module__.partition(".")[0] in _DISPLAYS for kind in type(value).__mro__)


def _state_keys(value: Any) -> set[str]:
    with suppress(Exception):  # an object's own method may raise anything
        return {*value.state_dict()}
    return set()


def is_ours(value: Any) -> bool:
    module = type(value).__module__
    return module.partition(".")[0] == _OURS and not module.startswith(_OURS_SHOWN)


def _members(variable: Variable, *, held: bool) -> list[Variable] | None:
    """Return the members of a value that are visited in turn; None for a value without members."""
    value = variable.value
    if isinstance(value, dict | list | tuple):
        items = (
            list(value.items() if isinstance(value, dict) else enumerate(value))
            if len(value) <= MOST_ITEMS
            else []
        )
        if all(_attributes(each) is None for _, each in items):
            return None
        return [variable.member(f"[{name!r}]", each) for name, each in items]
    attributes = _attributes(value)
    if attributes is None or (not held and has_own_state(value) and not is_module(value)):
        return None
    if is_module(value):
        return _module_attributes(variable, attributes)
    # such as an optimizer: attributes that the run does not save
    if held and adapter_for(value) is not None:
        saved = {*_state_keys(value), "optimizer", "defaults"}
        attributes = {
            name: each for name, each in attributes.items() if name not in saved and name[:1] != "_"
        }
    return [
        variable.member(f".{name}", each)
        for name, each in attributes.items()
        if not name.startswith("__")
    ]


def has_own_state(value: Any) -> bool:
    """Whether it has a state_dict() and is no loader: a loader might begin to read."""
    kind = type(value)
    stateful = callable(getattr(kind, "state_dict", None)) and callable(
        getattr(kind, "load_state_dict", None)
    )
    return stateful and (
        is_module(value) or not (hasattr(kind, "__iter__") or hasattr(kind, "__next__"))
    )


def is_array(kind: type, *others: str) -> bool:
    """Whether the class is an array of NumPy, torch or JAX,
    or has one of the `others` among its names.
    """
    return any(each.__name__ in ("Tensor", "ndarray", "Array", *others) for each in kind.__mro__)


def is_module(value: Any) -> bool:
    """Whether it is a framework's module: its parts are modules, and its state is in their
    parameters and buffers.
    """
    attributes = _attributes(value)
    return attributes is not None and "_modules" in attributes and "_parameters" in attributes


def _attributes(value: Any) -> dict[str, Any] | None:
    """The attributes of an object that is made of them;
    None for a number, an array, a container, a generator.
    """
    kind = type(value)
    top = kind.__module__.partition(".")[0]
    if top in ("numpy", "builtins") or (top in sys.stdlib_module_names and top not in _PLAIN):
        return None
    if hasattr(kind, "__next__") or is_array(kind, "Generator"):
        return None
    return own_attributes(value)


def own_attributes(value: Any) -> dict[str, Any] | None:
    """What the object's own `__dict__` holds;
    None if it has none. No code of its class is called.
    """
    try:
        found = object.__getattribute__(value, "__dict__")
    except AttributeError:
        return None
    return dict(found) if isinstance(found, dict) else None


_HOOKS = ("_hooks", "_hooks_with_kwargs", "_hooks_always_called")
_OF_MODULES = {
    *(
        "_parameters",
        "_buffers",
        "_modules",
        "_non_persistent_buffers_set",
        "_is_full_backward_hook",
        "_version",
    ),
    *(
        "_compiled_call_impl",
        "_state_dict_pre_hooks",
        "_load_state_dict_post_hooks",
        "_is_hf_initialized",
    ),
}


def _module_attributes(variable: Variable, attributes: Mapping[str, Any]) -> list[Variable]:
    """Return a framework's module's attributes besides its state, which parameters are trained, and
    its submodules' attributes.
    """
    parts = [(name, each) for name, each in attributes["_modules"].items() if each is not None]
    own = [
        (name, each)
        for name, each in attributes.items()
        if name not in _OF_MODULES and not name.endswith(_HOOKS)
    ]
    own += [
        (name, attributes["_buffers"].get(name))
        for name in attributes.get("_non_persistent_buffers_set", ())
    ]
    trained = tuple(
        name for name, each in attributes["_parameters"].items() if getattr(each, TRAINED, False)
    )
    flags = (
        [(TRAINED, trained)]
        if any(each is not None for each in attributes["_parameters"].values())
        else []
    )
    return [variable.member(_submodule_code(name), each) for name, each in own + flags + parts]


def _submodule_code(name: str) -> str:
    """Return the code by which a script reaches a part of a module."""
    if name.isdecimal():
        return f"[{name}]"
    return f".{name}" if name.isidentifier() else f'.get_submodule("{name}")'
