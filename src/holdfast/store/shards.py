"""Shards: leaves laid out in safetensors files of at most 1 GiB, and on their way to the disk. The layout is pure."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from .. import bulk
from ..bulk import Run
from ..state.codec import ITEMSIZE, SAFETENSORS, Block
from ..state.snapshot import Snapshot
from .format import File, Leaf, hasher, joined_digest, shard_stem

SHARD_BYTES = 1 << 30
MOST_GROUPS = 32  # a state with more top-level keys than this goes into one group of shards


class Shard(NamedTuple):
    """One data file to be: its leaves in file order."""

    name: str
    keys: list[str]
    header: bytes


def layout(leaves: Mapping[str, Block]) -> list[Shard]:
    """Which leaf goes into which file: `model/fc.weight` is the tensor `fc.weight` of model.safetensors."""
    groups: dict[str, list[tuple[str, str]]] = {}
    for key in leaves:
        top, slash, rest = key.partition("/")
        groups.setdefault(shard_stem(top) if slash else "state", []).append((key, rest or top))
    if len(groups) > MOST_GROUPS:
        groups = {"state": [(key, key) for key in leaves]}
    shards = []
    for stem, members in groups.items():
        packs = list(_packed(members, leaves))
        for index, pack in enumerate(packs, 1):
            part = "" if len(packs) == 1 else f"-{index:05d}-of-{len(packs):05d}"
            keys = [key for key, _ in pack]
            shards.append(Shard(f"{stem}{part}.safetensors", keys, header(keys, _unique(pack), leaves)))
    return shards


def _packed(members: list[tuple[str, str]], leaves: Mapping[str, Block]) -> Iterator[list[tuple[str, str]]]:
    pack: list[tuple[str, str]] = []
    size = 0
    # widest items first: then every leaf starts at a multiple of its item size, as a memory map wants it
    for key, name in sorted(members, key=lambda member: -ITEMSIZE.get(leaves[member[0]].dtype, 16)):
        if pack and size + leaves[key].data.nbytes > SHARD_BYTES:
            yield pack
            pack, size = [], 0
        pack.append((key, name))
        size += leaves[key].data.nbytes
    yield pack


def _unique(pack: list[tuple[str, str]]) -> list[str]:
    """Tensor names of one file; two groups that share a stem may repeat one, and safetensors reserves another."""
    seen: set[str] = set()
    names = []
    for key, name in pack:
        chosen = key if name in seen or name == "__metadata__" else name
        while chosen in seen or chosen == "__metadata__":
            chosen += "~"
        seen.add(chosen)
        names.append(chosen)
    return names


def header(keys: Sequence[str], names: Sequence[str], leaves: Mapping[str, Block]) -> bytes:
    """The length and the JSON in front of the data; `names`: of the tensors, as safetensors' readers see them.

    Source: safetensors' format description.
    """
    entries: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    offset = 0
    for key, name in zip(keys, names, strict=True):
        block = leaves[key]
        size = block.data.nbytes
        code = SAFETENSORS.get(block.dtype)
        entries[name] = {
            "dtype": code or "U8",  # bytes whose dtype only our manifest knows, complex128 for one
            "shape": list(block.shape) if code else [size],
            "data_offsets": [offset, offset + size],
        }
        offset += size
    text = msgspec.json.encode(entries)
    text += b" " * (-(len(text) + 8) % 16)
    return len(text).to_bytes(8, "little") + text


class Staged(NamedTuple):
    """A state ready to be written: its tree, its leaves, and its files as they are to be.

    A snapshot holds each file's bytes in one piece; without it they are gathered from the leaves.
    """

    tree: Any
    leaves: Mapping[str, Block]
    shards: Sequence[Shard]
    snapshot: Snapshot | None = None

    @property
    def size_bytes(self) -> int:
        return sum(block.data.nbytes for block in self.leaves.values())


class Written(NamedTuple):
    """What a shard's file turned out to hold."""

    file: File
    leaves: dict[str, Leaf]


def write(path: Path, staged: Staged, index: int, before_each: Callable[[], None]) -> Written:
    """Write one shard into the directory `path`; the manifest's entries for it, digests taken on the way."""
    shard = staged.shards[index]
    sizes = [len(shard.header), *(staged.leaves[key].data.nbytes for key in shard.keys)]
    snapshot = staged.snapshot
    runs = [Run(snapshot.images[index], sizes)] if snapshot is not None else _runs(shard, staged.leaves)
    digests = bulk.write(path / shard.name, runs, sum(sizes), hasher, before_each)
    offset = sizes[0]
    leaves = {}
    for key, found in zip(shard.keys, digests[1:], strict=True):
        block = staged.leaves[key]
        size = block.data.nbytes
        leaves[key] = Leaf(
            block.kind, block.dtype, tuple(block.shape), shard.name, offset, size, found, dict(block.attrs)
        )
        offset += size
    return Written(File(offset, joined_digest(digests)), leaves)


def _runs(shard: Shard, leaves: Mapping[str, Block]) -> Iterator[Run]:
    yield Run(memoryview(shard.header), [len(shard.header)])
    for key in shard.keys:
        data = leaves[key].data
        yield Run(data, [data.nbytes])
