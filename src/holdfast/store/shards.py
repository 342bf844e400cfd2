"""Shards: leaves laid out in safetensors files of at most 1 GiB, and on their way to the disk. The layout is pure."""

from __future__ import annotations

import mmap
import os
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from .. import bulk, disk
from ..bulk import Extent
from ..state.codec import ITEMSIZE, SAFETENSORS, Block
from ..state.snapshot import Arena, Image, Snapshot
from ..threads import Hook
from .format import File, Leaf, hasher, joined_digest, shard_stem
from .lineage import LINK_BYTES, Link

SHARD_BYTES = 1 << 30
MOST_GROUPS = 32  # a state with more top-level keys than this goes into one group of shards


class Shard(NamedTuple):
    """One data file to be: its leaves in file order."""

    name: str
    keys: list[str]
    header: bytes


def layout(
    leaves: Mapping[str, Block], steady: Collection[str] = (), taken: Collection[str] = (), prefix: str = ""
) -> list[Shard]:
    """Which leaf goes into which file: `model/fc.weight` is the tensor `fc.weight` of model.safetensors.

    Leaves that are `steady` lie in files of their own; no file gets a name that is `taken`, each begins with `prefix`.
    """
    tops: dict[str, list[tuple[str, str]]] = {}
    for key in leaves:
        top, slash, name = key.partition("/")
        tops.setdefault(top if slash else "", []).append((key, name or top))
    groups: dict[str, list[tuple[str, str]]] = {}
    for top, members in tops.items():
        groups.setdefault(shard_stem(top) if top else "state", []).extend(members)
    if len(groups) > MOST_GROUPS:
        groups = {"state": [(key, key) for key in leaves]}
    names = {*taken}
    shards: list[Shard] = []
    for stem, members in groups.items():
        apart = [member for member in members if member[0] in steady]
        if sum(leaves[key].data.nbytes for key, _ in apart) < LINK_BYTES:
            apart = []
        rest = [member for member in members if not apart or member[0] not in steady]
        shards += _named(prefix + stem, list(_packed(rest, leaves)), names, leaves)
        shards += _named(f"{prefix}{stem}-steady", list(_packed(apart, leaves)), names, leaves)
    return shards


def _named(
    stem: str, packs: list[list[tuple[str, str]]], names: set[str], leaves: Mapping[str, Block]
) -> Iterator[Shard]:
    while any(name == f"{stem}.safetensors" or name.startswith(f"{stem}-0") for name in names):
        stem += "~"
    for index, pack in enumerate(packs, 1):
        keys = [key for key, _ in pack]
        name = f"{stem}.safetensors" if len(packs) == 1 else f"{stem}-{index:05d}-of-{len(packs):05d}.safetensors"
        names.add(name)
        yield Shard(name, keys, header(keys, _unique(pack), leaves))


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
    if pack:
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

    A snapshot holds each file's bytes in one piece once it is copied. Without one they are gathered from the leaves.
    """

    tree: Any
    leaves: Mapping[str, Block]
    shards: Sequence[Shard]
    links: Sequence[Link] = ()
    snapshot: Snapshot | None = None
    whole: Mapping[str, Block] | None = None  # the leaves without their pieces, where some are divided

    @property
    def size_bytes(self) -> int:
        """Of what is to be written."""
        return sum(self.leaves[key].data.nbytes for shard in self.shards for key in shard.keys)

    def snapshot_in(self, arena: Arena) -> Staged:
        """The same, written from memory of the arena, into which the snapshot is still to be copied."""
        bulk.release()  # a snapshot is written from where it lies
        fresh = {key: self.leaves[key] for shard in self.shards for key in shard.keys}
        snapshot = Snapshot(arena, [Image(shard.header, shard.keys) for shard in self.shards], fresh)
        return self._replace(leaves={**self.leaves, **snapshot.blocks}, snapshot=snapshot, whole=None)


class Abandoned(Exception):
    """A save ended early, for another one; the store is as it was."""


class Stale(Abandoned):
    """A file to take over from the last checkpoint is missing, or differs from what was committed."""


class Written(NamedTuple):
    """What a shard's file turned out to hold."""

    file: File
    leaves: dict[str, Leaf]


def write(path: Path, staged: Staged, index: int, before_each: Hook) -> Written:
    """Write one shard into the directory `path`; the manifest's entries for it, digests taken on the way.

    Of a snapshot that is still being copied, what is there is written, and the rest is waited for.

    Raises:
        Abandoned: the copy was given up.
    """
    shard = staged.shards[index]
    sizes = [len(shard.header), *(staged.leaves[key].data.nbytes for key in shard.keys)]
    runs = _runs(shard, staged.leaves) if staged.snapshot is None else _copied(staged, staged.snapshot, index, sizes)
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


def _copied(staged: Staged, snapshot: Snapshot, index: int, sizes: Sequence[int]) -> Iterable[Extent]:
    def await_first(size: int) -> bool:
        if not snapshot.wait(index, size):
            raise Abandoned
        return not snapshot.copied.is_set()  # the loop waits for that, and has the memory's speed to itself

    image = snapshot.images[index]
    if image is not None:
        return [Extent(image, sizes, await_first)]
    if not snapshot.wait_for_all():
        raise Abandoned
    return _runs(staged.shards[index], staged.leaves)


def _runs(shard: Shard, leaves: Mapping[str, Block]) -> Iterator[Extent]:
    yield Extent(memoryview(shard.header), [len(shard.header)])
    for key in shard.keys:
        data = leaves[key].data
        yield Extent(data, [data.nbytes])


def copy(source: Path, target: Path, link: Link) -> None:
    """Write a file's bytes anew where it cannot be linked.

    Raises:
        Stale: they are not what was committed.
    """
    leaves = sorted(link.leaves.values(), key=lambda leaf: leaf.order)
    sizes = [leaves[0].offset, *(leaf.size_bytes for leaf in leaves)]
    with open(disk.open_plain(source), "rb") as file:
        whole = sum(sizes) == os.fstat(file.fileno()).st_size
        data = memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)) if whole else memoryview(b"")
        digests = bulk.write(target, [Extent(data, sizes)], sum(sizes), hasher) if whole else []
    if joined_digest(digests) != link.file.digest:
        raise Stale(f"{source} is damaged: its leaves, unchanged since, are written anew")
