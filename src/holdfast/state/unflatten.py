"""The tree back into a state. It may come from a hostile file: what it says is checked, nothing is imported or run."""

from __future__ import annotations

import base64
import dataclasses
import enum
import re
import reprlib
import struct
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

from ..errors import Damaged, HoldfastError, UsageError
from . import codec
from .references import NAMED, named
from .values import MAKERS

MAX_DEPTH = 100  # of containers within each other; up to 4 JSON levels each, and Python's own stack ends at 1,000
INLINE_BYTES = 1024  # longer bytes are a leaf
FACTORIES: dict[str, type] = {kind.__name__: kind for kind in (list, dict, set, int, float, str, bool, tuple)}


@dataclasses.dataclass(frozen=True)
class Placeholder:
    """What stands for a value whose type is not at hand."""

    kind: str
    name: str
    content: Any

    def __hash__(self) -> int:  # its content may be a list
        return hash((self.kind, self.name))


def unflatten(tree: Any, leaves: Callable[[str], Any], types: Iterable[type] = (), placeholders: bool = False) -> Any:
    """Put a state together; `leaves` is asked once for each key and may return a handle in place of the leaf.

    Types that the tree names are looked up among `types` and the registered ones. With `placeholders`, what belongs to
    no type at hand or to a framework becomes a `Placeholder`, and no framework is imported.

    Raises:
        UsageError: it names types that are not at hand.
        Damaged: it is not such a tree.
    """
    reader = _Unflattener(leaves, _Types(types), placeholders)
    if not placeholders:
        _require(reader.types, tree)
    with enough_stack():
        return reader.read(tree)


@contextmanager
def enough_stack() -> Iterator[None]:
    """Our own depth ends long before Python's; what ends here was called from far down."""
    try:
        yield
    except RecursionError as error:
        raise UsageError("Python's stack is too short for this state here: see sys.setrecursionlimit") from error


class _Types:
    """Types at hand, by the names that files use."""

    def __init__(self, types: Iterable[type]) -> None:
        self._given = [*types, *(registered.kind for registered in codec.REGISTERED.values())]

    def find(self, name: str) -> type | None:
        """The type called `name`; a script's own types are also found where the script was run as another module."""
        for kind in self._given:
            if codec.type_name(kind) == name:
                return kind
        alike = {kind for kind in self._given if _same_in_main(kind, name)}
        return alike.pop() if len(alike) == 1 else None


def _same_in_main(kind: type, name: str) -> bool:
    if name.startswith("__main__."):
        return name == f"__main__.{kind.__qualname__}"
    return kind.__module__ == "__main__" and name.endswith(f".{kind.__qualname__}")


def _require(types: _Types, tree: Any) -> None:
    """Ask for every type that is missing, before anything is read."""
    missing: dict[str, set[str]] = {"types": set(), "register": set()}
    for tag, name in named(tree):
        kind = types.find(name)
        registered = kind is not None and codec.type_name(kind) in codec.REGISTERED
        if tag == "custom" and not registered:
            missing["register"].add(name)
        if tag != "custom" and kind is None:
            missing["types"].add(name)
    names = {name: name.rpartition(".")[2] for name in sorted(missing["types"] | missing["register"])}
    advice = [f"holdfast.register({names[name]}, encode, decode)" for name in sorted(missing["register"])]
    if missing["types"]:
        advice.append(f"types=[{', '.join(names[name] for name in sorted(missing['types']))}]")
    if names:
        raise UsageError(f"the checkpoint holds values of {', '.join(names)}: pass {' and '.join(advice)}")


class _Unflattener:
    def __init__(self, leaves: Callable[[str], Any], types: _Types, placeholders: bool) -> None:
        self.types = types
        self.placeholders = placeholders
        self._leaves = leaves
        self._read: dict[str, Any] = {}
        self._decoded: dict[str, Any] = {}
        self._depth = 0
        self._whole = 0  # inside so many values that are made from their leaves, not from handles of them

    def read(self, node: Any) -> Any:
        if node is None or type(node) in (bool, int, float, str):
            return node
        if self._depth >= MAX_DEPTH:
            raise Damaged(f"the tree is more than {MAX_DEPTH} containers deep")
        self._depth += 1
        try:
            if type(node) is list:
                return [self.read(each) for each in node]
            if type(node) is dict and len(node) == 1:
                return self._tagged(*next(iter(node.items())))
            raise Damaged(f"the tree holds {_shown(node)}, which is no node")
        finally:
            self._depth -= 1

    def _tagged(self, tag: str, content: Any) -> Any:
        if tag in _READERS:
            return _READERS[tag](self, content)
        if tag not in MAKERS and tag not in codec.TAGS:
            raise Damaged(f"the tree holds the unknown tag {_shown(tag)}")
        if self.placeholders:
            return self._small(tag, self.read(content))
        self._whole += 1
        try:
            return _made(tag, self.read(content))
        finally:
            self._whole -= 1

    def _small(self, tag: str, content: Any) -> Any:
        """A value that needs neither a framework nor a leaf's bytes, or else a placeholder."""
        handles = any(codec.is_stored(each) for each in (content if type(content) is list else [content]))
        return Placeholder(tag, "", content) if handles or tag in codec.TAGS else _made(tag, content)

    def leaf(self, key: Any) -> Any:
        """The leaf under `key`, or the handle of it: the same object each time."""
        if type(key) is not str:
            raise Damaged(f"the tree refers to a leaf as {_shown(key)}")
        if key not in self._read:
            try:
                self._read[key] = self._leaves(key)
            except LookupError as error:
                raise Damaged(f"the tree refers to the leaf {_shown(key)}, which does not exist") from error
        return self.decoded(key) if self._whole and codec.is_stored(self._read[key]) else self._read[key]

    def decoded(self, key: str) -> Any:
        if key not in self._decoded:
            self._decoded[key] = codec.decode_leaf(self._read[key])
        return self._decoded[key]

    def view(self, content: Any) -> Any:
        if type(content) is not dict or "leaf" not in content:
            raise Damaged(f"the tree's view is {_shown(content)}")
        self._whole += not self.placeholders
        try:
            described = {**content, "leaf": self.leaf(content["leaf"])}
        finally:
            self._whole -= not self.placeholders
        if self.placeholders:
            return Placeholder("view", content["leaf"], described)
        value = codec.adapter("torch").value
        with _sound("view"):
            return value("view", described)

    def items(self, content: Any) -> list[Any]:
        return [self.read(node) for node in _list(content)]

    def members(self, tag: str, content: Any, kind: Callable[[list[Any]], Any]) -> Any:
        members = self.items(content)
        with _sound(tag):
            made = kind(members)
            if len(made) != len(members):
                raise ValueError("a member is there twice")
            return made

    def pairs(self, content: Any) -> dict[Any, Any]:
        found = [(self.read(key), self.read(node)) for key, node in (_list(pair, 2) for pair in _list(content))]
        with _sound("mapping"):
            made = dict(found)
            if len(made) != len(found):
                raise ValueError("a key is there twice")
            return made

    def fields(self, content: Any) -> dict[str, Any]:
        if type(content) is not dict or not all(type(name) is str for name in content):
            raise Damaged(f"the tree holds {_shown(content)} in place of an object")
        return {name: self.read(node) for name, node in content.items()}

    def user(self, tag: str, content: Any) -> Any:
        name, inner = _list(content, 2)
        if type(name) is not str:
            raise Damaged(f"the tree calls a type {_shown(name)}")
        decodes = tag == "custom" and not self.placeholders  # the user's function gets leaves, not handles of them
        self._whole += decodes
        try:
            value = _CONTENTS.get(tag, _Unflattener.read)(self, inner)
        finally:
            self._whole -= decodes
        kind = self.types.find(name)
        registered = codec.REGISTERED.get(codec.type_name(kind)) if kind is not None else None
        if kind is None or (tag == "custom" and registered is None):
            if self.placeholders:
                return Placeholder(tag, name, value)
            raise UsageError(f"the checkpoint holds a value of {name}: pass types=[{name.rpartition('.')[2]}]")
        return _custom(registered, value) if tag == "custom" and registered else _restored(tag, kind, value)


_CONTENTS: dict[str, Callable[[_Unflattener, Any], Any]] = {
    "dataclass": _Unflattener.fields,
    "namedtuple": _Unflattener.items,
}


def _custom(registered: codec.Registered, value: Any) -> Any:
    try:
        return registered.decode(value)
    except Exception as error:
        name = codec.type_name(registered.kind)
        raise UsageError(f"the decode function registered for {name} failed: {error}") from error


def _restored(tag: str, kind: Any, value: Any) -> Any:
    bases = {"enum": enum.Enum, "flag": enum.Flag, "namedtuple": tuple, "dataclass": object}
    if not issubclass(kind, bases[tag]) or (tag == "dataclass" and not dataclasses.is_dataclass(kind)):
        raise UsageError(f"{codec.type_name(kind)} was a {tag} when it was saved")
    if tag == "dataclass":
        return _restored_dataclass(kind, value)
    with _sound(tag):
        if tag == "enum":
            return kind[value]
        if tag == "flag":
            return kind(value)
        if len(value) != len(kind._fields):
            raise ValueError(f"{codec.type_name(kind)} has the fields {', '.join(kind._fields)}")
        return tuple.__new__(kind, value)


def _restored_dataclass(kind: Any, values: dict[str, Any]) -> Any:
    """The instance as it was, without a call of its __init__; fields that are newer get their defaults."""
    for field in dataclasses.fields(kind):
        if field.name not in values and field.default is not dataclasses.MISSING:
            values[field.name] = field.default
        if field.name not in values and field.default_factory is not dataclasses.MISSING:
            values[field.name] = field.default_factory()
    with _sound("dataclass"):
        made = object.__new__(kind)
        for name, value in values.items():
            if name.startswith("__"):
                raise ValueError(f"{name} is no field")
            object.__setattr__(made, name, value)  # frozen ones too
        return made


def _made(tag: str, content: Any) -> Any:
    make = MAKERS[tag] if tag in MAKERS else partial(codec.adapter(codec.TAGS[tag]).value, tag)
    with _sound(tag):
        return make(content)


@contextmanager
def _sound(tag: str) -> Iterator[None]:
    """What trips in here is the tree's fault."""
    try:
        yield
    except (HoldfastError, RecursionError):
        raise
    except codec.UNSOUND as error:
        raise Damaged(f"the tree's {tag} is unsound: {type(error).__name__}: {_shown(str(error))}") from error


def _list(content: Any, length: int | None = None) -> list[Any]:
    if type(content) is not list or (length is not None and len(content) != length):
        count = "" if length is None else f" of {length}"
        raise Damaged(f"the tree holds {_shown(content)} in place of an array{count}")
    return content


def _shown(value: Any) -> str:
    return reprlib.repr(value)


def _read_int(_: _Unflattener, content: Any) -> int:
    with _sound("int"):
        if not re.fullmatch(r"-?0x[0-9a-f]+", content):
            raise ValueError(content)
        return int(content, 16)


def _read_float(_: _Unflattener, content: Any) -> float:
    with _sound("float"):
        value: float = struct.unpack(">d", bytes.fromhex(content))[0]
        return value


def _read_str(_: _Unflattener, content: Any) -> str:
    with _sound("str"):
        return bytes.fromhex(content).decode("utf-8", "surrogatepass")


def _read_bytes(_: _Unflattener, content: Any) -> bytes:
    with _sound("bytes"):
        return base64.b64decode(content, validate=True)


def _read_ordered_with(reader: _Unflattener, content: Any) -> OrderedDict[Any, Any]:
    pairs, attributes = _list(content, 2)
    made = OrderedDict(reader.pairs(pairs))
    for name, value in reader.fields(attributes).items():
        if hasattr(OrderedDict, name):
            raise Damaged(f"the tree hides {_shown(name)} of a mapping")
        made.__dict__[name] = value
    return made


def _read_defaultdict(reader: _Unflattener, content: Any) -> defaultdict[Any, Any]:
    name, pairs = _list(content, 2)
    if not (name is None or (type(name) is str and name in FACTORIES)):
        raise Damaged(f"the tree's defaultdict makes {_shown(name)}")
    return defaultdict(None if name is None else FACTORIES[name], reader.pairs(pairs))


def _read_counter(reader: _Unflattener, content: Any) -> Counter[Any]:
    made: Counter[Any] = Counter()
    dict.update(made, reader.pairs(content))  # Counter.update would count the keys
    return made


def _read_deque(reader: _Unflattener, content: Any) -> deque[Any]:
    maxlen, items = _list(content, 2)
    values = reader.items(items)
    with _sound("deque"):
        return deque(values, maxlen)


_READERS: dict[str, Callable[[_Unflattener, Any], Any]] = {
    "int": _read_int,
    "float": _read_float,
    "str": _read_str,
    "bytes": _read_bytes,
    "leaf": lambda reader, content: reader.leaf(content),
    "view": lambda reader, content: reader.view(content),
    "tuple": lambda reader, content: tuple(reader.items(content)),
    "set": lambda reader, content: reader.members("set", content, set),
    "frozenset": lambda reader, content: reader.members("frozenset", content, frozenset),
    "dict": lambda reader, content: reader.fields(content),
    "items": lambda reader, content: reader.pairs(content),
    "ordered": lambda reader, content: OrderedDict(reader.pairs(content)),
    "ordered_with": _read_ordered_with,
    "defaultdict": _read_defaultdict,
    "counter": _read_counter,
    "deque": _read_deque,
    **{tag: lambda reader, content, tag=tag: reader.user(tag, content) for tag in NAMED},  # type: ignore[misc]
}
