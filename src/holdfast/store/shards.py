"""Shards: the layout of leaves in safetensors files of at most 1 GiB,
and writing them. The layout is pure.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from .. import bulk
from ..bulk import MemoryRun
from ..errors import Damaged
from ..pages import Data, DistantBytes
from ..state.codec import ITEMSIZE, SAFETENSORS, Block
from ..state.snapshot import Arena, FileImage, Snapshot
from ..threads import Hook
from .finite_check import FiniteCheck
from .format import XXH3, FileEntry, LeafEntry, hasher, in_file, joined_digest, kind_of, shard_stem
from .lineage import LINK_BYTES, LinkedShard
from .source import FileReader

SHARD_BYTES = 1 << 30
MOST_GROUPS = 32  # a state with more top-level keys than this has one group of shards


class Shard(NamedTuple):
    """One data file to write: its leaves in file order."""

    name: str
    keys: list[str]
    header: bytes


def layout(
    leaves: Mapping[str, Block],
    steady: Collection[str] = (),
    taken: Collection[str] = (),
    prefix: str = "",
) -> list[Shard]:
    """Decide which leaf is in which file: `model/fc.weight` is the tensor `fc.weight` of
    model.safetensors.

    The leaves `steady` get files of their own. No file gets a name in `taken`; each name begins
    with `prefix`.
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
    names = {each.casefold() for each in taken}
    shards: list[Shard] = []
    for stem, members in groups.items():
        apart = [member for member in members if member[0] in steady]
        if sum(leaves[key].data.nbytes for key, _ in apart) < LINK_BYTES:
            apart = []
        rest = [member for member in members if not apart or member[0] not in steady]
        shards += _name_packs(prefix + stem, list(_pack(rest, leaves)), names, leaves)
        shards += _name_packs(f"{prefix}{stem}-steady", list(_pack(apart, leaves)), names, leaves)
    return shards


def _name_packs(
    stem: str, packs: list[list[tuple[str, str]]], names: set[str], leaves: Mapping[str, Block]
) -> Iterator[Shard]:
    # a checkpoint may be copied to a file system that ignores letters' case
    folded = stem.casefold()
    while any(name == f"{folded}.safetensors" or name.startswith(f"{folded}-0") for name in names):
        stem, folded = f"{stem}~", f"{folded}~"
    for index, pack in enumerate(packs, 1):
        keys = [key for key, _ in pack]
        name = (
            f"{stem}.safetensors"
            if len(packs) == 1
            else f"{stem}-{index:05d}-of-{len(packs):05d}.safetensors"
        )
        names.add(name.casefold())
        yield Shard(name, keys, header(keys, _tensor_names(pack), leaves))


def _pack(
    members: list[tuple[str, str]], leaves: Mapping[str, Block]
) -> Iterator[list[tuple[str, str]]]:
    pack: list[tuple[str, str]] = []
    size = 0
    # widest items first: then every leaf starts at a multiple of its item size, which memory maps
    # need
    for key, name in sorted(members, key=lambda member: -ITEMSIZE.get(leaves[member[0]].dtype, 16)):
        if pack and size + leaves[key].data.nbytes > SHARD_BYTES:
            yield pack
            pack, size = [], 0
        pack.append((key, name))
        size += leaves[key].data.nbytes
    if pack:
        yield pack


def _tensor_names(pack: list[tuple[str, str]]) -> list[str]:
    """Return the tensor names of one file, each unique. Groups with one stem may repeat a name;
    safetensors reserves another.
    """
    seen: set[str] = set()
    names = []
    for key, name in pack:
        chosen = key if name in seen or name == "__metadata__" else name
        while chosen in seen or chosen == "__metadata__":
            chosen += "~"
        seen.add(chosen)
        names.append(chosen)
    return names


class _Tensor(msgspec.Struct, frozen=True, gc=False):
    """An entry in a safetensors header."""

    dtype: str
    shape: tuple[int, ...]
    data_offsets: tuple[int, int]


def header(keys: Sequence[str], names: Sequence[str], leaves: Mapping[str, Block]) -> bytes:
    """Return the header in front of the data: its length and its JSON. `names` are those that
    safetensors readers show.

    Source: safetensors' format description.
    """
    entries: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    start = 0
    for key, name in zip(keys, names, strict=True):
        block = leaves[key]
        stop = start + block.data.nbytes
        code = SAFETENSORS.get(block.dtype)
        # only our manifest has the dtype of other bytes, for example complex128
        entries[name] = _Tensor(
            code or "U8", tuple(block.shape) if code else (stop - start,), (start, stop)
        )
        start = stop
    text = msgspec.json.encode(entries)
    text += b" " * (-(len(text) + 8) % 16)
    return len(text).to_bytes(8, "little") + text


class StagedState(NamedTuple):
    """A state that is ready to be written: its tree, its leaves, and the layout of its files.

    A snapshot holds each file's bytes contiguously once it is copied. Without a snapshot they are
    gathered from the leaves.
    """

    tree: Any
    leaves: Mapping[str, Block]
    shards: Sequence[Shard]
    links: Sequence[LinkedShard] = ()
    snapshot: Snapshot | None = None
    whole: Mapping[str, Block] | None = None  # the whole leaves, if some are divided in `leaves`
    kind: str = XXH3  # of the digests

    @property
    def size_bytes(self) -> int:
        """The size of all files to write."""
        return sum(self.leaves[key].data.nbytes for shard in self.shards for key in shard.keys)

    def snapshot_in(self, arena: Arena) -> StagedState:
        """Return the same state, to be written from the arena.
        The caller must still copy the snapshot there.
        """
        bulk.release_chunks()  # a snapshot is written from where it lies
        fresh = {key: self.leaves[key] for shard in self.shards for key in shard.keys}
        snapshot = Snapshot(
            arena, [FileImage(shard.header, shard.keys) for shard in self.shards], fresh
        )
        return self._replace(
            leaves={**self.leaves, **snapshot.blocks}, snapshot=snapshot, whole=None
        )


class SaveAbandoned(Exception):
    """Ends a save early because another save waits; the store is unchanged."""


class StaleLink(SaveAbandoned):
    """Ends a save because a file to link from the last checkpoint is missing, or differs from what
    was committed.
    """


class WrittenShard(NamedTuple):
    """The manifest's entries for a shard that was written."""

    file: FileEntry
    leaves: dict[str, LeafEntry]


def write_shard(path: Path, staged: StagedState, index: int, before_each: Hook) -> WrittenShard:
    """Write one shard into the directory `path`. Return its entries for the manifest; digests are
    computed meanwhile.

    If a snapshot is still being copied, this writes the bytes that are there and waits for the
    rest.

    Raises:
        Abandoned: the copy was given up.
    """
    shard = staged.shards[index]
    blocks = [staged.leaves[key] for key in shard.keys]
    sizes = [len(shard.header), *(block.data.nbytes for block in blocks)]
    runs = (
        _leaf_runs(shard, staged.leaves)
        if staged.snapshot is None
        else _snapshot_runs(staged, staged.snapshot, index, sizes)
    )
    finite_check = FiniteCheck(
        ["", *(block.dtype if block.weight else "" for block in blocks)], hasher(staged.kind)
    )
    digests = bulk.write(path / shard.name, runs, sum(sizes), finite_check.begin_piece, before_each)
    offset = sizes[0]
    leaves = {}
    for key, block, found, finite in zip(
        shard.keys, blocks, digests[1:], finite_check.finite[1:], strict=True
    ):
        size = block.data.nbytes
        leaves[key] = LeafEntry(
            block.kind,
            block.dtype,
            tuple(block.shape),
            shard.name,
            offset,
            size,
            found,
            dict(block.attrs),
            finite,
        )
        offset += size
    return WrittenShard(FileEntry(offset, joined_digest(digests, staged.kind)), leaves)


def _snapshot_runs(
    staged: StagedState, snapshot: Snapshot, index: int, sizes: Sequence[int]
) -> Sequence[MemoryRun | Data]:
    def await_first(size: int) -> bool:
        if not snapshot.wait(index, size):
            raise SaveAbandoned
        # the training loop waits for the copy, so leave it the memory's full speed
        return not snapshot.copied.is_set()

    image = snapshot.images[index]
    if image is not None:
        return [MemoryRun(image, sizes, await_first)]
    if not snapshot.wait_for_all():
        raise SaveAbandoned
    return _leaf_runs(staged.shards[index], staged.leaves)


def _leaf_runs(shard: Shard, leaves: Mapping[str, Block]) -> list[MemoryRun | Data]:
    return [memoryview(shard.header), *(leaves[key].data for key in shard.keys)]


def copy_file(source: Path, target: Path, link: LinkedShard) -> None:
    """Write a file's bytes anew because it cannot be linked.

    Raises:
        Stale: the bytes differ from what was committed.
        OSError: they cannot be read, or not be written.
    """
    leaves = sorted(link.leaves.values(), key=in_file)
    sizes = [leaves[0].offset, *(leaf.size_bytes for leaf in leaves)]
    kind = kind_of(link.file.digest)
    try:
        opened = FileReader(source, cold=False, large=False)
    except Damaged as error:
        raise StaleLink(f"{error}: its leaves, unchanged since, are written anew") from error
    with closing(opened) as file:
        whole = sum(sizes) == os.fstat(file.descriptor).st_size
        data = DistantBytes(_FileItems(file), sum(sizes))
        digests = (
            bulk.write(target, [MemoryRun(data, sizes)], sum(sizes), hasher(kind)) if whole else []
        )
    if joined_digest(digests, kind) != link.file.digest:
        raise StaleLink(f"{source} is damaged: its leaves, unchanged since, are written anew")


class _FileItems:
    """A file's bytes as `LeafItems`. They are read, not mapped: if the medium fails, reading a map
    would end the process.
    """

    itemsize = 1

    def __init__(self, file: FileReader) -> None:
        self._file = file

    def gather(self, start: int, target: memoryview) -> None:
        self._file.read([target], start)

    def scatter(self, start: int, source: memoryview) -> None:
        raise NotImplementedError
