"""The tree: converts a state to JSON and leaves, and back. Nothing in a file is executed or
imported.

In the tree null, booleans, short integers, finite floats and strings stand for themselves and an
array is a list. Everything else is an object with exactly one key, its tag. Mappings are always
wrapped, so that no key of a user's is ever taken for a tag. Containers that a state holds in two
places come back as two; leaves come back as one.
"""

from __future__ import annotations

import base64
import enum
import math
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any, NamedTuple, NoReturn

import msgspec

from ..errors import UsageError
from ..legible import is_text, key_text
from . import codec, rows, tables
from .captured import fields_of, is_dataclass, is_named_tuple, is_plain, kept_factory
from .codec import Block, Node
from .finite import is_floating
from .nodes import MAX_DEPTH, is_safe, quote_key, unused_key
from .unflatten import FACTORIES, INLINE_BYTES, LONG_TEXT, Placeholder, enough_stack, unflatten
from .values import NODES

__all__ = [
    "FACTORIES",
    "INLINE_BYTES",
    "MAX_DEPTH",
    "FlatState",
    "Placeholder",
    "flatten",
    "quote_key",
    "types_in",
    "unflatten",
]


class FlatState(NamedTuple):
    """A flattened state: the tree and its leaves."""

    tree: Any  # JSON
    leaves: dict[str, Block]
    viewed: frozenset[str] = frozenset()  # leaves that have views


def flatten(state: Any, weights: Collection[int] = (), *, first: bool = False) -> FlatState:
    """Flatten `state`; blocks share memory with its tensors and arrays where their layout allows.

    `weights`: ids of leaves in it that are parameters, or moments of optimizers. `first`: as
    version 1 has it, for digests that older checkpoints hold.

    Raises:
        UsageError: something in it cannot be saved; the message names its place.
    """
    with enough_stack(), codec.without_garbage_collection():
        flattener, tree = _walk_state(state, weights, first=first)
        leaves = flattener.blocks()
        return FlatState(tree, leaves, frozenset(flattener.viewed))


def _walk_state(
    state: Any, weights: Collection[int] = (), *, first: bool = False, skips_plain: bool = False
) -> tuple[_Flattener, Any]:
    flattener = _Flattener(weights, packs=not first, first=first, skips_plain=skips_plain)
    try:
        tree = flattener.walk(state)
        flattener.require_unaliased_rows()
        return flattener, tree
    except _RepeatedError:  # an array of a row stands elsewhere, too: it has to come back as one
        flattener = _Flattener(weights)
        return flattener, flattener.walk(state)


def types_in(state: Any) -> set[type]:
    """Return the user's types in `state`: enums, dataclasses, named tuples. Restoring it needs
    them in `types=`.
    """
    with enough_stack():
        return _walk_state(state, skips_plain=True)[0].types


class _PathStep(NamedTuple):
    """A step from a container to a member. Most steps are just the member's key or index."""

    part: str  # of a leaf's key
    shown: str  # in Python's spelling


_NO_STEP = _PathStep("", "")  # for a node without a container of its own


def _key_part(step: Any) -> str:
    """Return the step as leaf keys contain it."""
    return quote_key(
        step if type(step) is str else step.part if type(step) is _PathStep else key_text(step)
    )


# keys whose spelling does not follow from their value: a set has no order, and an object may show
# its address
_UNSTEADY = ('{"frozenset":', '{"custom":', '{"dataclass":')


def _step_to(key: Any, node: Any) -> Any:
    """Return the step to the value that a mapping has under `key`, which is `node` in the tree."""
    if type(key) in (str, int):
        return key
    name = msgspec.json.encode(node).decode()
    return _PathStep(name, f"[{key!r}]") if any(tag in name for tag in _UNSTEADY) else key


def _format_step(step: Any) -> str:
    """Return the step in Python's spelling."""
    if type(step) is _PathStep:
        return step.shown
    if not isinstance(step, str):
        return f"[{key_text(step) if type(step) is int else repr(step)}]"
    import json

    return f"[{json.dumps(step, ensure_ascii=False)}]"


class _FoundLeaves:
    """The leaves of one kind: where each was found, and the node that still needs its key."""

    def __init__(self) -> None:
        self.keys: list[str] = []
        self.values: list[Any] = []
        self.nodes: list[dict[str, Any]] = []


class _RepeatedError(Exception):
    pass


class _Flattener:
    def __init__(
        self,
        weights: Collection[int] = (),
        *,
        packs: bool = False,
        first: bool = False,
        skips_plain: bool = False,
    ) -> None:
        self._packs, self.first = packs, first
        # whether rows in which no type of the user's can be are left out
        self._skips_plain = skips_plain
        self._packed: dict[Any, Any] = {}  # arrays in columns, by identity
        self._columns: dict[int, Any] = {}  # and the columns, which nothing changes
        self.types: set[type] = set()
        self._weights = weights
        self._walkers: dict[type, _Walker] = {}
        self._within: dict[
            int, Any
        ] = {}  # ids of the containers being flattened, outermost first, and the steps to them
        self._key = ""  # leaf key built from these steps
        self.hashing = 0  # number of enclosing keys and sets, which contain no leaves
        self._nodes: dict[int, dict[str, Any]] = {}
        self._found: defaultdict[str, _FoundLeaves] = defaultdict(_FoundLeaves)  # by kind
        self.viewed: set[str] = set()

    def walk(self, value: Any, step: Any = _NO_STEP) -> Any:
        kind = type(value)
        plain = _PLAIN.get(kind)
        if plain is not None and plain(value):
            return value
        within, place = self._within, id(value)
        if place in within:
            raise UsageError(f"cannot save {self._format_path(step)}: it contains itself")
        if len(within) >= MAX_DEPTH:
            raise UsageError(
                f"cannot save {self._format_path(step)}: "
                f"it lies more than {MAX_DEPTH} containers deep"
            )
        within[place] = step
        outer = self._key
        if step is not _NO_STEP:
            part = step if type(step) is str and is_safe(step) else _key_part(step)
            self._key = f"{outer}/{part}" if outer else part
        node = (self._walkers.get(kind) or self._walker_for(kind))(self, value)
        self._key = outer
        del within[place]
        return node

    def _walker_for(self, kind: type) -> _Walker:
        """Return the function that flattens values of `kind`:
        determined once for each kind in a state.
        """
        walker = self._walkers[kind] = (
            _registered_walker(kind) or _WALKERS.get(kind) or self._find_walker(kind)
        )
        return walker

    def _find_walker(self, kind: type) -> _Walker:
        for test, walker in _USERS:
            if test(kind):
                self.types.add(kind)
                return walker
        framework = codec.framework_of(kind)
        return (
            _Flattener.refuse
            if framework is None
            else _adapter_walker(codec.import_adapter(framework).encode_node, framework)
        )

    def add_leaf(self, value: Any, kind: str) -> dict[str, Any]:
        """Return the node for a leaf,
        filled in when it is known which leaves share their memory.
        """
        if self.hashing:
            self.refuse(value, "it stands in a set or in a mapping's key")
        node = self._nodes.get(id(value))
        if node is None:
            node = {"leaf": ""}
            self._note_leaf(value, kind, self._key or "value", node)
        return node

    def _note_leaf(self, value: Any, kind: str, key: str, node: dict[str, Any]) -> None:
        self._nodes[id(value)] = node
        found = self._found[kind]
        found.keys.append(key)
        found.values.append(value)
        found.nodes.append(node)

    def blocks(self) -> dict[str, Block]:
        """Return the leaves under their keys; their nodes are filled in."""
        blocks: dict[str, Block] = {}
        for found in self._found.values():
            for share in codec.group_into_blocks(found.values):
                self._assign_key(share, found, blocks)
        return blocks

    def _assign_key(
        self, share: codec.SharedBlock, found: _FoundLeaves, blocks: dict[str, Block]
    ) -> None:
        """Give a block its key, and write it to the nodes of the leaves in it."""
        places = share.places
        first = found.keys[min(places)]
        key = unused_key(first if None in places.values() else f"{first}@storage", blocks)
        blocks[key] = share.block
        if self._weights and is_floating(share.block.dtype):
            weight = any(id(found.values[index]) in self._weights for index in places)
            blocks[key] = msgspec.structs.replace(share.block, weight=weight)
        for index, view in places.items():
            node = found.nodes[index]
            if id(found.values[index]) in self._columns:
                blocks[key] = msgspec.structs.replace(blocks[key], fixed=True)
            if view is None:
                node["leaf"] = key
            else:
                node.clear()
                node["view"] = {"leaf": key, **view}
                self.viewed.add(key)

    def flatten_key(self, value: Any, step: Any) -> Any:
        self.hashing += 1
        node = self.walk(value, step)
        self.hashing -= 1
        return node

    def flatten_pairs(self, mapping: Any) -> list[Any]:
        return [
            [node := self.flatten_key(key, key), self.walk(value, _step_to(key, node))]
            for key, value in mapping.items()
        ]

    def flatten_items(self, values: Collection[Any]) -> Any:
        """Return the nodes of a sequence; for long rows that hold arrays their columns, part by
        part.
        """
        if (
            self._packs and len(values) >= rows.LEAST_ROWS and not self.hashing
            and rows.may_be_packed(values) and not self._weights_in(values)
        ):  # fmt: skip
            if self._skips_plain and is_plain(values):
                return []
            packed = self._pack_rows(list(values))
            if packed is not None:
                return {"packed": packed}
        return [self.walk(value, index) for index, value in enumerate(values)]

    def require_unaliased_rows(self) -> None:
        """Require that no packed array occurs elsewhere too, or shares its memory with
        another one.
        """
        for kind, found in self._found.items() if self._packed else ():
            identities = (
                getattr(codec.import_adapter(kind), "memory_identities", None)
                if kind in codec.LEAVES
                else None
            )
            if identities is not None and not self._packed.keys().isdisjoint(
                identities(found.values)
            ):
                raise _RepeatedError

    def _weights_in(self, values: Iterable[Any]) -> bool:
        return bool(self._weights) and any(id(value) in self._weights for value in values)

    def _pack_rows(self, values: list[Any]) -> list[Any] | None:
        found: list[Any] = []
        for start, stop in rows.split_rows(values):
            made: list[tuple[Any, str, str, dict[str, Any]]] = []

            def add_leaf(
                array: Any, kind: str, name: str, made: list[Any] = made
            ) -> dict[str, Any]:
                node = {"leaf": ""}
                made.append((array, kind, name, node))
                return node

            packer = rows.Packer(add_leaf, self.walk)
            column = rows.pack_rows(values[start:stop], f"{start}-{stop}", packer)
            if column is None:
                if not found:  # the others are probably like the first ones
                    return None
                found.append(
                    [
                        None,
                        [
                            self.walk(value, start + at)
                            for at, value in enumerate(values[start:stop])
                        ],
                    ]
                )
                continue
            for array, kind, name, node in made:
                self._note_leaf(array, kind, f"{self._key}/{name}" if self._key else name, node)
                self._columns[id(array)] = array
            if not self._packed.keys().isdisjoint(packer.arrays):
                raise _RepeatedError
            self._packed |= packer.arrays
            self.types |= packer.types
            found.append([stop - start, column])
        return found

    def flatten_members(self, values: Iterable[Any]) -> list[Any]:
        nodes = [self.flatten_key(value, index) for index, value in enumerate(values)]
        return sorted(nodes, key=msgspec.json.encode)

    def flatten_set(self, values: set[Any]) -> Any:
        """Return the members in the order of their JSON; for numbers also the hash table, unless a
        new set has the same one.
        """
        table = (
            tables.table_of(values)
            if not self.first and tables.have_stable_hashes(values)
            else None
        )
        if table is None:
            return {"set": self.flatten_members(values)}
        nodes = [self.flatten_key(value, index) for index, value in enumerate(values)]
        ordered = sorted(
            zip(map(msgspec.json.encode, nodes), nodes, values, strict=True),
            key=lambda each: each[0],
        )
        if tables.has_table({value for _, _, value in ordered}, list(values), table):
            return {"set": [node for _, node, _ in ordered]}
        return {"set_table": [nodes, table.finger, self.walk(table.slots)]}

    def flatten_fields(self, values: Mapping[str, Any]) -> dict[str, Any]:
        fields = {}
        for name, value in values.items():
            if not is_text(name):
                raise UsageError(
                    f"cannot save {self._format_path()}: "
                    f"its member {name!r} has a name that is no text"
                )
            fields[name] = self.walk(value, _PathStep(name, f".{name}"))
        return fields

    def _format_path(self, step: Any = _NO_STEP) -> str:
        return "state" + "".join(map(_format_step, [*self._within.values(), step]))

    def refuse(self, value: Any, why: str = "") -> NoReturn:
        kind = type(value)
        name = kind.__qualname__ if kind.__module__ == "builtins" else codec.type_name(kind)
        article = "an" if name[0] in "aeiouAEIOU" else "a"
        if not why and hasattr(value, "state_dict"):
            why = "save its state_dict()"
        if not why and callable(value) and hasattr(value, "__code__"):
            why = (
                "it is code, and no state: leave it out, "
                "or hold a pytree of JAX in holdfast.jax.Tree"
            )
        advice = (
            why
            or "register a pair of functions for it: "
            f"holdfast.register({kind.__qualname__}, encode, decode)"
        )
        raise UsageError(f"cannot save {self._format_path()} ({article} {name}): {advice}")


_Walker = Callable[[_Flattener, Any], Any]

# kinds of values that stand for themselves, and when
_PLAIN: dict[type, Callable[[Any], bool]] = {
    str: lambda value: len(value) <= LONG_TEXT and (value.isascii() or is_text(value)),
    int: lambda value: -(2**53) <= value <= 2**53,
    float: lambda value: math.isfinite(value) and (value != 0 or math.copysign(1, value) == 1),
    bool: lambda _: True,
    type(None): lambda _: True,
}


def _registered_walker(kind: type) -> _Walker | None:
    name = codec.type_name(kind)
    registered = codec.REGISTERED.get(name)
    if registered is None or registered.kind is not kind:
        return None
    encode = registered.encode
    return lambda flattener, value: {"custom": [name, flattener.walk(encode(value))]}


def _adapter_walker(ask: Callable[[Any], Node | None], framework: str = "") -> _Walker:
    """Return a walker that uses `ask`: a node, or None for a leaf of `framework`.

    A UsageError gets the value's path added.
    """

    def walk(flattener: _Flattener, value: Any) -> Any:
        try:
            node = ask(value)
        except UsageError as error:
            flattener.refuse(value, str(error))
        return (
            flattener.add_leaf(value, framework)
            if node is None
            else {node.tag: flattener.walk(node.content)}
        )

    return walk


def _walk_dict(flattener: _Flattener, value: dict[Any, Any]) -> Any:
    if all(type(key) is str and (key.isascii() or is_text(key)) for key in value):
        return {"dict": {key: flattener.walk(each, key) for key, each in value.items()}}
    return {"items": flattener.flatten_pairs(value)}


def _walk_ordered(flattener: _Flattener, value: OrderedDict[Any, Any]) -> Any:
    if not value.__dict__:
        return {"ordered": flattener.flatten_pairs(value)}
    # a module's state_dict() carries its versions in _metadata
    return {
        "ordered_with": [flattener.flatten_pairs(value), flattener.flatten_fields(value.__dict__)]
    }


def _walk_defaultdict(flattener: _Flattener, value: defaultdict[Any, Any]) -> Any:
    factory: Any = value.default_factory
    name = None if factory is None else getattr(factory, "__name__", "")
    if name is None or FACTORIES.get(name) is factory:
        return {"defaultdict": [name, flattener.flatten_pairs(value)]}
    if factory is kept_factory:
        return {"defaultdict_of": [None, flattener.flatten_pairs(value)]}
    if isinstance(factory, type) and _registered_walker(factory) is not None:
        return {"defaultdict_of": [codec.type_name(factory), flattener.flatten_pairs(value)]}
    kind = factory.__qualname__ if isinstance(factory, type) else "Factory"
    return flattener.refuse(
        value,
        f"its factory {factory!r} is none of {', '.join(FACTORIES)}, "
        "and a resume would have to make it anew. Register "
        f"a class: holdfast.register({kind}, encode, decode); "
        "or let the run begin with this defaultdict, in the state "
        "or in vars=",
    )


def _walk_str(flattener: _Flattener, value: str) -> Any:
    """Return long text as a leaf, so that the manifest stays small. Keys and members of sets, which
    have no leaf, stay text.
    """
    if len(value) > LONG_TEXT and not flattener.hashing and not flattener.first:
        return {"long_str": flattener.add_leaf(value.encode("utf-8", "surrogatepass"), "bytes")}
    return value if is_text(value) else _walk_odd_str(flattener, value)


def _walk_bytes(flattener: _Flattener, value: bytes) -> Any:
    if len(value) > INLINE_BYTES and not flattener.hashing:
        return flattener.add_leaf(value, "bytes")
    return {"bytes": base64.b64encode(value).decode()}


_walk_odd_str = _adapter_walker(NODES[str])

_WALKERS: dict[type, _Walker] = {
    **{kind: _adapter_walker(ask) for kind, ask in NODES.items()},
    str: _walk_str,
    bytes: _walk_bytes,
    list: _Flattener.flatten_items,
    tuple: lambda flattener, value: {"tuple": flattener.flatten_items(value)},
    set: _Flattener.flatten_set,
    frozenset: lambda flattener, value: {"frozenset": flattener.flatten_members(value)},
    dict: _walk_dict,
    OrderedDict: _walk_ordered,
    defaultdict: _walk_defaultdict,
    Counter: lambda flattener, value: {"counter": flattener.flatten_pairs(value)},
    deque: lambda flattener, value: {"deque": [value.maxlen, flattener.flatten_items(value)]},
}


def _walk_enum(_: _Flattener, value: enum.Enum) -> Any:
    name = codec.type_name(type(value))
    return (
        {"flag": [name, value.value]}
        if isinstance(value, enum.Flag)
        else {"enum": [name, value.name]}
    )


def _walk_dataclass(flattener: _Flattener, value: Any) -> Any:
    kind = type(value)
    try:
        object.__new__(kind)  # in the form in which it is restored
    except TypeError:
        flattener.refuse(value)
    return {"dataclass": [codec.type_name(kind), flattener.flatten_fields(fields_of(value))]}


def _walk_named_tuple(flattener: _Flattener, value: Any) -> Any:
    kind = type(value)
    if len(kind._fields) != len(value) or getattr(value, "__dict__", None):
        flattener.refuse(value)
    nodes = [
        flattener.walk(each, _PathStep(name, f".{name}"))
        for name, each in zip(kind._fields, value, strict=True)
    ]
    return {"namedtuple": [codec.type_name(kind), nodes]}


_USERS: list[tuple[Callable[[type], bool], _Walker]] = [
    (lambda kind: issubclass(kind, enum.Enum), _walk_enum),
    (is_named_tuple, _walk_named_tuple),
    (is_dataclass, _walk_dataclass),
]
