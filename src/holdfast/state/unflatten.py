"""Builds a state from its tree.

The file may be hostile: its content is checked, nothing is imported or run.
"""

from __future__ import annotations

import enum
import reprlib
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import msgspec

from ..errors import Damaged, HoldfastError, Mismatch, UsageError
from . import codec, tables
from .captured import is_dataclass, is_named_tuple, kept_factory
from .nodes import MAX_DEPTH, NAMED, leaf_keys, user_types
from .rows import PackedRows, Unpacker
from .validation import error_text
from .values import MAKERS

INLINE_BYTES = 1024  # longer bytes are a leaf
# letters; longer text is a leaf: its entry in the manifest, of 300 bytes, is small beside it
LONG_TEXT = 4096

_PLAIN = frozenset({type(None), bool, int, float, str})  # they stand for themselves
FACTORIES: dict[str, type] = {
    kind.__name__: kind for kind in (list, dict, set, int, float, str, bool, tuple)
}


class Placeholder(msgspec.Struct, frozen=True):
    """Takes the place of a value whose type is not available."""

    kind: str
    name: str
    content: Any

    def __hash__(self) -> int:  # its content may be a list
        return hash((self.kind, self.name))


def unflatten(
    tree: Any, leaves: Callable[[str], Any], types: Iterable[type] = (), placeholders: bool = False
) -> Any:
    """Build a state; `leaves` is called once for each key and may return a handle instead of the
    leaf.

    Types that the tree names are looked up among `types` and the registered ones. With
    `placeholders`, what belongs to no type at hand or to a framework becomes a `Placeholder`, and
    no framework is imported.

    Raises:
        UsageError: it names types that are not at hand.
        Damaged: it is not such a tree.
    """
    given = [*types, *(registered.kind for registered in codec.REGISTERED.values())]
    reader = _Unflattener(leaves, given, placeholders)
    if not placeholders:
        _require_types(reader.types, tree)
    with enough_stack():
        return reader.build(tree)


@contextmanager
def enough_stack() -> Iterator[None]:
    """Raise a RecursionError in this block as a UsageError. Our own depth limit is below Python's,
    so the caller's stack was nearly full.
    """
    try:
        yield
    except RecursionError as error:
        raise UsageError(
            "Python's stack is too short for this state here: see sys.setrecursionlimit"
        ) from error


def _find_type(types: Sequence[type], tag: str, name: str) -> Any:
    """Return the type called `name`, or None. A script's types are found even if the script ran as
    another module.

    For values that a registered function encoded, return the registration instead of a type.
    """
    alike = [kind for kind in types if codec.type_name(kind) == name]
    alike = alike[:1] or list({kind for kind in types if _same_in_main(kind, name)})
    if len(alike) != 1:
        return None
    return codec.REGISTERED.get(codec.type_name(alike[0])) if tag == "custom" else alike[0]


def _same_in_main(kind: type, name: str) -> bool:
    if name.startswith("__main__."):
        return name == f"__main__.{kind.__qualname__}"
    return kind.__module__ == "__main__" and name.endswith(f".{kind.__qualname__}")


def _require_types(types: Sequence[type], tree: Any) -> None:
    """Require every missing type before anything is read."""
    missing = sorted(
        {
            (name, tag == "custom")
            for tag, name in user_types(tree)
            if _find_type(types, tag, name) is None
        }
    )
    short = [name.rpartition(".")[2] for name, custom in missing if not custom]
    advice = [
        f"holdfast.register({name.rpartition('.')[2]}, encode, decode)"
        for name, custom in missing
        if custom
    ]
    if short:
        advice.append(f"types=[{', '.join(short)}]")
    if missing:
        names = dict.fromkeys(name for name, _ in missing)
        raise UsageError(
            f"the checkpoint holds values of {', '.join(names)}: pass {' and '.join(advice)}"
        )


class _Unflattener:
    def __init__(
        self, leaves: Callable[[str], Any], types: Sequence[type], placeholders: bool
    ) -> None:
        self.types = types
        self.placeholders = placeholders
        self._leaves = leaves
        self._read: dict[str, Any] = {}
        self._decoded: dict[str, Any] = {}
        self._depth = 0  # after an exception decoding stops, so wrong counters are harmless
        # number of enclosing values that are made from their leaves, not from handles
        self._whole = 0
        self._unread = 0  # number of handles and placeholders that were given out

    def build(self, node: Any) -> Any:
        kind = type(node)
        if kind in _PLAIN:
            return node
        if self._depth >= MAX_DEPTH:
            raise Damaged(f"the tree is more than {MAX_DEPTH} containers deep")
        self._depth += 1
        value: Any
        if kind is list:
            value = [self.build(each) for each in node]
        elif kind is dict and len(node) == 1:
            ((tag, content),) = node.items()
            reader = _READERS.get(tag)
            value = (
                self._build_framework_value(tag, content)
                if reader is None
                else reader(self, content)
            )
        else:
            raise Damaged(f"the tree holds {_short_repr(node)}, which is no node")
        self._depth -= 1
        return value

    def _build_framework_value(self, tag: str, content: Any) -> Any:
        """Build a value of one of Python's or a framework's types."""
        if tag not in MAKERS and tag not in codec.TAGS:
            raise Damaged(f"the tree holds the unknown tag {_short_repr(tag)}")
        value = self.whole(type(self).build, content)
        if self.placeholders and (
            tag in codec.TAGS
            or any(map(codec.is_stored_leaf, value if type(value) is list else [value]))
        ):
            return self._placeholder(tag, "", value)  # it needs a framework or a leaf's bytes
        return _make_value(tag, value)

    def whole(self, read: Callable[[_Unflattener, Any], Any], content: Any) -> Any:
        """Return the result of `read`, with leaves instead of handles,
        unless placeholders are requested.
        """
        self._whole += not self.placeholders
        value = read(self, content)
        self._whole -= not self.placeholders
        return value

    def read_leaf(self, key: Any) -> Any:
        """Return the leaf under `key`, or its handle: the same object each time."""
        if type(key) is not str:
            raise Damaged(f"the tree refers to a leaf as {_short_repr(key)}")
        found = self._read.get(key, self)
        if found is self:  # it was not asked for yet
            try:
                found = self._read[key] = self._leaves(key)
            except LookupError as error:
                raise Damaged(
                    f"the tree refers to the leaf {_short_repr(key)}, which does not exist"
                ) from error
        if not self._whole or not codec.is_stored_leaf(found):
            self._unread += hasattr(found, "read_into")  # its size may lie with another rank
            return found
        if key not in self._decoded:
            self._decoded[key] = codec.decode_leaf(found)
        return self._decoded[key]

    def build_view(self, content: Any) -> Any:
        if type(content) is not dict or "leaf" not in content:
            raise Damaged(f"the tree's view is {_short_repr(content)}")
        described = {**content, "leaf": self.whole(type(self).read_leaf, content["leaf"])}
        return (
            self._placeholder("view", content["leaf"], described)
            if self.placeholders
            else _make_value("view", described)
        )

    def _placeholder(self, kind: str, name: str, content: Any) -> Placeholder:
        self._unread += 1
        return Placeholder(kind, name, content)

    def build_items(self, content: Any) -> list[Any]:
        return [self.build(node) for node in _require_list(content)]

    def build_sequence(self, kind: type, content: Any, most: int | None = None) -> Any:
        """Return a list, a tuple or a deque; for packed rows whose leaves are handles,
        `PackedRows`.
        """
        if type(content) is not dict:
            values = self.build_items(content)
            return (
                deque(values, most) if kind is deque else values if kind is list else kind(values)
            )
        if content.keys() != {"packed"}:
            raise Damaged(f"the tree holds {_short_repr(content)} in place of an array")
        parts = _require_list(content["packed"])
        if self.placeholders:
            return self._placeholder("packed", "", None)
        keys = sorted(leaf_keys(content))
        counts = [_row_count(part) for part in parts]
        found = [self.read_leaf(key) for key in keys]
        made = PackedRows(
            kind,
            most,
            sum(counts),
            partial(self._unpack_rows, parts, dict(zip(keys, found, strict=True))),
        )
        return made if any(map(codec.is_stored_leaf, found)) else made.unpack()

    def _unpack_rows(self, parts: list[Any], leaves: dict[str, Any]) -> list[Any]:
        stored = {key: leaf for key, leaf in leaves.items() if codec.is_stored_leaf(leaf)}
        arrays = leaves | dict(zip(stored, codec.decode_leaves([*stored.values()]), strict=True))

        def read_leaf(key: Any) -> Any:
            if type(key) is not str or key not in arrays:
                raise Damaged(f"the tree refers to a leaf as {_short_repr(key)}")
            return arrays[key]

        unpacker = Unpacker(read_leaf, self.build, self._reader_of)
        with _errors_as_damage("packed"), codec.without_garbage_collection():
            return [row for part in parts for row in self._unpack_part(unpacker, part)]

    def _unpack_part(self, unpacker: Unpacker, part: Any) -> list[Any]:
        return (
            self.build_items(part[1])
            if part[0] is None
            else unpacker.unpack(part[1], _row_count(part))
        )

    def _reader_of(self, tag: str, name: Any) -> Callable[[Any], Any]:
        found = _find_type(self.types, tag, name) if type(name) is str else None
        if found is None:
            raise Damaged(f"the tree calls a type {_short_repr(name)}")
        return (
            partial(_decode_registered, found)
            if tag == "custom"
            else partial(_restore_instance, tag, found)
        )

    def build_key(self, node: Any) -> Any:
        """Return a key of a mapping, or a member of a set; neither contains a leaf."""
        unread, value = self._unread, self.build(node)
        if self._unread > unread and not self.placeholders:
            raise Damaged(f"the tree holds the key {_short_repr(node)}, which is a leaf or has one")
        return value

    def build_members(self, content: Any, kind: type[set[Any] | frozenset[Any]]) -> Any:
        members = [self.build_key(node) for node in _require_list(content)]
        with _key_errors_as_damage(kind.__name__, members):
            made = kind(members)
            if len(made) != len(members):
                raise ValueError("a member is there twice")
            return made

    def build_pairs(self, content: Any) -> dict[Any, Any]:
        found = [
            (self.build_key(key), self.build(node))
            for key, node in (_require_list(pair, 2) for pair in _require_list(content))
        ]
        with _key_errors_as_damage("mapping", (key for key, _ in found)):
            made = dict(found)
            if len(made) != len(found):
                raise ValueError("a key is there twice")
            return made

    def build_fields(self, content: Any) -> dict[str, Any]:
        if type(content) is not dict or not all(type(name) is str for name in content):
            raise Damaged(f"the tree holds {_short_repr(content)} in place of an object")
        return {name: self.build(node) for name, node in content.items()}

    def build_user_value(self, tag: str, content: Any) -> Any:
        name, inner = _require_list(content, 2)
        if type(name) is not str:
            raise Damaged(f"the tree calls a type {_short_repr(name)}")
        read, unread = _CONTENTS.get(tag, _Unflattener.build), self._unread
        # a user's function receives leaves
        value = self.whole(read, inner) if tag == "custom" else read(self, inner)
        found = _find_type(self.types, tag, name)
        # `_require` has reported missing types
        if found is None or (tag == "custom" and self._unread > unread):
            return self._placeholder(tag, name, value)
        return (
            _decode_registered(found, value)
            if tag == "custom"
            else _restore_instance(tag, found, value)
        )


_CONTENTS: dict[str, Callable[[_Unflattener, Any], Any]] = {
    "dataclass": _Unflattener.build_fields,
    "namedtuple": _Unflattener.build_items,
}


def _decode_registered(registered: codec.RegisteredType, value: Any) -> Any:
    try:
        return registered.decode(value)
    except Exception as error:
        name = codec.type_name(registered.kind)
        raise UsageError(f"the decode function registered for {name} failed: {error}") from error


def _restore_instance(tag: str, kind: Any, value: Any) -> Any:
    """Build a value of the class that was saved.

    Raises:
        Mismatch: the class has changed since then. That is no damage: nothing is moved, and the old
            code resumes.
    """
    base, content = _KINDS[tag]
    if not issubclass(kind, base) or (tag == "dataclass" and not is_dataclass(kind)):
        raise _class_changed(kind, f"was {_article(tag)} when it was saved")
    if type(value) is not content:
        raise Damaged(f"the tree holds a {type(value).__name__} as {_article(tag)}")
    return _MAKE[tag](kind, value)


_KINDS: dict[str, tuple[type, type]] = {  # the base of the class, and the kind of its content
    "enum": (enum.Enum, str),
    "flag": (enum.Flag, int),
    "namedtuple": (tuple, list),
    "dataclass": (object, dict),
}


def _class_changed(kind: type, how: str) -> Mismatch:
    name = codec.type_name(kind)
    return Mismatch(
        f"{name} {how}: the code has changed, "
        "the checkpoint is whole. Resume with the class as it was"
    )


def _article(tag: str) -> str:
    return f"{'an' if tag == 'enum' else 'a'} {tag}"


def _restore_enum(kind: Any, name: str) -> Any:
    if name not in kind.__members__:
        members = reprlib.repr(list(kind.__members__))
        raise _class_changed(kind, f"has no member {name!s:.80} any more, only {members}") from None
    return kind[name]


def _restore_flag(kind: Any, number: int) -> Any:
    try:
        made = kind(number)
    except ValueError:
        made = None
    if made is None or made.value != number:  # bits that are no member's may be dropped
        raise _class_changed(kind, f"has no member for a part of the value {number:#x}")
    return made


def _restore_named_tuple(kind: Any, values: list[Any]) -> Any:
    fields = getattr(kind, "_fields", ())
    if len(values) != len(fields):
        raise _class_changed(
            kind, f"had {len(values)} fields when it was saved, and now has {', '.join(fields)}"
        )
    return tuple.__new__(kind, values)


def _restore_dataclass(kind: Any, values: dict[str, Any]) -> Any:
    """Return the restored instance without calling its __init__;
    newer fields get their defaults.
    """
    import dataclasses

    fields = {field.name: field for field in dataclasses.fields(kind)}
    newer = [field for name, field in fields.items() if name not in values]
    gone = [name for name in values if name not in fields and not hasattr(kind, name)]
    for field in newer:
        if field.default is not dataclasses.MISSING:
            values[field.name] = field.default
        elif field.default_factory is not dataclasses.MISSING:
            values[field.name] = field.default_factory()
        elif field.init:
            raise _class_changed(kind, f"has the new field {field.name} without a default")
    if newer and gone:
        raise _class_changed(
            kind, f"had {', '.join(gone)[:200]} when it was saved, and has {newer[0].name} instead"
        )
    with _errors_as_damage("dataclass"):
        made = object.__new__(kind)
        for name, value in values.items():
            if name.startswith("__"):
                raise ValueError(f"{name} is no field")
            if name in gone and not hasattr(made, "__dict__"):
                raise _class_changed(kind, f"has no field {name!s:.80} any more")
            object.__setattr__(made, name, value)  # frozen ones too
        return made


_MAKE: dict[str, Callable[[Any, Any], Any]] = {
    "enum": _restore_enum,
    "flag": _restore_flag,
    "namedtuple": _restore_named_tuple,
    "dataclass": _restore_dataclass,
}


def _make_value(tag: str, content: Any) -> Any:
    make = (
        MAKERS[tag]
        if tag in MAKERS
        else partial(codec.import_adapter(codec.TAGS[tag]).decode_node, tag)
    )
    with _errors_as_damage(tag):
        return make(content)


@contextmanager
def _errors_as_damage(tag: str) -> Iterator[None]:
    """Raise an error in this block as Damaged: the tree is at fault."""
    try:
        yield
    except (HoldfastError, RecursionError):
        raise
    except codec.UNSOUND as error:
        raise Damaged(
            f"the tree's {tag} is unsound: {type(error).__name__}: {error_text(error)}"
        ) from error


@contextmanager
def _key_errors_as_damage(tag: str, keys: Iterable[Any]) -> Iterator[None]:
    """Raise an error in this block as Damaged; as Mismatch if a key's class is the user's, whose
    code may have changed.
    """
    try:
        with _errors_as_damage(tag):
            yield
    except Damaged as error:
        users = next((each for each in map(type, keys) if _is_user_class(each)), None)
        if users is None:
            raise
        raise _class_changed(
            users, f"does not fit as a key of a {tag} any more ({error.__cause__})"
        ) from error


def _is_user_class(kind: type) -> bool:
    registered = codec.REGISTERED.get(codec.type_name(kind))
    return (
        registered is not None
        or issubclass(kind, enum.Enum)
        or is_dataclass(kind)
        or is_named_tuple(kind)
    )


def _require_list(content: Any, length: int | None = None) -> list[Any]:
    if type(content) is not list or (length is not None and len(content) != length):
        count = "" if length is None else f" of {length}"
        raise Damaged(f"the tree holds {_short_repr(content)} in place of an array{count}")
    return content


def _require_bytes(value: Any) -> bytes:
    if type(value) is not bytes:
        raise TypeError(f"bytes expected, not {type(value).__name__}")
    return value


def _row_count(part: Any) -> int:
    """The number of rows in a part: [number, column], or [null, nodes]."""
    count, content = _require_list(part, 2)
    if count is None:
        return len(_require_list(content))
    if type(count) is not int or count < 0:
        raise Damaged(f"the tree holds {_short_repr(count)} in place of a number of rows")
    return count


def _short_repr(value: Any) -> str:
    return reprlib.repr(value)


def _read_ordered_with(reader: _Unflattener, content: Any) -> OrderedDict[Any, Any]:
    pairs, attributes = _require_list(content, 2)
    made = OrderedDict(reader.build_pairs(pairs))
    for name, value in reader.build_fields(attributes).items():
        if hasattr(OrderedDict, name):
            raise Damaged(f"the tree hides {_short_repr(name)} of a mapping")
        made.__dict__[name] = value
    return made


def _read_defaultdict(reader: _Unflattener, content: Any) -> defaultdict[Any, Any]:
    name, pairs = _require_list(content, 2)
    if not (name is None or (type(name) is str and name in FACTORIES)):
        raise Damaged(f"the tree's defaultdict makes {_short_repr(name)}")
    return defaultdict(None if name is None else FACTORIES[name], reader.build_pairs(pairs))


def _read_defaultdict_of(reader: _Unflattener, content: Any) -> defaultdict[Any, Any]:
    """Return a defaultdict with a registered class as its factory, or with a placeholder for the
    live one's factory.
    """
    name, pairs = _require_list(content, 2)
    if not isinstance(name, str | None):
        raise Damaged(f"the tree's defaultdict makes {_short_repr(name)}")
    found = None if name is None else _find_type(reader.types, "custom", name)
    if name is not None and found is None and not reader.placeholders:
        kind = name.rpartition(".")[2]
        raise UsageError(
            f"the checkpoint holds a defaultdict of {name}: "
            f"holdfast.register({kind}, encode, decode)"
        )
    return defaultdict(kept_factory if found is None else found.kind, reader.build_pairs(pairs))


def _read_set_table(reader: _Unflattener, content: Any) -> set[Any]:
    nodes, finger, slots = _require_list(content, 3)
    found = [reader.build_key(node) for node in _require_list(nodes)]
    table = reader.whole(_Unflattener.build, slots)
    with _errors_as_damage("set_table"):
        if len(set(found)) != len(found) or type(finger) is not int or finger < 0:
            raise ValueError("a member is there twice, or its finger is no place")
        if reader.placeholders:
            return set(found)
        return tables.rebuild_set(found, tables.HashTable(_require_bytes(table), finger))


def _read_counter(reader: _Unflattener, content: Any) -> Counter[Any]:
    made: Counter[Any] = Counter()
    dict.update(made, reader.build_pairs(content))  # Counter.update would count the keys
    return made


def _read_deque(reader: _Unflattener, content: Any) -> Any:
    maxlen, items = _require_list(content, 2)
    with _errors_as_damage("deque"):
        deque(maxlen=maxlen)
    return reader.build_sequence(deque, items, maxlen)


_READERS: dict[str, Callable[[_Unflattener, Any], Any]] = {
    "leaf": _Unflattener.read_leaf,
    "view": _Unflattener.build_view,
    "packed": lambda reader, content: reader.build_sequence(list, {"packed": content}),
    "tuple": lambda reader, content: reader.build_sequence(tuple, content),
    "set": lambda reader, content: reader.build_members(content, set),
    "set_table": _read_set_table,
    "frozenset": lambda reader, content: reader.build_members(content, frozenset),
    "dict": _Unflattener.build_fields,
    "items": _Unflattener.build_pairs,
    "ordered": lambda reader, content: OrderedDict(reader.build_pairs(content)),
    "ordered_with": _read_ordered_with,
    "defaultdict": _read_defaultdict,
    "defaultdict_of": _read_defaultdict_of,
    "counter": _read_counter,
    "deque": _read_deque,
    **{
        tag: lambda reader, content, tag=tag: reader.build_user_value(  # type: ignore[misc]
            tag, content
        )
        for tag in NAMED
    },
}
