"""JAX's arrays and typed random keys as leaves.

A snapshot copies an array before the next step, piece by piece from its devices. Its memory is
looked at only during that copy, so that the array can be donated afterwards. It comes back on the
default device; `Tree` restores its sharding.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import numpy as np

from ..errors import Damaged, UsageError
from ..pages import Data, DistantBytes
from ..state.codec import (
    ITEMSIZE,
    UNSOUND,
    Block,
    LeafReader,
    Node,
    PendingLeaf,
    SharedBlock,
    require_size,
)
from .shards import ShardedItems

# dtypes that JAX computes with, but cannot make from memory
_DTYPES = ITEMSIZE.keys() - {"int1", "uint1"}
_SMALL_BYTES = 64 << 10  # copying a smaller array is quicker than describing it
_WEAK: dict[str, Any] = {"i": 0, "f": 0.0, "c": 0j}  # kinds of dtypes that Python's numbers have


def encode_node(value: Any) -> Node | None:
    if isinstance(value, jax.Ref):
        raise UsageError("it is a reference, which changes in place: keep its content, ref[...]")
    if not isinstance(value, jax.Array):
        raise UsageError("")
    if isinstance(value, jax.core.Tracer):
        raise UsageError("it is traced: save the arrays that the compiled function returns")
    if value.is_deleted():
        raise UsageError(
            "it was donated to a compiled function: save what that returned, in a holdfast.jax.Tree"
        )
    if not value.is_fully_addressable:
        raise UsageError("parts of it lie in other processes")
    if jax.numpy.issubdtype(value.dtype, jax.dtypes.prng_key):
        return Node("jax.key", [str(jax.random.key_impl(value)), jax.random.key_data(value)])
    if value.dtype.name not in _DTYPES:
        raise UsageError(f"its dtype {value.dtype} has no bytes of its own")
    return None


def decode_node(tag: str, content: Any) -> Any:
    return _VALUES[tag](*content)


def group_into_blocks(arrays: Sequence[Any]) -> list[SharedBlock]:
    return [SharedBlock(_encode(array), {index: None}) for index, array in enumerate(arrays)]


def _encode(array: Any) -> Block:
    attrs = {"weak_type": True} if array.weak_type else {}
    return Block("jax", array.dtype.name, array.shape, _data(array), attrs)


def _data(array: Any) -> Data:
    nbytes = array.size * array.dtype.itemsize
    if nbytes > _SMALL_BYTES:
        return DistantBytes(ShardedItems(array), nbytes)
    # a copy: a view would prevent the donation of the array
    return memory(np.array(array, order="C"))


def allocate_leaf(stored: LeafReader) -> PendingLeaf:
    host = empty_array(stored)
    return PendingLeaf(memory(host), lambda: array_of(host, stored))


def build_mapped(_: LeafReader, __: memoryview) -> None:
    """Build nothing over a file's map: JAX adopts memory only if it is aligned like its own."""


def why_not_in_place(_: Any) -> str:
    return "JAX's arrays cannot be changed in place"


def list_differences(_: Any, __: Any) -> list[str]:
    return []


def refill_generator(_: Any, __: Any) -> bool:
    return False


def array_of(host: Any, stored: LeafReader, sharding: Any = None) -> Any:
    """Return the array with the bytes of `host`, laid out by `sharding`; None: on the default
    device, uncommitted.

    It shares no memory with `host`: JAX can donate only memory that it allocated.
    """
    weak = stored.attrs.get("weak_type") is True
    made = jax.device_put(host, None if weak else sharding, may_alias=False)
    if made.dtype != host.dtype:
        raise UsageError(
            f'leaf {stored.key!r} is {host.dtype}: jax.config.update("jax_enable_x64", True) first'
        )
    return _weakly_typed(made, sharding) if weak else made


def _weakly_typed(array: Any, sharding: Any) -> Any:
    """Return the same numbers with a weak type, as far as this JAX has one for the dtype."""
    if array.dtype.kind in _WEAK:
        made = jax.numpy.full(array.shape, _WEAK[array.dtype.kind])
        if made.dtype == array.dtype:
            array = made.at[...].set(array)
    return array if sharding is None else jax.device_put(array, sharding)


def empty_array(stored: LeafReader) -> Any:
    """Return an array of NumPy's for the leaf, after checking its length against its shape."""
    try:
        if stored.dtype not in _DTYPES:
            raise TypeError(f"{stored.dtype!r} is no dtype")
        dtype = jax.numpy.dtype(stored.dtype)
        require_size(stored, dtype.itemsize)
    except UNSOUND as error:
        raise Damaged(f"leaf {stored.key!r}: {error}") from error
    return np.empty(stored.shape, dtype)


def memory(host: Any) -> memoryview:
    """Return the bytes of a contiguous array."""
    return memoryview(host.reshape(-1).view(np.uint8)) if host.nbytes else memoryview(b"")


_VALUES = {"jax.key": lambda name, data: jax.random.wrap_key_data(data, impl=name)}
