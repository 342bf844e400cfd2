"""HDF5 files and Keras' archives of one.
Their datasets are listed with h5py, if it is installed.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from functools import partial
from typing import Any

import msgspec

from ..errors import Damaged, StoreError
from ..state.codec import ITEMSIZE
from ..state.nodes import quote_key
from .content import CRC, ForeignContent
from .leaf import LeafChunk, Place
from .pt import refuse_storage
from .region import Region, read_small
from .trees import Step, TreeBuilder
from .zips import ZipMembers

_MARK = b"\x89HDF\r\n\x1a\n"
_END_AT = {0: 40, 1: 44, 2: 28, 3: 28}  # superblock version -> the offset of the file's length
_WEIGHTS = "model.weights.h5"
_WITHOUT = "need h5py to be listed: pip install h5py"
_MOST = 100_000  # datasets
_JSON = msgspec.json.Decoder()


def read(region: Region) -> ForeignContent:
    """Return what an HDF5 file holds; without h5py only whether the file has the length that its
    header gives.

    Raises:
        Damaged: it is cut, or damaged.
    """
    _check_length(region)
    tree, root = TreeBuilder(region.path, {}, refuse_storage), dict[str, Any]()
    values = "read"
    try:
        for steps, found in _datasets(region):
            dtype, shape, place = found
            _put_node(root, steps, tree.add_leaf(tuple(map(quote_key, steps)), dtype, shape, place))
    except ImportError:
        values = _WITHOUT
    except (OSError, RuntimeError, ValueError, LookupError, TypeError, AttributeError) as error:
        raise Damaged(f"{region.path}: h5py cannot read it: {error}") from error
    return ForeignContent("HDF5", {"dict": root}, tree.leaves, [region.path], values=values)


def read_archive(region: Region) -> ForeignContent:
    """Return what a .keras file holds: a zip file with settings and the weights.

    Raises:
        Damaged: it is cut, or the weights are missing.
    """
    packed = ZipMembers(region)
    weights = packed.members.get(_WEIGHTS)
    if weights is None:
        raise Damaged(f"{region.path}: no {_WEIGHTS} in it")
    if weights.is_compressed:
        raise StoreError(f"{region.path}: {_WEIGHTS} is compressed; not read")
    try:
        facts = _JSON.decode(packed.read("metadata.json"))
        _JSON.decode(packed.read("config.json"))
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise Damaged(f"{region.path}: no JSON in it: {error}") from error

    content = read(weights.region)
    known = facts if isinstance(facts, dict) else {}
    return content._replace(
        format="Keras", facts=known, proof=CRC if packed.has_crc else None, check=packed.problems
    )


def _check_length(region: Region) -> None:
    """Compare the file's size with its header.

    Raises:
        Damaged: the file is shorter than its first bytes say, or has no such bytes.
    """
    head = read_small(region.slice(0, 64))
    at = _END_AT.get(head[8]) if len(head) == 64 and head.startswith(_MARK) else None
    if at is None:
        raise Damaged(f"{region.path}: no whole HDF5 file")
    end = struct.unpack_from("<Q", head, at)[0]
    if not at < end <= region.size:
        raise Damaged(
            f"{region.path}: {region.size} bytes long, "
            f"and its header says {end}; it is cut, or damaged"
        )


def _datasets(region: Region) -> Iterator[tuple[Step, tuple[str, tuple[int, ...], Any]]]:
    """Yield path, dtype, shape and place of each dataset. Links to other files are not followed."""
    import h5py

    found: list[tuple[Step, tuple[str, tuple[int, ...], Any]]] = []

    def visit(name: str, item: Any) -> bool | None:
        if isinstance(item, h5py.Dataset) and item.shape is not None:
            found.append((tuple(name.split("/")), _describe_dataset(region, name, item)))
        return True if len(found) > _MOST else None

    with region.open() as window, h5py.File(window, "r") as file:
        if file.visititems(visit):
            raise StoreError(f"{region.path}: more than {_MOST:,} datasets; not read")
    yield from found


def _describe_dataset(region: Region, name: str, item: Any) -> tuple[str, tuple[int, ...], Any]:
    dtype, shape = str(item.dtype.name), tuple(int(extent) for extent in item.shape)
    if dtype not in ITEMSIZE or item.dtype.byteorder == ">":
        return (
            str(item.dtype.str),
            shape,
            [LeafChunk((), (), region.path, partial(_unreadable_place, region, name))],
        )
    offset, size = item.id.get_offset(), item.size * ITEMSIZE[dtype]
    if offset is not None and item.id.get_storage_size() == size:
        return dtype, shape, region.slice(offset, offset + size)
    return (
        dtype,
        shape,
        [LeafChunk((0,) * len(shape), shape, region.path, partial(_read_dataset, region, name))],
    )


def _unreadable_place(region: Region, name: str) -> Place:
    raise StoreError(f"{region.path}: {name}: numbers of a type that is not read")


def _read_dataset(region: Region, name: str) -> Place:
    """Read a dataset that is stored in chunks, or compressed."""
    import h5py

    with region.open() as window, h5py.File(window, "r") as file:
        try:
            return bytes(file[name][()].tobytes())
        except (OSError, RuntimeError, ValueError, LookupError) as error:
            raise Damaged(f"{region.path}: {name}: {error}") from error


def _put_node(root: dict[str, Any], steps: Step, node: Any) -> None:
    for part in steps[:-1]:
        root = root.setdefault(part, {"dict": {}})["dict"]
    root[steps[-1]] = node
