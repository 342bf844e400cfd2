"""The digest of a batch: it shows whether a loader that is read again yields the same batches."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import chain
from typing import Any

import msgspec
import xxhash

from ..errors import UsageError
from ..pages import Data, byte_pieces
from ..state.tree import flatten

WHOLE_BYTES = 1 << 20  # a larger array is compared by its beginning, its middle and its end
SAMPLE_BYTES = 1 << 16
_IMMUTABLE = {"jax", "jaxlib"}  # packages whose arrays cannot be changed in place
MAX_DEPTH = 8  # of containers around values that Holdfast cannot save


def digest(batch: Any) -> str:
    """32 hex digits that depend on every number, text, array and tensor of `batch`.

    An object that Holdfast cannot save counts by its type, and by its attributes if it has any.
    """
    found = xxhash.xxh3_128()
    _hash_value(found, batch, MAX_DEPTH)
    return str(found.hexdigest())


def digest_on_call(batch: Any) -> Callable[[], str | None]:
    """Return a function that returns the digest of `batch` as it is now.

    JAX's arrays cannot change and may still be being computed, so they are read when the function
    is called. It returns None if they were donated to a step by then.
    """
    kept = _copy_of_immutables(batch)
    if kept is None:
        found = digest(batch)
        return lambda: found

    def computed() -> str | None:
        try:
            return digest(kept)
        except RuntimeError:  # JAX raises it for a deleted array
            return None

    return computed


def _copy_of_immutables(batch: Any) -> Any:
    """Return a copy of the containers in `batch` if they hold only JAX's arrays, numbers and text;
    else None.
    """
    kind = type(batch)
    if kind.__module__.partition(".")[0] in _IMMUTABLE or kind in (int, float, str, bool):
        return batch
    if kind in (list, tuple):
        members = [_copy_of_immutables(each) for each in batch]
        return None if any(each is None for each in members) else kind(members)
    if kind is dict:
        found = {key: _copy_of_immutables(each) for key, each in batch.items()}
        return None if any(each is None for each in found.values()) else found
    return None


def _hash_value(found: xxhash.xxh3_128, value: Any, depth: int) -> None:
    try:
        flat = flatten(value, first=True)
    except UsageError:
        _hash_members(found, value, depth)
        return
    found.update(msgspec.json.encode(flat.tree))
    for name, block in flat.leaves.items():
        found.update(f"{name} {block.dtype} {block.shape}".encode())
        for part in _byte_blocks(block.data):
            for piece in byte_pieces(part):
                found.update(piece)


def _hash_members(found: xxhash.xxh3_128, value: Any, depth: int) -> None:
    """Hash the type name and each member of a `value` that cannot be flattened, down to `depth`."""
    found.update(type(value).__qualname__.encode())
    named = value if isinstance(value, Mapping) else getattr(value, "__dict__", {})
    members = value if isinstance(value, list | tuple) else chain.from_iterable(named.items())
    for member in members if depth else ():
        _hash_value(found, member, depth - 1)


def _byte_blocks(data: Data) -> list[Data]:
    size = data.nbytes
    if size <= WHOLE_BYTES:
        return [data]
    return [data[at : at + SAMPLE_BYTES] for at in (0, size // 2, size - SAMPLE_BYTES)]
