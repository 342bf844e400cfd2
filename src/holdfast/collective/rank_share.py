"""RankShare: what one of several ranks writes of a checkpoint. It links files of its own that did
not change.

Links concern this rank alone: if a file cannot be linked after all, it is written, without a
message to other ranks.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from .. import disk
from ..errors import StoreError
from ..state.codec import Block
from ..store import format, lineage, parts, shards
from ..store.attempt import Attempt
from ..store.committing import CheckpointWriter, ManifestFields
from ..store.format import CheckpointName, FileEntry, LeafEntry, Manifest, PartEntry
from ..store.lineage import LinkedShard, samples_of
from ..store.parts import Part, own_key
from ..store.shards import Shard, StagedState, StaleLink
from ..store.sharing import FileLinker, ReusableLeaves
from ..threads import Hook, nothing
from .division import RankState, WritePlan


class PartSeal(msgspec.Struct, frozen=True, array_like=True):
    """A rank's message to rank 0 that the files of its part are durable, with their digests."""

    entry: PartEntry
    file: FileEntry
    not_finite: list[str] = []  # as in a manifest
    version: int = format.VERSION  # the lowest that expresses the part


SEALS = msgspec.msgpack.Decoder(PartSeal)  # made here for the reason that `format` has


class WrittenShare(NamedTuple):
    """The result of writing one share."""

    part: Part
    # all leaves of the checkpoint that this rank has entries of, by their keys in its parts
    leaves: Mapping[str, LeafEntry]
    samples: dict[str, bytes]  # of the pieces that were written
    changed: Collection[str]  # keys in the state of leaves that will probably be written again
    passing: Collection[str]  # names of files that will probably be linked


class RankShare:
    """The files that this rank writes for a checkpoint. One object serves all saves."""

    def __init__(self, rank: int, sharing: FileLinker) -> None:
        self._rank, self._sharing = rank, sharing
        self._changed: Collection[str] = ()
        self._passing: Collection[str] = ()

    def expected_shards(self, leaves: Mapping[str, Block]) -> list[Shard]:
        """Return the layout of the next snapshot: the files that this rank writes if it writes the
        same leaves as before, and others.
        """
        mine = {key: block for key, block in leaves.items() if key in self._changed}
        rest = {key: block for key, block in leaves.items() if key not in mine}
        return shards.layout(
            mine, taken=self._passing, prefix=parts.shard_prefix(self._rank)
        ) + shards.layout(rest)

    def find_unchanged(self, mine: RankState, parent: str | None) -> ReusableLeaves:
        """Find the leaves that this rank wrote for the checkpoint `parent` and that have not
        changed since.
        """
        names = mine.part_keys(self._rank)
        digests = {name: mine.digests[key] for name, key in names.items() if key in mine.digests}
        return self._sharing.find_unchanged(
            {name: mine.blocks[key] for name, key in names.items()}, parent, digests
        )

    def write(
        self,
        attempt: Attempt,
        partial: Path,
        plan: WritePlan,
        staged: StagedState,
        unchanged: ReusableLeaves,
        before_each: Hook,
    ) -> WrittenShare:
        """Write all shards, but not the part.
        Link the files that are `unchanged`, as far as that is possible.
        """
        links = self._link_unchanged(attempt, partial, plan, unchanged, before_each)
        linked = {key for link in links for key in link.leaves}
        blocks = {key: block for key, block in plan.blocks.items() if plan.keys[key] not in linked}
        steady = {key for key in blocks if plan.keys[key] in unchanged.leaves}
        layout = shards.layout(
            blocks, steady, {link.name for link in links}, parts.shard_prefix(self._rank)
        )
        files, leaves = _write_shards(partial, layout, blocks, staged, before_each)
        _require_same(leaves, plan)
        passing = _files_likely_unchanged(layout, files, steady).union(link.name for link in links)
        files |= {link.name: link.file for link in links}
        named = {name: leaf for link in links for name, leaf in link.leaves.items()}
        named |= {plan.keys[key]: leaf for key, leaf in leaves.items()}
        named = {plan.keys[key]: named[plan.keys[key]] for key in plan.blocks}
        pieces = {plan.keys[key]: block for key, block in blocks.items() if key not in plan.digests}
        return WrittenShare(
            Part(self._rank, files, named, plan.tree, plan.spare),
            named
            | {
                key: _entry_without_file(staged.leaves[key], plan.digests[key])
                for key in plan.elsewhere
            },
            samples_of(pieces, pieces),
            {key for key in blocks if leaves[key].shard not in passing},
            passing,
        )

    def _link_unchanged(
        self,
        attempt: Attempt,
        partial: Path,
        plan: WritePlan,
        unchanged: ReusableLeaves,
        before_each: Hook,
    ) -> list[LinkedShard]:
        """Link the unchanged files; return those that were linked: none if a file is damaged."""
        mine = set(plan.keys.values())
        links = [link for link in unchanged.links if mine.issuperset(link.leaves)]
        try:
            self._sharing.link_files(attempt, links, partial, before_each)
        except StaleLink:
            self._sharing.stop_linking_from(links[0].source.parent.name)
            # link nothing: all files are read back later
            self._sharing.link_files(attempt, links := [], partial)
        return links

    def note_committed(self, checkpoint: Path, created: str, written: WrittenShare) -> None:
        """Note that the checkpoint is committed,
        so that the next one may link the files that this rank wrote.
        """
        before = self._sharing.lineage
        self._sharing.set_last_checkpoint(checkpoint, created, written.part.files, written.leaves)
        self._sharing.keep_samples(written.samples, before)
        self._changed, self._passing = written.changed, written.passing


def seal_part(
    partial: Path, part: Part, firsts: Collection[str], kind: str = format.XXH3
) -> PartSeal:
    """Write a rank's part beside its shards. When this returns, both are durable."""
    data, name = parts.encode(part), format.part_file_name(part.rank)
    disk.write(partial / name, [data])
    disk.sync_dir(partial)
    entry = PartEntry(name, sum(file.size_bytes for file in part.files.values()), list(firsts))
    weights = parts.nonfinite_leaves(part)[: format.MOST_NAMES]
    return PartSeal(entry, parts.file_entry(data, kind), weights, format.version_of(data))


def commit_parts(
    owner: CheckpointWriter,
    name: CheckpointName,
    facts: ManifestFields,
    partial: Path,
    seals: Collection[PartSeal],
    tree: Any,
) -> Manifest:
    """Commit the checkpoint that consists of these durable parts."""

    def fill(_: Path) -> Manifest:
        manifest = owner.manifest(
            name, facts, {seal.entry.part: seal.file for seal in seals}, {}, tree
        )
        found = list(dict.fromkeys(key for seal in seals for key in seal.not_finite))[
            : format.MOST_NAMES
        ]
        version = max((seal.version for seal in seals), default=format.VERSION)
        entries = [seal.entry for seal in seals]
        return msgspec.structs.replace(manifest, ranks=entries, not_finite=found, version=version)

    return owner.commit_partial(name, partial, fill)


class PartWriter:
    """Writes one rank's part: leaves in shards, in any number of calls, and then the seal."""

    def __init__(self, partial: Path, rank: int) -> None:
        self.partial, self._rank = partial, rank
        self._files: dict[str, FileEntry] = {}
        self._leaves: dict[str, LeafEntry] = {}

    def add(self, blocks: Mapping[str, Block]) -> None:
        """Write these leaves, durably.
        Each is a piece with its place, or a whole leaf of rank 0.
        """
        layout = shards.layout(
            blocks, taken=set(self._files), prefix=parts.shard_prefix(self._rank)
        )
        files, leaves = _write_shards(
            self.partial, layout, blocks, StagedState(None, blocks, layout), nothing
        )
        self._files |= files
        self._leaves |= {
            own_key(self._rank, key) if "of" in leaf.attrs else key: leaf
            for key, leaf in leaves.items()
        }

    def seal(self) -> PartSeal:
        """Return the digests of what was written. When this returns, all of it is durable."""
        return seal_part(self.partial, Part(self._rank, self._files, self._leaves), ())


def _write_shards(
    path: Path,
    layout: list[Shard],
    blocks: Mapping[str, Block],
    staged: StagedState,
    before_each: Hook,
) -> tuple[dict[str, FileEntry], dict[str, LeafEntry]]:
    alone = StagedState(None, blocks, layout, kind=staged.kind)
    images = {shard.name: index for index, shard in enumerate(staged.shards)}
    files, leaves = dict[str, FileEntry](), dict[str, LeafEntry]()
    for index, shard in enumerate(layout):
        at = images.get(shard.name)
        # a snapshot then has the file's bytes in one piece
        foreseen = at is not None and staged.shards[at] == shard
        source, place = (staged, at or 0) if foreseen else (alone, index)
        written = shards.write_shard(path, source, place, before_each)
        files[shard.name] = written.file
        leaves |= written.leaves
    return files, leaves


def _files_likely_unchanged(
    layout: Sequence[Shard], files: Mapping[str, FileEntry], steady: Collection[str]
) -> set[str]:
    """Return the names of files that will probably be linked next time, because nothing in them
    changed this time.
    """
    large = [shard for shard in layout if files[shard.name].size_bytes >= lineage.LINK_BYTES]
    return {shard.name for shard in large if all(key in steady for key in shard.keys)}


def _require_same(leaves: Mapping[str, LeafEntry], plan: WritePlan) -> None:
    """Compare the leaves with the digests that the ranks agreed on.

    Raises:
        StoreError: a leaf changed after the ranks compared theirs.
    """
    for key, leaf in leaves.items():
        if plan.digests.get(key, leaf.digest) != leaf.digest:
            raise StoreError(
                f"leaf {key!r} changed while it was saved: "
                "nothing may change the state until the save is over"
            )


def _entry_without_file(block: Block, digest: str) -> LeafEntry:
    """Return the entry of a leaf that another rank has written."""
    return LeafEntry(
        block.kind,
        block.dtype,
        tuple(block.shape),
        "",
        0,
        block.data.nbytes,
        digest,
        dict(block.attrs),
    )
