"""Witness: in a drilled run, notes at each safe point which batch was consumed and what the
script's variables hold.

The drill compares these notes: a variable that differs only after a resume was not restored.
Nothing is drawn, iterated or changed here, and a variable that cannot be read is noted as such.
"""

from __future__ import annotations

import datetime as dt
import dis
import itertools
import math
import random
import sys
import time
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from types import CodeType, FunctionType
from typing import Any

import msgspec

from ..errors import UsageError
from ..state import rng, tree
from ..state.captured import AttributeSet, is_frozen
from ..stateful.objects import OBJECTS, adapter_for, is_generator
from ..store import format
from .visible import (
    MOST,
    Variable,
    find_variables,
    has_own_state,
    is_array,
    is_module,
    is_user_code,
    variables_inside,
)

LARGEST_BYTES = 32 << 20  # most bytes of one variable; four times as much for all of them
MOST_MEMBERS = 20_000
_CONTAINERS = (list, tuple, dict, set, frozenset, deque)
_SHORT = 48  # characters of a value that is shown as it is
_NEAR_S = 30 * 86400.0  # a number this near the present time is a time

DRAWS = frozenset(
    [
        *(
            "random",
            "randint",
            "randrange",
            "rand",
            "randn",
            "randperm",
            "rand_like",
            "randn_like",
            "getrandbits",
        ),
        *(
            "choice",
            "choices",
            "shuffle",
            "sample",
            "permutation",
            "multinomial",
            "bernoulli",
            "default_rng",
        ),
        *("normal", "uniform", "integers", "standard_normal", "gauss"),
        *("normal_", "uniform_", "random_", "bernoulli_", "exponential_"),
    ]
)
_CHANGES = frozenset(
    ("append", "extend", "add", "pop", "update", "insert", "clear", "sort", "reverse", "remove")
)
_DEEPEST = 4

UNREAD = "?"  # means: no comparable digest


class VariableFacts(msgspec.Struct, frozen=True, omit_defaults=True):
    """What kind of variable it is."""

    # number | text | nothing | container | array | generator | stateful | object | iterator | other
    kind: str
    type: str
    owner: str = ""  # the type of the object that has it as an attribute
    owner_saves: bool = False  # that object has a state_dict()
    owner_tracked: str = ""  # and is tracked under this name
    live: bool = True
    stored: bool = False
    tracked: str = ""  # it is tracked itself, under this name
    in_loader: bool = False  # a loader draws from it
    clock: bool = False  # it holds a time near the present
    role: str = ""  # scheduler | scaler | optimizer | module, by what it can do
    frozen: bool = False  # it is an attribute of an object that cannot be changed in place
    renewed: bool = False  # the member of a container that has it was another object before
    installed: bool = False  # the class of the object that has it belongs to an installed package
    bag: str = ""  # of a container: a digest of its members in any order
    unread: str = ""  # the call by which its class can be compared and saved


msgspec.json.Decoder(VariableFacts)  # made here for the reason that `format` has


class VariableRecorder:
    """Records the script's variables at the safe points of one attempt. `held`: tracked
    objects by name.
    """

    def __init__(self, held: Mapping[str, Any]) -> None:
        self._held = {id(value): name for name, value in held.items()}
        fields = [(name, each) for name, each in held.items() if isinstance(each, AttributeSet)]
        self._fields = {
            (id(each.target), field): name for name, each in fields for field in each.names
        }
        self._in_loaders: set[int] = set()
        # ids of objects in containers that have attributes, by path
        self._members: dict[str, int] = {}
        self._renewed: set[str] = set()
        self._batches: list[str] = []
        self._last: dict[str, str] = {}
        self._about: dict[str, VariableFacts] = {}
        self.begun = False
        self._whole = True  # whether all variables were read each time

    def note_batch(self, batch: Any) -> None:
        """Record that the loop takes `batch`, which it may change."""
        self._batches.append(_safe_comparison_text(batch, LARGEST_BYTES)[0])

    def record_changes(self, roots: Mapping[str, Any], more: Mapping[str, Any]) -> dict[str, Any]:
        """Return as an event's fields what changed since the last call. `more`: values to
        record under our own names.
        """
        self.begun = True
        values, about = self._read_variables(roots, more)
        gone = [path for path in self._last if path not in values]
        changed = {path: value for path, value in values.items() if self._last.get(path) != value}
        new = {path: each for path, each in about.items() if self._about.get(path) != each}
        self._last, self._about = values, about
        batch, self._batches = "+".join(self._batches), []
        return {
            "batch": batch,
            "values": changed,
            "gone": gone,
            "about": msgspec.to_builtins(new),
            **({} if self._whole else {"cut": MOST}),
            "rng": {name: _digest_of(state)[0] for name, state in rng.capture().items()},
        }

    def note_loader_generators(self, loaders: Iterable[Any]) -> None:
        """Remember the generators that these loaders draw from."""
        for loader in loaders:
            found = variables_inside(Variable("loader", loader))
            self._in_loaders |= {
                id(each.value) for each in found if _kind(each.value) == "generator"
            }

    def _read_variables(
        self, roots: Mapping[str, Any], more: Mapping[str, Any]
    ) -> tuple[dict[str, str], dict[str, VariableFacts]]:
        values: dict[str, str] = {}
        about: dict[str, VariableFacts] = {}
        left = 4 * LARGEST_BYTES
        found = find_variables(roots, self._held)
        self._whole = self._whole and found.whole
        for variable in [*found.variables, *itertools.starmap(Variable, more.items())]:
            if variable.path in values:
                continue
            digest, size, unread = _safe_comparison_text(variable.value, min(left, LARGEST_BYTES))
            left -= size
            values[variable.path] = digest
            about[variable.path] = self._variable_facts(variable, unread)
        return values, about

    def _variable_facts(self, variable: Variable, unread: str) -> VariableFacts:
        value, owner = variable.value, variable.owner
        is_object = owner is not None and not isinstance(owner, dict | list | tuple)
        return VariableFacts(
            kind=_kind(value),
            type=type(value).__name__,
            owner=type(owner).__name__ if is_object else "",
            owner_saves=is_object and has_own_state(owner),
            owner_tracked=self._held.get(id(owner), "") if is_object else "",
            live=variable.live,
            stored=variable.stored,
            tracked=self._held.get(id(value), "")
            or self._fields.get((id(owner), variable.path.rpartition(".")[2]), ""),
            in_loader=id(value) in self._in_loaders,
            clock=_is_time(value),
            role=_role(value),
            frozen=is_object and is_frozen(type(owner)),
            renewed=is_object and self._is_renewed(variable.path.rpartition(".")[0], owner),
            installed=is_object and _is_installed(type(owner)),
            bag=_unordered_digest(value),
            unread="" if callable(value) else unread,
        )

    def _is_renewed(self, place: str, owner: Any) -> bool:
        """Whether another object stood at this place of a container at an earlier note."""
        if place.endswith("]") and self._members.setdefault(place, id(owner)) != id(owner):
            self._renewed.add(place)
        return place in self._renewed


def _safe_comparison_text(value: Any, largest: int) -> tuple[str, int, str]:
    """A short text to compare `value` by, the number of bytes that were read for it, and the call
    that it lacks.
    """
    try:
        return *_comparison_text(value, largest), ""
    except UsageError as error:  # it cannot be saved
        last = str(error).rpartition(": ")[2]
        return UNREAD, 0, last if last.startswith("holdfast.register(") else ""
    except Exception:  # a script's objects may raise anything
        return UNREAD, 0, ""


def _comparison_text(value: Any, largest: int) -> tuple[str, int]:
    if type(value) in (bool, int, float, str, type(None)) and len(shown := repr(value)) <= _SHORT:
        return f"={shown}", 0
    if hasattr(type(value), "__next__") or (
        isinstance(value, _CONTAINERS) and len(value) > MOST_MEMBERS
    ):
        return UNREAD, 0
    own = is_generator(value) or has_own_state(value) or adapter_for(value) is not None
    return _digest_of(OBJECTS.capture(value) if own else value, largest)


def _digest_of(content: Any, largest: int = LARGEST_BYTES) -> tuple[str, int]:
    flat = tree.flatten({"value": content})
    size = sum(block.data.nbytes for block in flat.leaves.values())
    if size > largest:
        return UNREAD, 0
    parts = [
        format.json_bytes(flat.tree),
        *(format.digest(block.data).encode() for block in flat.leaves.values()),
    ]
    return format.digest(memoryview(b"".join(parts)))[:16], size


def _kind(value: Any) -> str:
    kind = type(value)
    if value is None:
        return "nothing"
    if isinstance(value, str | bytes):
        return "text"
    if isinstance(value, bool | int | float | complex):
        return "number"
    if hasattr(kind, "__next__"):
        return "iterator"
    if isinstance(value, random.Random) or kind.__name__ in ("Generator", "RandomState"):
        return "generator"
    if isinstance(value, _CONTAINERS):
        return "container"
    if is_array(kind):
        return "array"
    if has_own_state(value):
        return "stateful"
    return "object" if hasattr(value, "__dict__") else "other"


def _role(value: Any) -> str:
    kind = type(value)
    if is_module(value):
        return "module"
    if not has_own_state(value) or not hasattr(kind, "step"):
        return ""
    if hasattr(kind, "get_scale") or hasattr(kind, "unscale_"):
        return "scaler"
    attributes = getattr(value, "__dict__", {})
    return (
        "scheduler"
        if "optimizer" in attributes
        else "optimizer"
        if "param_groups" in attributes
        else ""
    )


def _is_installed(kind: type) -> bool:
    file = getattr(sys.modules.get(kind.__module__), "__file__", None)
    return file is not None and not is_user_code(file, kind.__module__)


def _is_time(value: Any) -> bool:
    if isinstance(value, dt.datetime):
        return True
    if type(value) is not float or not math.isfinite(value) or value == 0:
        return False
    return abs(value - time.time()) < _NEAR_S or 0 <= time.monotonic() - value < min(
        _NEAR_S, time.monotonic() / 2
    )


def _unordered_digest(value: Any) -> str:
    """Return a digest of the members of a container of text, in no order; empty for any other."""
    listed = isinstance(value, list | tuple | dict) and 1 < len(value) <= MOST_MEMBERS
    if not listed or not all(type(each) is str for each in value):
        return ""
    members = sorted(value)
    under = sorted(map(repr, value.values())) if isinstance(value, dict) else []
    return format.digest(memoryview(repr((members, under)).encode("utf-8", "backslashreplace")))[
        :16
    ]


def describe_dataset(loader: Any) -> dict[str, list[str]]:
    """Return the random functions that `loader` and its dataset call,
    and the attributes that reading changes.
    """
    draws: set[str] = set()
    changes: set[str] = set()
    with suppress(Exception):  # a script's objects may raise anything
        for code in (
            code for part in _loader_parts(loader, _DEEPEST) for code in _method_codes(type(part))
        ):
            draws |= DRAWS & set(code.co_names)
            changes |= _assigned_attributes(code)
    return {"draws": sorted(draws), "changes": sorted(changes)}


def _loader_parts(loader: Any, depth: int) -> Iterator[Any]:
    """Yield the loader, and the script's objects inside it."""
    if type(loader).__module__.partition(".")[0] not in (
        "torch",
        "torchdata",
        "holdfast",
        "builtins",
    ):
        yield loader
    attributes = getattr(loader, "__dict__", {})
    for name in (
        "dataset",
        "sampler",
        "batch_sampler",
        "transform",
        "transforms",
        "target_transform",
        "collate_fn",
    ):
        part = attributes.get(name)
        for each in part if isinstance(part, list | tuple) else [part]:
            if each is not None and depth and hasattr(each, "__dict__"):
                yield from _loader_parts(each, depth - 1)


def _method_codes(kind: type) -> Iterator[CodeType]:
    """Yield the code of every method except the constructor."""
    for each in (value for parent in kind.__mro__ for value in vars(parent).items()):
        # a static method wraps its function
        name, function = each[0], getattr(each[1], "__func__", each[1])
        if (
            name != "__init__"
            and isinstance(function, FunctionType)
            and kind.__module__ == function.__module__
        ):
            yield function.__code__
            yield from (
                inner for inner in function.__code__.co_consts if isinstance(inner, CodeType)
            )


def _assigned_attributes(code: CodeType) -> set[str]:
    """Attributes that the code assigns or stores into (`self.cache[0] = ...`), and calls that
    change a container.
    """
    found, before, attribute = set(_CHANGES.intersection(code.co_names)), "", ""
    for each in dis.get_instructions(code):
        if each.opname in ("STORE_ATTR", "DELETE_ATTR"):
            found.add(each.argval)
        if each.opname in ("LOAD_ATTR", "LOAD_METHOD") and code.co_varnames[:1] == (before,):
            attribute = str(each.argval)
        if each.opname == "STORE_SUBSCR":
            found.add(attribute)
        before = str(each.argval) if each.opname.startswith("LOAD_FAST") else ""
    return found - {""}
