"""JAX's arrays: immutable, so that a snapshot refers to them and copies nothing; typed random keys.

They come back on the default device: the program decides how they are laid out over devices. Only a scalar comes back
with a weak type.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import numpy as np

from .errors import Damaged, UsageError
from .state.codec import ITEMSIZE, UNSOUND, Blank, Block, LeafReader, Node, Share, checked_size

_DTYPES = ITEMSIZE.keys() - {"int1", "uint1"}  # of these JAX computes arrays, but makes none from memory


def node(value: Any) -> Node | None:
    if not isinstance(value, jax.Array):
        raise UsageError("")
    if isinstance(value, jax.core.Tracer):
        raise UsageError("it is traced: save the arrays that the compiled function returns")
    if jax.numpy.issubdtype(value.dtype, jax.dtypes.prng_key):
        return Node("jax.key", [str(jax.random.key_impl(value)), jax.random.key_data(value)])
    if value.is_deleted():
        raise UsageError("it was donated to a compiled function: save what that returned")
    if not value.is_fully_addressable:
        raise UsageError("parts of it lie in other processes")
    if value.dtype.name not in _DTYPES:
        raise UsageError(f"its dtype {value.dtype} has no bytes of its own")
    return None


def value(tag: str, content: Any) -> Any:
    return _VALUES[tag](*content)


def shares(arrays: Sequence[Any]) -> list[Share]:
    return [Share(_encode(array), {index: None}) for index, array in enumerate(arrays)]


def _encode(array: Any) -> Block:
    host = np.asarray(array)  # for an array on the CPU its own memory; the reference prevents its donation
    attrs = {"weak_type": True} if array.weak_type else {}
    return Block("jax", array.dtype.name, array.shape, _memory(np.ascontiguousarray(host)), attrs, fixed=True)


def blank(stored: LeafReader) -> Blank:
    host = np.empty(stored.shape, _dtype(stored))
    return Blank(_memory(host), lambda: _array(host, stored))


def mapped(_: LeafReader, __: memoryview) -> None:
    """Build nothing over a file's map: JAX adopts memory only if it is aligned like its own."""


def unfit(_: Any) -> str:
    return "JAX's arrays cannot be changed in place"


def differing(_: Any, __: Any) -> list[str]:
    return []


def refill(_: Any, __: Any) -> bool:
    return False


def _array(host: Any, stored: LeafReader) -> Any:
    weak = stored.attrs.get("weak_type") is True and host.ndim == 0
    made = jax.numpy.asarray(host.item() if weak else host)
    if made.dtype != host.dtype:
        raise UsageError(f'leaf {stored.key!r} is {host.dtype}: jax.config.update("jax_enable_x64", True) first')
    return made


def _dtype(stored: LeafReader) -> Any:
    """Return its dtype, which the machine's JAX provides, after checking its length against its shape."""
    try:
        if stored.dtype not in _DTYPES:
            raise TypeError(f"{stored.dtype!r} is no dtype")
        dtype = jax.numpy.dtype(stored.dtype)
        checked_size(stored, dtype.itemsize)
    except UNSOUND as error:
        raise Damaged(f"leaf {stored.key!r}: {error}") from error
    return dtype


def _memory(host: Any) -> memoryview:
    return memoryview(host.reshape(-1).view(np.uint8)) if host.nbytes else memoryview(b"")


_VALUES = {"jax.key": lambda name, data: jax.random.wrap_key_data(data, impl=name)}
