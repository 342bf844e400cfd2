"""Leaves: what of a state is bytes, and how they come back.

A leaf (a tensor, an array, long bytes) becomes a `Block`. Everything else becomes a `Node`: a tag and plainer values
(`values` does it for Python's own types). The modules in `LEAVES` encode the leaves of frameworks; each is imported
when the first such object comes. They have the same functions:

    node(value) -> Node | None           None: it is a leaf. UsageError: it cannot be saved, and why
    value(tag, content) -> value         the inverse of `node`
    shares(leaves) -> list[Share]        blocks, and which leaves lie in which of them
    blank(stored) -> Blank               a leaf in the making, in fresh memory
    mapped(stored, data) -> leaf | None  over its bytes as they are; None: they would have to be moved
    unfit(live) -> str                   why this value cannot take a leaf's bytes in place; empty: it can
    differing(live, stored) -> lines     in what a live leaf and a stored one, read or not, do not agree
    fill(pairs) -> None                  live leaves take the bytes of stored ones, read or not
    span(live) -> (start, stop)          the addresses between which a live leaf lies
    refill(live, stored) -> bool         a live generator goes on as the stored one; False: they are of two kinds

A module of which no value is fit to be filled in place needs no `fill` and no `span`.
"""

from __future__ import annotations

import gc
import importlib
import math
import struct
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from typing import Any, NamedTuple, Protocol, TypeGuard, TypeVar

from ..errors import Damaged, UsageError
from ..pages import Data, Distant, put

if sys.byteorder != "little":
    raise ImportError("Holdfast stores little-endian bytes and runs on little-endian machines only")

T = TypeVar("T")

# what a value out of a file can make the code that takes it raise
UNSOUND = (ArithmeticError, AttributeError, LookupError, RuntimeError, TypeError, ValueError, struct.error)

# package -> our module for its leaves. A file chooses among these names, and never brings one of its own.
LEAVES = {"numpy": "holdfast.state.numpy_leaves", "torch": "holdfast.torch.leaves", "jax": "holdfast.jax"}

# tag of a node -> whose it is
TAGS = {
    "numpy_scalar": "numpy",
    "numpy.dtype": "numpy",
    "numpy.Generator": "numpy",
    "numpy.RandomState": "numpy",
    "numpy.SeedSequence": "numpy",
    "jax.key": "jax",
    "view": "torch",
    "size": "torch",
    "torch.dtype": "torch",
    "torch.device": "torch",
    "torch.Generator": "torch",
}

ITEMSIZE: Mapping[str, int] = {
    "bool": 1,
    "uint8": 1,
    "int8": 1,
    "float8_e4m3fn": 1,
    "float8_e4m3fnuz": 1,
    "float8_e5m2": 1,
    "float8_e5m2fnuz": 1,
    "float8_e8m0fnu": 1,
    "float4_e2m1fn_x2": 1,  # two numbers in a byte
    "int16": 2,
    "uint16": 2,
    "float16": 2,
    "bfloat16": 2,
    "int32": 4,
    "uint32": 4,
    "float32": 4,
    "complex32": 4,
    "int64": 8,
    "uint64": 8,
    "float64": 8,
    "complex64": 8,
    "complex128": 16,
}

# What the safetensors library reads; the rest lies in a shard as plain bytes.
SAFETENSORS: Mapping[str, str] = {
    "bool": "BOOL",
    "uint8": "U8",
    "int8": "I8",
    "float8_e4m3fn": "F8_E4M3",
    "float8_e4m3fnuz": "F8_E4M3FNUZ",
    "float8_e5m2": "F8_E5M2",
    "float8_e5m2fnuz": "F8_E5M2FNUZ",
    "float8_e8m0fnu": "F8_E8M0",
    "int16": "I16",
    "uint16": "U16",
    "float16": "F16",
    "bfloat16": "BF16",
    "int32": "I32",
    "uint32": "U32",
    "float32": "F32",
    "int64": "I64",
    "uint64": "U64",
    "float64": "F64",
    "complex64": "C64",
}


class Block(NamedTuple):
    """One leaf: little-endian, C order."""

    kind: str  # "torch", "numpy", "jax", "bytes": who can decode it
    dtype: str
    shape: tuple[int, ...]
    data: Data  # bytes of host memory (format "B", ndim 1), or distant ones; it keeps alive whose memory it is
    attrs: Mapping[str, Any]
    fixed: bool = False  # nobody can change that memory: a snapshot need not copy it


class LeafReader(Protocol):
    """One leaf on the disk, not read yet."""

    key: str
    kind: str
    dtype: str
    shape: tuple[int, ...]

    @property
    def attrs(self) -> Mapping[str, Any]: ...
    @property
    def size_bytes(self) -> int: ...
    def read(self) -> bytearray:
        """Its bytes, digest checked."""

    def read_into(self, target: memoryview) -> None:
        """Its bytes straight into `target`, `size_bytes` of writable memory; digest checked."""


class Node(NamedTuple):
    """What stands for a value in the tree: a tag, and plainer values that are flattened in their turn."""

    tag: str
    content: Any


class Share(NamedTuple):
    """One block and the leaves (by their index) that lie in it: whole (None), or as a view of its bytes."""

    block: Block
    places: Mapping[int, Mapping[str, Any] | None]


class Blank(NamedTuple):
    """A leaf in the making: where its bytes go, and what makes the leaf of them once they are there."""

    data: Data  # writable, of the leaf's size
    value: Callable[[], Any]


class Registered(NamedTuple):
    kind: type
    encode: Callable[[Any], Any]
    decode: Callable[[Any], Any]


REGISTERED: dict[str, Registered] = {}


def register(kind: type[T], encode: Callable[[T], Any], decode: Callable[[Any], T]) -> None:
    """Save values of exactly `kind` as what `encode` makes of them; restore them with `decode`.

    `encode` may return anything that can be saved. The type's name goes into the file; it is looked up among the
    registered ones and never imported.
    """
    if not isinstance(kind, type):
        raise UsageError(f"register takes a type, not {kind!r}")
    REGISTERED[type_name(kind)] = Registered(kind, encode, decode)


def type_name(kind: type) -> str:
    return f"{kind.__module__}.{kind.__qualname__}"


def encode_leaf(value: Any) -> Block:
    """The bytes of one tensor, array or bytes object; memory is shared with it where its layout allows."""
    if isinstance(value, bytes):
        return Block("bytes", "uint8", (len(value),), memoryview(value), {}, fixed=True)
    name = framework(type(value))
    if name is None or adapter(name).node(value) is not None:
        raise UsageError(f"{type_name(type(value))} is not a leaf")
    share: Share = adapter(name).shares([value])[0]
    return share.block


def decode_leaf(stored: LeafReader) -> Any:
    """The tensor, array or bytes that `stored` holds, always in fresh memory.

    Raises:
        Damaged: its description contradicts itself, or its bytes have changed.
        UsageError: its framework is not installed.
    """
    return decode_leaves([stored])[0]


def decode_leaves(stored: Sequence[LeafReader]) -> list[Any]:
    """As `decode_leaf`, all read in one go."""
    blanks = [blank(each) for each in stored]
    read_all([(leaf, made.data) for leaf, made in zip(stored, blanks, strict=True) if made.data.nbytes])
    blanks.reverse()  # so that each is gone once its leaf is there: some are a copy of it
    return [blanks.pop().value() for _ in stored]


def blank(stored: LeafReader) -> Blank:
    """Fresh memory for what `stored` holds.

    Raises:
        Damaged: its description contradicts itself.
        UsageError: its framework is not installed.
    """
    if stored.kind == "bytes":
        data = bytearray(stored.size_bytes)
        return Blank(memoryview(data), lambda: bytes(data))
    made: Blank = _adapter_of(stored).blank(stored)
    return made


def mapped_leaf(stored: LeafReader, data: memoryview) -> Any:
    """The leaf over `data`, the bytes of its file; None when it cannot be made of them as they lie."""
    return None if stored.kind == "bytes" else _adapter_of(stored).mapped(stored, data)


def read_all(wanted: Sequence[tuple[LeafReader, Data]]) -> None:
    """Read each leaf into its memory: all in one go where their home can do that, else one after another."""
    together = getattr(wanted[0][0], "read_all", None) if wanted else None
    if together is not None:
        together(wanted)
    else:
        for leaf, data in wanted:
            if isinstance(data, Distant):
                put(data, memoryview(leaf.read()))
            else:
                leaf.read_into(data)


@contextmanager
def uncollected() -> Iterator[None]:
    """No garbage collection in this block: it makes a million objects and no cycle, and each collection looks at all.

    On another thread than the main one nothing is changed: what the loop says meanwhile of the collector counts.
    """
    was_on = gc.isenabled() and threading.current_thread() is threading.main_thread()
    if was_on:
        gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


def _adapter_of(stored: LeafReader) -> Any:
    if stored.kind not in LEAVES:
        raise Damaged(f"leaf {stored.key!r} is of the unknown kind {stored.kind!r}")
    return adapter(stored.kind)


def checked_size(stored: LeafReader, itemsize: int) -> None:
    """Raise Damaged unless shape and length agree: asked before memory is allocated for a shape out of a file."""
    expected = itemsize * math.prod(stored.shape)
    # an empty leaf's other dimensions are in no way bounded by its bytes
    fits = len(stored.shape) <= 64 and itemsize * math.prod(max(extent, 1) for extent in stored.shape) < 2**62
    if expected != stored.size_bytes or not fits or any(extent < 0 for extent in stored.shape):
        raise Damaged(f"leaf {stored.key!r}: {stored.dtype} {list(stored.shape)} is not {stored.size_bytes} bytes")


def is_stored(value: Any) -> TypeGuard[LeafReader]:
    return hasattr(value, "read_into") and hasattr(value, "size_bytes")


def is_leaf(value: Any) -> bool:
    """Whether it is a tensor or an array: what a stored leaf becomes when it is read."""
    name = framework(type(value))
    try:
        return name is not None and adapter(name).node(value) is None
    except UsageError:  # it cannot be saved
        return False


def framework(kind: type) -> str | None:
    """Which framework's module knows values of `kind`: that of the nearest base from a package in `LEAVES`."""
    for base in kind.__mro__:
        root = base.__module__.partition(".")[0]
        if root in LEAVES:
            return root
    return None


@cache
def adapter(name: str) -> Any:
    """The module for the leaves of the framework `name`, which must be a key of `LEAVES`."""
    try:
        return importlib.import_module(LEAVES[name])
    except ModuleNotFoundError as error:
        if error.name != name:
            raise
        raise UsageError(f"this checkpoint holds {name} data: pip install {name}") from error


def shares(leaves: Sequence[Any]) -> list[Share]:
    """Blocks for leaves of one kind: those of a framework, or bytes."""
    if isinstance(leaves[0], bytes):
        return [Share(encode_leaf(leaf), {index: None}) for index, leaf in enumerate(leaves)]
    found: list[Share] = adapter(str(framework(type(leaves[0])))).shares(leaves)
    return found
