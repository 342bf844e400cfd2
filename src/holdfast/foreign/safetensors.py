"""Reads safetensors files: a length, a JSON header, and the bytes of each tensor. The format has no
checksums.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec

from ..errors import Damaged
from ..state.codec import ITEMSIZE, SAFETENSORS
from ..state.nodes import quote_key, unused_key
from ..store.problems import Problem
from .content import ForeignContent
from .leaf import ForeignLeaf
from .region import Region, read_small

HEADER_BYTES = 100_000_000  # as the library itself refuses more

_DTYPES = {code: name for name, code in SAFETENSORS.items()}
_RAW = msgspec.json.Decoder(dict[str, msgspec.Raw])
_METADATA = msgspec.json.Decoder(dict[str, str])


class _Entry(msgspec.Struct, frozen=True, gc=False):
    dtype: str
    shape: tuple[int, ...]
    data_offsets: tuple[int, int]


_ENTRIES = msgspec.json.Decoder(_Entry)


def read(region: Region) -> ForeignContent:
    """Return what a .safetensors file holds.

    Raises:
        Damaged: its header is cut, or is none.
    """
    path = region.path
    length = int.from_bytes(read_small(region.slice(0, 8)), "little")
    if region.size < 8 or length > min(HEADER_BYTES, region.size - 8):
        raise Damaged(
            f"{path}: no safetensors header of {length} "
            f"bytes in {region.size}; the file is cut, or none"
        )
    try:
        raw = _RAW.decode(read_small(region.slice(8, 8 + length)))
        metadata = _METADATA.decode(raw.pop("__metadata__", msgspec.Raw(b"{}")))
        entries = {name: _ENTRIES.decode(each) for name, each in raw.items()}
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise Damaged(f"{path}: no safetensors header: {error}") from error
    data = region.slice(8 + length, region.size)
    leaves = {name: _leaf(name, entry, data) for name, entry in _entries_by_key(entries)}
    tree = {
        "dict": {
            name: {"leaf": leaf.key} for name, leaf in zip(entries, leaves.values(), strict=True)
        }
    }
    facts: dict[str, Any] = {"metadata": metadata} if metadata else {}
    flaws = [
        Problem(path, 8 + length, region.size, what) for what in _layout_flaws(entries, data.size)
    ]
    return ForeignContent("safetensors", tree, leaves, [path], facts=facts, flaws=flaws)


def _entries_by_key(entries: dict[str, _Entry]) -> Iterator[tuple[str, _Entry]]:
    taken: dict[str, None] = {}
    for name, entry in entries.items():
        key = unused_key(quote_key(name), taken)
        taken[key] = None
        yield key, entry


def _leaf(key: str, entry: _Entry, data: Region) -> ForeignLeaf:
    start, stop = entry.data_offsets
    place = data.slice(max(0, start), max(0, stop))
    return ForeignLeaf(key, _DTYPES.get(entry.dtype, entry.dtype), entry.shape, place)


def _layout_flaws(entries: dict[str, _Entry], size: int) -> Iterator[str]:
    """Yield what contradicts the format: tensors lie one after another,
    without holes, to the end of the file.
    """
    end = 0
    for name, entry in sorted(entries.items(), key=lambda item: item[1].data_offsets):
        start, stop = entry.data_offsets
        dtype = _DTYPES.get(entry.dtype)
        items = 1
        for extent in entry.shape:
            items = items * extent if 0 <= extent < 2**62 and items < 2**62 else -1
        if start != end or stop < start:
            yield f"tensor {name!r} begins at {start} and not at {end}, where the one before ends"
        elif dtype is not None and stop - start != items * ITEMSIZE[dtype]:
            yield f"tensor {name!r} has {stop - start} bytes, which are not those of its shape"
        elif stop > size:
            yield f"tensor {name!r} ends at {stop}, beyond the {size} bytes that are there"
        end = max(stop, end)
    if end < size:
        yield f"{size - end} bytes behind the last tensor"
