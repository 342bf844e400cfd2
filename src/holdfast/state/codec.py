"""Leaves: which parts of a state are bytes, and how they are restored.

A leaf (a tensor, an array, long bytes) becomes a `Block`. Everything else becomes a `Node`: a tag
and plainer values (`values` does it for Python's own types). The modules in `LEAVES` encode the
leaves of frameworks; each is imported when the first such object comes. They have the same
functions:

    encode_node(value) -> Node | None    None: it is a leaf. UsageError: it cannot be saved, and why
    decode_node(tag, content) -> value   the inverse of `encode_node`
    group_into_blocks(leaves) -> list[SharedBlock]  blocks, and which leaves lie in which of them
    allocate_leaf(stored) -> PendingLeaf            a leaf in fresh memory, to be read
    build_mapped(stored, data) -> leaf | None       a leaf over its bytes as they are; None: they
                                                    would have to be moved
    why_not_in_place(live) -> str        why this value cannot receive a leaf's bytes in place;
                                         empty: it can
    list_differences(live, stored) -> lines  how a live leaf differs from a stored one, read or not
    fill_in_place(pairs) -> None         copies the bytes of stored leaves, read or not, into live
    memory_span(live) -> (start, stop)   the addresses between which a live leaf lies
    memory_watcher(live) -> call         a function that tells, once the caller has dropped the
                                         leaf, whether its memory is still in use
    stacking_forms(rows), memory_identities(rows), stack(rows), unstack(array)  see `rows`; a module
                                                                without them has no columns
    refill_generator(live, stored) -> bool  sets a live generator to the stored one's state; False:
                                            they are of two kinds

A module whose values cannot be filled in place needs no `fill_in_place`, `memory_span` or
`memory_watcher`.
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

import msgspec

from ..errors import Damaged, UsageError
from ..pages import Data, DistantBytes, copy_over

if sys.byteorder != "little":
    raise ImportError("Holdfast stores little-endian bytes and runs on little-endian machines only")

T = TypeVar("T")

# exceptions that a value from a file can cause in the code that decodes it
UNSOUND = (
    ArithmeticError,
    AttributeError,
    LookupError,
    RuntimeError,
    TypeError,
    ValueError,
    struct.error,
)

# package -> our module for its leaves. A file can only choose among these names.
LEAVES = {
    "numpy": "holdfast.state.numpy_leaves",
    "torch": "holdfast.torch.leaves",
    "jax": "holdfast.jax.leaves",
}

# tag of a node -> framework that owns it
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

# Of arrays of ml_dtypes alone; one number takes a byte. JAX and Keras have them, torch does not.
ML_DTYPES: Mapping[str, int] = {
    **dict.fromkeys(("float8_e3m4", "float8_e4m3", "float8_e4m3b11fnuz"), 1),
    **dict.fromkeys(("float6_e2m3fn", "float6_e3m2fn", "float4_e2m1fn"), 1),
    **dict.fromkeys(("int1", "int2", "int4", "uint1", "uint2", "uint4"), 1),
}

ITEMSIZE: Mapping[str, int] = {
    **ML_DTYPES,
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
    "bcomplex32": 4,  # two bfloat16; torch has it since 2.14
    "int64": 8,
    "uint64": 8,
    "float64": 8,
    "complex64": 8,
    "complex128": 16,
}

# Types that the safetensors library reads; others are plain bytes in a shard.
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


# gc=False: a leaf's bytes do not refer back to what holds them, so Python's collector need not
# visit each leaf
class Block(msgspec.Struct, frozen=True, gc=False):
    """One leaf: little-endian, C order."""

    kind: str  # "torch", "numpy", "jax", "bytes": the decoder
    dtype: str
    shape: tuple[int, ...]
    # bytes of host memory (format "B", ndim 1), or distant ones; it keeps the memory's owner alive
    data: Data
    attrs: Mapping[str, Any]
    fixed: bool = False  # nothing can change that memory: a snapshot need not copy it
    # a parameter, or a moment of an optimizer: a save looks whether it is finite
    weight: bool = False


class LeafReader(Protocol):
    """One leaf on the disk that is not read yet."""

    key: str
    kind: str
    dtype: str
    shape: tuple[int, ...]

    @property
    def attrs(self) -> Mapping[str, Any]: ...
    @property
    def size_bytes(self) -> int: ...
    def read(self) -> bytearray:
        """Return its bytes, with the digest checked."""

    def read_into(self, target: memoryview) -> None:
        """Read its bytes straight into `target`,
        `size_bytes` of writable memory, and check the digest.
        """


class Node(NamedTuple):
    """The representation of a value in the tree: a tag,
    and simpler values that are flattened in turn.
    """

    tag: str
    content: Any


class SharedBlock(msgspec.Struct, frozen=True, gc=False):
    """One block and the leaves (by their index) inside it:
    whole (None), or as a view of its bytes.
    """

    block: Block
    places: Mapping[int, Mapping[str, Any] | None]


def c_stride(shape: Sequence[int]) -> tuple[int, ...]:
    """Return the strides of items in C order."""
    return tuple(math.prod(shape[place + 1 :]) for place in range(len(shape)))


class PendingLeaf(msgspec.Struct, frozen=True, gc=False):
    """A leaf that is being read: the memory for its bytes, and the function that then builds the
    leaf.
    """

    data: Data  # writable, of the leaf's size
    value: Callable[[], Any]


class RegisteredType(NamedTuple):
    kind: type
    encode: Callable[[Any], Any]
    decode: Callable[[Any], Any]


REGISTERED: dict[str, RegisteredType] = {}


def register(kind: type[T], encode: Callable[[T], Any], decode: Callable[[Any], T]) -> None:
    """Save values of exactly `kind` as the result of `encode`; restore them with `decode`.

    `encode` may return anything that can be saved. The type's name goes into the file; it is looked
    up among the registered ones and never imported.
    """
    if not isinstance(kind, type):
        raise UsageError(f"register takes a type, not {kind!r}")
    REGISTERED[type_name(kind)] = RegisteredType(kind, encode, decode)


def type_name(kind: type) -> str:
    return f"{kind.__module__}.{kind.__qualname__}"


def encode_leaf(value: Any) -> Block:
    """Return the bytes of one tensor, array or bytes object;
    they share its memory where its layout allows.
    """
    if isinstance(value, bytes):
        return Block("bytes", "uint8", (len(value),), memoryview(value), {}, fixed=True)
    name = framework_of(type(value))
    if name is None or import_adapter(name).encode_node(value) is not None:
        raise UsageError(f"{type_name(type(value))} is not a leaf")
    share: SharedBlock = import_adapter(name).group_into_blocks([value])[0]
    return share.block


def decode_leaf(stored: LeafReader) -> Any:
    """Return the tensor, array or bytes of `stored`, always in fresh memory.

    Raises:
        Damaged: its description contradicts itself, or its bytes have changed.
        UsageError: its framework is not installed.
    """
    return decode_leaves([stored])[0]


def decode_leaves(stored: Sequence[LeafReader]) -> list[Any]:
    """Like `decode_leaf` for many leaves, all read in one call."""
    blanks = [allocate_leaf(each) for each in stored]
    read_into_memory(
        [(leaf, made.data) for leaf, made in zip(stored, blanks, strict=True) if made.data.nbytes]
    )
    blanks.reverse()  # reversed, so that each is freed once its leaf exists: some are a copy of it
    return [blanks.pop().value() for _ in stored]


def allocate_leaf(stored: LeafReader) -> PendingLeaf:
    """Return fresh memory for the content of `stored`.

    Raises:
        Damaged: its description contradicts itself.
        UsageError: its framework is not installed.
    """
    if stored.kind == "bytes":
        data = bytearray(stored.size_bytes)
        return PendingLeaf(memoryview(data), lambda: bytes(data))
    made: PendingLeaf = _adapter_of(stored).allocate_leaf(stored)
    return made


def build_mapped_leaf(stored: LeafReader, data: memoryview) -> Any:
    """Build the leaf over `data`, the bytes of its file, without copying them; None if their layout
    does not allow it.
    """
    return None if stored.kind == "bytes" else _adapter_of(stored).build_mapped(stored, data)


def read_into_memory(wanted: Sequence[tuple[LeafReader, Data]]) -> None:
    """Read each leaf into its memory: in one call where their source allows it, otherwise one after
    another.
    """
    together = getattr(wanted[0][0], "read_all", None) if wanted else None
    if together is not None:
        together(wanted)
    else:
        for leaf, data in wanted:
            if isinstance(data, DistantBytes):
                copy_over(data, memoryview(leaf.read()))
            else:
                leaf.read_into(data)


@contextmanager
def without_garbage_collection() -> Iterator[None]:
    """Disable garbage collection in this block: it creates a million objects and no cycle, and each
    collection visits all.

    On other threads than the main one nothing is changed: a loop in the main thread may set the
    collector meanwhile.
    """
    was_on = gc.isenabled() and threading.current_thread() is threading.main_thread()
    if was_on:
        gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


def require_known(key: str, kind: str) -> None:
    """Require a kind of leaf that can be decoded.

    Raises:
        Damaged: nothing here decodes leaves of that kind.
    """
    if kind not in LEAVES and kind != "bytes":
        raise Damaged(f"leaf {key!r} is of the unknown kind {kind!r}")


def _adapter_of(stored: LeafReader) -> Any:
    require_known(stored.key, stored.kind)
    return import_adapter(stored.kind)


def require_size(stored: LeafReader, itemsize: int) -> None:
    """Raise Damaged unless shape and length agree. Call it before memory is allocated for a shape
    from a file.
    """
    shape, size = stored.shape, stored.size_bytes
    # an empty leaf's bytes do not limit its other dimensions
    largest = size or itemsize * math.prod(max(extent, 1) for extent in shape)
    fits = len(shape) <= 64 and largest < 2**62 and min(shape, default=0) >= 0
    if itemsize * math.prod(shape) != size or not fits:
        raise Damaged(f"leaf {stored.key!r}: {stored.dtype} {list(shape)} is not {size} bytes")


def is_stored_leaf(value: Any) -> TypeGuard[LeafReader]:
    return hasattr(value, "read_into") and hasattr(value, "size_bytes")


def is_leaf(value: Any) -> bool:
    """Return whether `value` is a tensor or an array: one of the types as which stored leaves are
    read.
    """
    name = framework_of(type(value))
    try:
        return name is not None and import_adapter(name).encode_node(value) is None
    except UsageError:  # it cannot be saved
        return False


def framework_of(kind: type) -> str | None:
    """Return the framework of values of `kind`:
    that of the nearest base from a package in `LEAVES`.
    """
    for base in kind.__mro__:
        root = base.__module__.partition(".")[0]
        if root in LEAVES:
            return root
    return None


@cache
def import_adapter(name: str) -> Any:
    """Return the module for the leaves of the framework `name`, which must be a key of `LEAVES`."""
    try:
        return importlib.import_module(LEAVES[name])
    except ModuleNotFoundError as error:
        if error.name != name:
            raise
        raise UsageError(f"this checkpoint holds {name} data: pip install {name}") from error


def group_into_blocks(leaves: Sequence[Any]) -> list[SharedBlock]:
    """Return blocks for leaves of one kind: those of one framework, or bytes."""
    if isinstance(leaves[0], bytes):
        return [SharedBlock(encode_leaf(leaf), {index: None}) for index, leaf in enumerate(leaves)]
    found: list[SharedBlock] = import_adapter(str(framework_of(type(leaves[0])))).group_into_blocks(
        leaves
    )
    return found
