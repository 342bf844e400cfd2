"""Reads what `torch.save` writes: a zip file with a pickle and one member for each storage, or a
single pickle.
"""

from __future__ import annotations

import io
from typing import Any

from ..errors import Damaged, StoreError
from . import pickles
from .content import CRC, ForeignContent
from .known import HARMLESS, KNOWN, STORAGES
from .pickles import PERSISTENT, PickledCall, PickledName
from .region import Region
from .trees import Step, TensorStorage, TreeBuilder
from .zips import ZipMembers

PICKLE = "data.pkl"
# the first value of an older file; source: torch.serialization.MAGIC_NUMBER
_BEFORE_1_6 = 0x1950A86A20F9469CFC6C


def read(region: Region, path: Step = ()) -> ForeignContent:
    """Return what a zip file of torch's holds; `path` goes before the keys of its leaves.

    Raises:
        Damaged: it is cut, or a part of it is missing.
        StoreError: it holds more than is read.
    """
    archive = ZipMembers(region)
    top = _top_folder(archive)
    value = pickles.read(io.BytesIO(archive.read(f"{top}{PICKLE}")), region.path)
    tree = TreeBuilder(region.path, KNOWN, lambda reference: _find_storage(archive, top, reference))
    script = f"{top}constants.pkl" in archive.members
    root = tree.build_node(value, path)

    return ForeignContent(
        "TorchScript" if script else "torch",
        root,
        tree.leaves,
        [region.path],
        facts=imported_names(value),
        proof=CRC if archive.has_crc else None,
        check=archive.problems,
    )


def read_pickle(region: Region, path: Step = ()) -> ForeignContent:
    """Return what a file that is one pickle holds; `path` goes before the keys of its leaves.

    Raises:
        Damaged: it is cut.
        StoreError: it holds more than is read, or torch wrote it before version 1.6.
    """
    with region.open() as file:
        value = pickles.read(file, region.path)
    if type(value) is int and value == _BEFORE_1_6:
        raise StoreError(
            f"{region.path}: written by torch before 1.6; "
            "not read. torch.load and torch.save it anew"
        )
    tree = TreeBuilder(region.path, KNOWN, refuse_storage)
    return ForeignContent(
        "pickle",
        tree.build_node(value, path),
        tree.leaves,
        [region.path],
        facts=imported_names(value),
    )


def imported_names(value: Any) -> dict[str, Any]:
    """Return the names that torch.load would import and call, besides those of plain data."""
    found = sorted(name for name in pickles.names_in(value) if name not in HARMLESS)
    return {"would import": found} if found else {}


def _top_folder(archive: ZipMembers) -> str:
    """Return the folder in the archive: torch names it like the file."""
    found = [
        name.removesuffix(PICKLE)
        for name in archive.members
        if name == PICKLE or name.endswith(f"/{PICKLE}")
    ]
    if not found:
        raise Damaged(f"{archive.region.path}: a zip file without a {PICKLE}: not one of torch's")
    top = min(found, key=len)
    order = f"{top}byteorder"
    if order in archive.members and archive.read(order) != b"little":
        raise StoreError(
            f"{archive.region.path}: written on a big-endian machine, "
            "which is not read; save it again on a little-endian one"
        )
    return top


def parse_storage_reference(made: Any) -> tuple[str, str, int]:
    """Return the key, the dtype and the number of items of the storage that a pickle refers to.

    Raises:
        ValueError, TypeError, LookupError: it refers to none.
    """
    if not isinstance(made, PickledCall) or made.kind != PERSISTENT:
        raise TypeError("no storage")
    word, kind, key, _, count, *_ = made.args[0]
    if (
        word != "storage"
        or not isinstance(kind, PickledName)
        or not isinstance(count, int)
        or count < 0
    ):
        raise TypeError("no storage")
    return str(key), STORAGES[kind.name], count


def _find_storage(archive: ZipMembers, top: str, made: Any) -> TensorStorage:
    key, dtype, _ = parse_storage_reference(made)
    member = archive.members.get(f"{top}data/{key}") or archive.members.get(f"{top}tensors/{key}")
    if member is None:
        return TensorStorage(key, dtype, Region(archive.region.path, 0, 0))
    if member.is_compressed:
        raise StoreError(
            f"{archive.region.path}: {member.name}: compressed bytes of a tensor; not read"
        )
    return TensorStorage(key, dtype, member.region)


def refuse_storage(made: Any) -> TensorStorage:
    """Refuse a tensor in a text, or in a pickle that has no storages beside it."""
    raise TypeError(f"a tensor without bytes: {made}")
