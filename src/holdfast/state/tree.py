"""The tree: a state as JSON with its leaves beside it, and back. Nothing in a file is executed or imported.

In the tree null, booleans, short integers, finite floats and strings stand for themselves and an array is a list.
Everything else is an object with exactly one key, its tag. Mappings are always wrapped, so that no key of a user's is
ever taken for a tag. Containers that a state holds in two places come back as two; leaves come back as one.
"""

from __future__ import annotations

import base64
import dataclasses
import enum
import json
import math
import struct
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple
from urllib.parse import quote

import msgspec

from ..errors import UsageError
from . import codec
from .codec import NODES, Block, Node
from .untree import FACTORIES, INLINE_BYTES, MAX_DEPTH, Placeholder, enough_stack, unflatten

__all__ = ["FACTORIES", "INLINE_BYTES", "MAX_DEPTH", "Flat", "Placeholder", "flatten", "types_in", "unflatten"]


class Flat(NamedTuple):
    """A state taken apart."""

    tree: Any  # JSON
    leaves: dict[str, Block]


def flatten(state: Any) -> Flat:
    """Take `state` apart; blocks share memory with its tensors and arrays where their layout allows.

    Raises:
        UsageError: something in it cannot be saved; the message names its place.
    """
    flattener = _Flattener()
    with enough_stack():
        tree = flattener.walk(state)
    return Flat(tree, flattener.blocks())


def types_in(state: Any) -> set[type]:
    """The user's own types in `state`: enums, dataclasses, named tuples. What `types=` wants to restore it."""
    flattener = _Flattener()
    with enough_stack():
        flattener.walk(state)
    return flattener.types


class _Step(NamedTuple):
    """From a container to a member: as Python spells it, and as leaf keys do."""

    spelled: str
    part: str


def _item(key: Any) -> _Step:
    if isinstance(key, str):
        return _Step(f"[{json.dumps(key, ensure_ascii=False)}]", quoted(key))
    return _Step(f"[{key!r}]", quoted(str(key)))


def quoted(text: str) -> str:
    # quote() leaves these alone besides letters, digits and "_.-"
    return quote(text, safe="", errors="surrogatepass").replace("~", "%7E") or "%"


def _attribute(name: str) -> _Step:
    return _Step(f".{name}", quoted(name))


class _Found(NamedTuple):
    """A leaf, and the node that waits for its key."""

    key: str
    value: Any
    node: dict[str, Any]


class _Flattener:
    def __init__(self) -> None:
        self.types: set[type] = set()
        self._steps: list[_Step] = []
        self._active: set[int] = set()
        self._depth = 0
        self.hashing = 0  # inside so many keys and sets, which hold no leaves
        self._nodes: dict[int, dict[str, Any]] = {}
        self._found: dict[str, list[_Found]] = {}

    def walk(self, value: Any, step: _Step | None = None) -> Any:
        kind = type(value)
        if _stands_for_itself(value, kind):
            return value
        if id(value) in self._active:
            raise UsageError(f"cannot save {self._place(step)}: it contains itself")
        if self._depth >= MAX_DEPTH:
            raise UsageError(f"cannot save {self._place(step)}: it lies more than {MAX_DEPTH} containers deep")
        self._active.add(id(value))
        self._depth += 1
        if step:
            self._steps.append(step)
        try:
            return self._node(value, kind)
        finally:
            if step:
                self._steps.pop()
            self._depth -= 1
            self._active.remove(id(value))

    def _node(self, value: Any, kind: type) -> Any:
        name = codec.type_name(kind)
        registered = codec.REGISTERED.get(name)
        if registered is not None and registered.kind is kind:
            return {"custom": [name, self.walk(registered.encode(value))]}
        if kind in _WALKERS:
            return _WALKERS[kind](self, value)
        if kind in NODES:
            return self._tagged(self._asked(NODES[kind], value))
        for test, walker in _USERS:
            if test(value):
                self.types.add(kind)
                return walker(self, value)
        return self._foreign(value, kind)

    def _tagged(self, node: Node) -> dict[str, Any]:
        return {node.tag: self.walk(node.content)}

    def _asked(self, ask: Callable[[Any], Any], value: Any) -> Any:
        """What `ask` says; its complaint gets the place."""
        try:
            return ask(value)
        except UsageError as error:
            raise self._refusal(value, str(error)) from error

    def _foreign(self, value: Any, kind: type) -> Any:
        framework = codec.framework(kind)
        if framework is None:
            raise self._refusal(value)
        node = self._asked(codec.adapter(framework).node, value)
        return self.leaf(value, framework) if node is None else self._tagged(node)

    def leaf(self, value: Any, kind: str) -> dict[str, Any]:
        """The node for a leaf, filled in when it is known which leaves share their memory."""
        if self.hashing:
            raise self._refusal(value, "it stands in a set or in a mapping's key")
        if id(value) not in self._nodes:
            node = self._nodes[id(value)] = {"leaf": ""}
            key = "/".join(step.part for step in self._steps) or "value"
            self._found.setdefault(kind, []).append(_Found(key, value, node))
        return self._nodes[id(value)]

    def blocks(self) -> dict[str, Block]:
        """The leaves under their keys; their nodes are filled in."""
        blocks: dict[str, Block] = {}
        for found in self._found.values():
            for share in codec.shares([each.value for each in found]):
                _settle(share, found, blocks)
        return blocks

    def hashed(self, value: Any, step: _Step) -> Any:
        self.hashing += 1
        try:
            return self.walk(value, step)
        finally:
            self.hashing -= 1

    def pairs(self, mapping: Any) -> list[Any]:
        return [[self.hashed(key, _item(key)), self.walk(value, _item(key))] for key, value in mapping.items()]

    def items(self, values: Iterable[Any]) -> list[Any]:
        return [self.walk(value, _item(index)) for index, value in enumerate(values)]

    def members(self, values: Iterable[Any]) -> list[Any]:
        nodes = [self.hashed(value, _item(index)) for index, value in enumerate(values)]
        return sorted(nodes, key=msgspec.json.encode)

    def fields(self, values: Iterable[tuple[str, Any]]) -> dict[str, Any]:
        return {name: self.walk(value, _attribute(name)) for name, value in values}

    def _place(self, step: _Step | None = None) -> str:
        return "state" + "".join(each.spelled for each in [*self._steps, *([step] if step else [])])

    def _refusal(self, value: Any, why: str = "") -> UsageError:
        kind = type(value)
        name = kind.__qualname__ if kind.__module__ == "builtins" else codec.type_name(kind)
        article = "an" if name[0] in "aeiouAEIOU" else "a"
        if not why and hasattr(value, "state_dict"):
            why = "save its state_dict()"
        advice = why or f"register a pair of functions for it: holdfast.register({kind.__qualname__}, encode, decode)"
        return UsageError(f"cannot save {self._place()} ({article} {name}): {advice}")

    def refuse(self, value: Any, why: str = "") -> Any:
        raise self._refusal(value, why)


def _settle(share: codec.Share, found: list[_Found], blocks: dict[str, Block]) -> None:
    """Give a block its key, and tell the nodes of the leaves in it."""
    first = found[min(share.places)].key
    key = _unused(first if None in share.places.values() else f"{first}@storage", blocks)
    blocks[key] = share.block
    for index, view in share.places.items():
        node = found[index].node
        node.clear()
        node.update({"leaf": key} if view is None else {"view": {"leaf": key, **view}})


def _unused(key: str, blocks: dict[str, Block]) -> str:
    """Keys such as 1 and "1" are quoted alike; "~" is never in a quoted one."""
    number, chosen = 1, key
    while chosen in blocks:
        number += 1
        chosen = f"{key}~{number}"
    return chosen


def _stands_for_itself(value: Any, kind: type) -> bool:
    if kind is str:
        return _is_text(value)
    if kind is int:
        return bool(-(2**53) <= value <= 2**53)
    if kind is float:
        return math.isfinite(value) and (value != 0 or math.copysign(1, value) == 1)
    return value is None or kind is bool


def _is_text(text: str) -> bool:
    """JSON has no lone surrogates, which os.fsdecode makes."""
    return text.isascii() or not any("\ud800" <= letter <= "\udfff" for letter in text)


def _walk_dict(flattener: _Flattener, value: dict[Any, Any]) -> Any:
    if all(type(key) is str and _is_text(key) for key in value):
        return {"dict": {key: flattener.walk(each, _item(key)) for key, each in value.items()}}
    return {"items": flattener.pairs(value)}


def _walk_ordered(flattener: _Flattener, value: OrderedDict[Any, Any]) -> Any:
    if not value.__dict__:
        return {"ordered": flattener.pairs(value)}
    # a module's state_dict() carries its versions so, in _metadata
    return {"ordered_with": [flattener.pairs(value), flattener.fields(value.__dict__.items())]}


def _walk_defaultdict(flattener: _Flattener, value: defaultdict[Any, Any]) -> Any:
    factory = value.default_factory
    name = None if factory is None else getattr(factory, "__name__", "")
    if name is not None and FACTORIES.get(name) is not factory:
        return flattener.refuse(value, f"its factory {factory!r} is none of {', '.join(FACTORIES)}")
    return {"defaultdict": [name, flattener.pairs(value)]}


def _walk_bytes(flattener: _Flattener, value: bytes) -> Any:
    if len(value) > INLINE_BYTES and not flattener.hashing:
        return flattener.leaf(value, "bytes")
    return {"bytes": base64.b64encode(value).decode()}


_WALKERS: dict[type, Callable[[_Flattener, Any], Any]] = {
    int: lambda _, value: {"int": hex(value)},
    float: lambda _, value: {"float": struct.pack(">d", value).hex()},
    str: lambda _, value: {"str": value.encode("utf-8", "surrogatepass").hex()},
    bytes: _walk_bytes,
    list: lambda flattener, value: flattener.items(value),
    tuple: lambda flattener, value: {"tuple": flattener.items(value)},
    set: lambda flattener, value: {"set": flattener.members(value)},
    frozenset: lambda flattener, value: {"frozenset": flattener.members(value)},
    dict: _walk_dict,
    OrderedDict: _walk_ordered,
    defaultdict: _walk_defaultdict,
    Counter: lambda flattener, value: {"counter": flattener.pairs(value)},
    deque: lambda flattener, value: {"deque": [value.maxlen, flattener.items(value)]},
}


def _is_named_tuple(value: Any) -> bool:
    return isinstance(value, tuple) and isinstance(getattr(type(value), "_fields", None), tuple)


def _is_dataclass(value: Any) -> bool:
    return bool(dataclasses.is_dataclass(value)) and not isinstance(value, type)


def _walk_enum(_: _Flattener, value: enum.Enum) -> Any:
    name = codec.type_name(type(value))
    return {"flag": [name, value.value]} if isinstance(value, enum.Flag) else {"enum": [name, value.name]}


def _walk_dataclass(flattener: _Flattener, value: Any) -> Any:
    kind = type(value)
    try:
        object.__new__(kind)  # as it will be restored
    except TypeError:
        return flattener.refuse(value)
    names = dict.fromkeys(field.name for field in dataclasses.fields(kind) if hasattr(value, field.name))
    names |= dict.fromkeys(getattr(value, "__dict__", ()))
    return {"dataclass": [codec.type_name(kind), flattener.fields((name, getattr(value, name)) for name in names)]}


def _walk_named_tuple(flattener: _Flattener, value: Any) -> Any:
    kind = type(value)
    if len(kind._fields) != len(value) or getattr(value, "__dict__", None):
        return flattener.refuse(value)
    nodes = [flattener.walk(each, _attribute(name)) for name, each in zip(kind._fields, value, strict=True)]
    return {"namedtuple": [codec.type_name(kind), nodes]}


_USERS: list[tuple[Callable[[Any], bool], Callable[[_Flattener, Any], Any]]] = [
    (lambda value: isinstance(value, enum.Enum), _walk_enum),
    (_is_named_tuple, _walk_named_tuple),
    (_is_dataclass, _walk_dataclass),
]
