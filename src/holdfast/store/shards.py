"""Shards: leaves laid out in safetensors files of at most 1 GiB, and read back. The layout is pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import msgspec

from ..state.codec import ITEMSIZE, SAFETENSORS, Block
from .format import File, Leaf, digest, joined_digest, shard_stem

SHARD_BYTES = 1 << 30
MOST_GROUPS = 32  # a state with more top-level keys than this goes into one group of shards


class Shard(NamedTuple):
    """One data file to be: its leaves in file order."""

    name: str
    keys: list[str]
    names: list[str]  # of the tensors, as safetensors' readers see them


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
            shards.append(Shard(f"{stem}{part}.safetensors", [key for key, _ in pack], _unique(pack)))
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


def header(shard: Shard, leaves: Mapping[str, Block]) -> bytes:
    """The length and the JSON in front of the data. Source: safetensors' format description."""
    entries: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    offset = 0
    for key, name in zip(shard.keys, shard.names, strict=True):
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


class Written(NamedTuple):
    """What a shard's file turned out to hold."""

    file: File
    leaves: dict[str, Leaf]


class Writing:
    """The chunks of one shard, digested as they pass from memory to the disk."""

    def __init__(self, shard: Shard, blocks: Mapping[str, Block]) -> None:
        self._shard, self._blocks = shard, blocks
        self._header = header(shard, blocks)
        self._digests: list[str] = []

    def chunks(self) -> Iterator[bytes | memoryview]:
        self._digests = [digest(self._header)]
        yield self._header
        for key in self._shard.keys:
            data = self._blocks[key].data
            self._digests.append(digest(data))
            yield data

    def written(self) -> Written:
        """The entries for the manifest, after the last chunk has gone."""
        offset = len(self._header)
        leaves = {}
        for key, found in zip(self._shard.keys, self._digests[1:], strict=True):
            block = self._blocks[key]
            size = block.data.nbytes
            shape, attrs = tuple(block.shape), dict(block.attrs)
            leaves[key] = Leaf(block.kind, block.dtype, shape, self._shard.name, offset, size, found, attrs)
            offset += size
        return Written(File(offset, joined_digest(self._digests)), leaves)
