"""Reads folders of Orbax: what they hold, by their metadata, and whether their save was finished.
Values need Orbax itself.
"""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, Literal

import msgspec

from .. import scan
from ..errors import Damaged, StoreError
from ..legible import legible
from ..state.nodes import quote_key
from ..store.problems import Problem
from . import pt
from .content import ForeignContent
from .known import KNOWN
from .leaf import LeafChunk, Place
from .region import Region, read_small, whole_file
from .trees import Step, TreeBuilder

UNFINISHED = ".orbax-checkpoint-tmp"  # in the name of a folder that is being written
_OWN = "_CHECKPOINT_METADATA"
_TREE = "_METADATA"
_MANIFEST = "manifest.ocdbt"
_COMMITTED = "commit_success.txt"
_TEXTS, _STRING = "_strings.json", "string"
_MOST = 100_000  # files of one array, and items of one checkpoint
# source: TensorStore's OCDBT format
_MAGIC = {_MANIFEST: b"\x0c\xdb\x3a\x2a", "d": b"\x0c\xdb\x20\xde"}


class _Key(msgspec.Struct, frozen=True):
    key: Any


class _Value(msgspec.Struct, frozen=True):
    value_type: str = ""
    skip_deserialize: bool = False  # None, or an empty container: only the tree has it
    write_shape: list[int] | None = None
    shape: list[int] | None = None


class _Node(msgspec.Struct, frozen=True):
    key_metadata: list[_Key]
    value_metadata: _Value


class _Metadata(msgspec.Struct, frozen=True):
    tree_metadata: dict[str, _Node]
    # older writers do not record it; Orbax' reader then looks for a manifest
    use_ocdbt: bool | None = None


_Separator = Literal[".", "/"]  # nothing else, so that no name leaves the folder


class _Array(msgspec.Struct, frozen=True):
    """An array's description in Zarr's version 2."""

    shape: list[int]
    chunks: list[int]
    dtype: str
    dimension_separator: _Separator = "."

    def piece(self, index: Iterable[int]) -> str:
        return self.dimension_separator.join(map(str, index)) or "0"


class _Grid(msgspec.Struct, frozen=True):
    chunk_shape: list[int]


class _Regular(msgspec.Struct, frozen=True):
    configuration: _Grid


class _Separated(msgspec.Struct, frozen=True):
    separator: _Separator = "/"


class _Default(msgspec.Struct, frozen=True):
    name: Literal["default"]
    configuration: _Separated = _Separated()


class _Array3(msgspec.Struct, frozen=True):
    """The same in version 3."""

    shape: list[int]
    chunk_grid: _Regular
    chunk_key_encoding: _Default
    dtype: str = msgspec.field(name="data_type")

    @property
    def chunks(self) -> list[int]:
        return self.chunk_grid.configuration.chunk_shape

    def piece(self, index: Iterable[int]) -> str:
        return self.chunk_key_encoding.configuration.separator.join(["c", *map(str, index)])


_METADATA, _TEXT = msgspec.json.Decoder(_Metadata), msgspec.json.Decoder(dict[str, str])
# what describes an array, by the file's name
_ARRAYS: dict[str, Any] = {
    ".zarray": msgspec.json.Decoder(_Array),
    "zarr.json": msgspec.json.Decoder(_Array3),
}
_ANY = msgspec.json.Decoder()
_DTYPE = {"f": "float", "i": "int", "u": "uint", "c": "complex", "b": "bool"}


def is_folder(path: Path, names: frozenset[str]) -> bool:
    """Return whether Orbax writes such a folder, or was writing it."""
    return (
        _OWN in names
        or (_TREE in names and bool(names & {_MANIFEST, _COMMITTED, "_sharding"}))
        or _is_tmp(path)
    )


def _is_tmp(path: Path) -> bool:
    return UNFINISHED in path.absolute().name


def read(folder: Path, names: frozenset[str]) -> ForeignContent:
    """Return the names and shapes in a checkpoint, one for each item that it consists of."""
    reader = _Reader(folder)
    if _is_tmp(folder):
        reader.add_flaw(folder, "its save was not finished: Orbax renames the folder at the end")
    if _OWN in names:
        reader.read_own_metadata(folder / _OWN)
    items = (
        [folder]
        if _TREE in names
        else [each for each in sorted(folder.iterdir()) if scan.is_file(each / _TREE)]
    )
    for item in items[:_MOST]:
        reader.read_item(item, () if item == folder else (item.name,))
    if not items and not reader.flaws:
        reader.add_flaw(folder, f"no {_TREE} in it, nor in a folder of it")
    return ForeignContent(
        "Orbax",
        {"dict": reader.root},
        reader.tree.leaves,
        reader.files or [folder],
        facts=reader.facts,
        flaws=reader.flaws,
        values="need Orbax: their bytes are packed",
    )


class _Reader:
    """Collects the leaves and the flaws of a checkpoint of Orbax."""

    def __init__(self, folder: Path) -> None:
        self.root: dict[str, Any] = {}
        self.tree = TreeBuilder(folder, KNOWN, pt.refuse_storage)
        self.files: list[Path] = []
        self.facts: dict[str, Any] = {}
        self.flaws: list[Problem] = []

    def add_flaw(self, path: Path, what: str) -> None:
        self.flaws.append(Problem(path, 0, 0, what))

    def read_own_metadata(self, path: Path) -> None:
        """Read which program wrote the checkpoint, and whether the save was committed."""
        try:
            said = _ANY.decode(read_small(whole_file(path)))
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            self.add_flaw(path, f"no JSON: {error}")
            return
        self.files.append(path)
        if isinstance(said, dict) and not said.get("commit_timestamp_nsecs"):
            self.add_flaw(path, "its save was not committed: it has no time of a commit")

    def read_item(self, folder: Path, path: Step) -> None:
        try:
            metadata = _METADATA.decode(read_small(whole_file(folder / _TREE)))
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            self.add_flaw(folder / _TREE, f"no metadata of a tree: {error}")
            return
        except Damaged as error:
            self.add_flaw(folder / _TREE, str(error))
            return
        self.files.append(folder / _TREE)
        packed = metadata.use_ocdbt
        if packed is None:
            packed = scan.is_file(folder / _MANIFEST) or not any(
                scan.glob(folder, f"*/{name}") for name in _ARRAYS
            )
        self.texts(folder, [*metadata.tree_metadata.values()])
        for node in metadata.tree_metadata.values():
            steps = (*path, *(str(each.key) for each in node.key_metadata))
            self.add_leaf(folder, steps, len(path), node.value_metadata, packed=packed)
        if packed:
            self.check_ocdbt(folder)

    def add_leaf(self, folder: Path, steps: Step, own: int, value: _Value, *, packed: bool) -> None:
        """Add one array or scalar; without OCDBT each has a folder with its pieces."""
        shape, dtype = value.write_shape or value.shape or [], "unknown"
        if not (packed or value.skip_deserialize or value.value_type == _STRING):
            array = self.read_array_metadata(folder / ".".join(steps[own:]))
            shape, dtype = (array.shape, _parse_dtype(array.dtype)) if array else (shape, dtype)
        place = [LeafChunk((), (), folder, partial(_ocdbt_place, folder))]
        node = self.tree.add_leaf(tuple(map(quote_key, steps)), dtype, tuple(shape), place)
        root = self.root
        for part in steps[:-1]:
            root = root.setdefault(part, {"dict": {}}).setdefault("dict", {})
        root[steps[-1] if steps else "value"] = node

    def texts(self, folder: Path, nodes: Iterable[_Node]) -> None:
        """Check that the file with all texts has each."""
        wanted = [each for each in nodes if each.value_metadata.value_type == _STRING]
        try:
            found = _TEXT.decode(read_small(whole_file(folder / _TEXTS))) if wanted else {}
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            self.add_flaw(folder / _TEXTS, f"no texts: {error}")
            return
        except Damaged:
            self.add_flaw(folder / _TEXTS, "missing")
            return
        self.files += [folder / _TEXTS] if wanted else []
        for name in (".".join(str(each.key) for each in node.key_metadata) for node in wanted):
            if name not in found:
                self.add_flaw(folder / _TEXTS, f"without {legible(name)}")

    def read_array_metadata(self, folder: Path) -> Any:
        """Read Zarr's metadata of an array, and check that each of its chunks exists."""
        if self.tree.where not in {folder.parent, folder.parent.parent}:
            self.add_flaw(folder, "outside the checkpoint")
            return None
        name = next((each for each in _ARRAYS if scan.is_file(folder / each)), ".zarray")
        try:
            array = _ARRAYS[name].decode(read_small(whole_file(folder / name)))
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            self.add_flaw(folder / name, f"no description of an array: {error}")
            return None
        except Damaged:
            self.add_flaw(folder / name, "missing")
            return None
        counts = [
            -(-extent // max(1, chunk))
            for extent, chunk in zip(array.shape, array.chunks, strict=False)
        ]
        if math.prod(counts) > _MOST or any(count < 0 for count in counts):
            raise StoreError(f"{folder}: an array in more than {_MOST:,} files; not read")
        for index in itertools.product(*map(range, counts)):
            piece = folder / array.piece(index)
            if not scan.is_file(piece) or not piece.stat().st_size:
                self.add_flaw(piece, "missing, or empty")
            else:
                self.files.append(piece)
        return array

    def check_ocdbt(self, folder: Path) -> None:
        """Check the files of OCDBT: a manifest, and data files that it names in a
        compressed way.
        """
        rooms = [folder, *scan.glob(folder, "ocdbt.process_*")[:_MOST]]
        for room in rooms:
            manifest, data = room / _MANIFEST, scan.glob(room / "d", "*")[:_MOST]
            if not scan.is_file(manifest):
                self.add_flaw(manifest, "missing")
            elif not data:
                self.add_flaw(room / "d", "no file with data")
            for file in (manifest, *data):
                if scan.is_file(file):
                    self.files.append(file)
                    for what in _frame_faults(
                        whole_file(file), _MAGIC[_MANIFEST if file == manifest else "d"]
                    ):
                        self.add_flaw(file, what)


def _frame_faults(region: Region, magic: bytes) -> Iterator[str]:
    """Yield the faults of the frames at the beginning of a file: each frame has a mark, and its
    length with that mark.
    """
    at = 0
    while at < region.size:
        head = read_small(region.slice(at, at + 12))
        if not head.startswith(magic[: len(head)]):
            if magic == _MAGIC[_MANIFEST]:
                yield "its beginning is not a manifest's"
            return  # values as they are, which have no frame
        size = int.from_bytes(head[4:], "little")
        if len(head) < 12 or size < 12 or at + size > region.size:
            yield f"cut: {size} bytes should follow byte {at}"
            return
        at += size
    if not region.size:
        yield "empty"


def _ocdbt_place(folder: Path) -> Place:
    raise StoreError(
        f"{folder}: values of Orbax are packed by TensorStore; read them with orbax.checkpoint"
    )


def _parse_dtype(text: str) -> str:
    match = re.fullmatch(r"[<|>]?([fiucb])(\d+)", text)  # version 3 has words
    kind, size = match.groups() if match else ("", "")
    return text if not match else "bool" if kind == "b" else f"{_DTYPE[kind]}{8 * int(size)}"
