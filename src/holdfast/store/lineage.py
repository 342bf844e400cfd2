"""Lineage: which leaves are unchanged since the last checkpoint, so that their shards are linked
instead of written.

A leaf that has changed once is expected to change again. So a save compares only leaves that were
the same in the last two checkpoints; these leaves have shards of their own. Damage to a shared file
affects all checkpoints that share it. So the file is read back from the medium before each link,
and written anew from time to time (`Whole`).
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable, Mapping, Sequence
from itertools import chain, pairwise
from operator import attrgetter
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple

from ..pages import Data, sample_bytes
from ..rules import Whole
from ..state.codec import Block
from ..threads import map_in_threads
from .format import XXH3, FileEntry, LeafEntry, created_s, digest, kind_of

LINK_BYTES = 1 << 20  # the least total size of unchanged leaves that get a file of their own
THREADS = min(4, os.cpu_count() or 1)
_HOUR_S = 3600.0
_SAMPLED_BYTES = 64 << 10  # digesting a smaller leaf is as quick as comparing a sample


class LinkedShard(NamedTuple):
    """A shard that is the same as in the last checkpoint."""

    name: str
    source: Path
    file: FileEntry
    leaves: Mapping[str, LeafEntry]


class Lineage(NamedTuple):
    """The checkpoint whose files the next one may link.

    With several ranks: the leaves that this rank wrote. Also, without a file, common leaves that
    another rank wrote.
    """

    path: Path
    created: str
    files: Mapping[str, FileEntry]
    leaves: Mapping[str, LeafEntry]
    # leaves that were the same in the checkpoint before it; None: unknown
    steady: frozenset[str] | None = None
    # a few bytes of each big leaf: if these differ, the leaf changed and is not digested
    samples: Mapping[str, bytes] = {}

    @property
    def kind(self) -> str:
        """The algorithm of its digests."""
        return next((kind_of(leaf.digest) for leaf in self.leaves.values()), XXH3)

    def unchanged(
        self, leaves: Mapping[str, Block], digests: Mapping[str, str] = MappingProxyType({})
    ) -> set[str]:
        """Return the keys of leaves whose bytes are the same as in this checkpoint. Only probable
        candidates are compared.

        `digests`: those that were computed already, by key.
        """
        likely = self.leaves.keys() if self.steady is None else self.steady
        worth = [
            key
            for key, block in leaves.items()
            if key in likely
            and has_same_description(block, self.leaves[key])
            and (
                key in digests
                or key not in self.samples
                or self.samples[key] == sample_bytes(block.data)
            )
        ]
        if sum(leaves[key].data.nbytes for key in worth) < LINK_BYTES:
            return set()
        asked = [key for key in worth if key not in digests]
        found = dict(
            zip(asked, digest_all([leaves[key].data for key in asked], self.kind), strict=True)
        )
        return {key for key in worth if (found.get(key) or digests[key]) == self.leaves[key].digest}

    def links_of_unchanged(
        self, unchanged: Collection[str], whole: Whole, now_s: float
    ) -> list[LinkedShard]:
        """Return the shards of which every leaf is unchanged, except those that must be written
        anew.
        """
        found = self.links_named((leaf.shard for leaf in self.leaves.values()), whole, now_s)
        large = (link for link in found if link.file.size_bytes >= LINK_BYTES)
        return [link for link in large if all(key in unchanged for key in link.leaves)]

    def links_named(self, names: Iterable[str], whole: Whole, now_s: float) -> list[LinkedShard]:
        """Return links to the files with these names and all their leaves, except files that must
        be written anew.
        """
        members: dict[str, dict[str, LeafEntry]] = {name: {} for name in names}
        for key, leaf in self.leaves.items():
            if leaf.shard in members:
                members[leaf.shard][key] = leaf
        return [
            LinkedShard(name, self.path / name, self._count_link(self.files[name]), held)
            for name, held in members.items()
            if name in self.files and not self._must_rewrite(self.files[name], whole, now_s)
        ]

    def after_commit(
        self,
        path: Path,
        created: str,
        files: Mapping[str, FileEntry],
        leaves: Mapping[str, LeafEntry],
    ) -> Lineage:
        """Return the lineage after a checkpoint with these files and leaves was committed at
        `path`.
        """
        steady = (
            key
            for key, leaf in leaves.items()
            if key in self.leaves and _has_same_bytes(leaf, self.leaves[key])
        )
        return Lineage(path, created, files, leaves, frozenset(steady))

    def with_samples(self, before: Lineage | None, samples: dict[str, bytes]) -> Lineage:
        """Return this lineage with samples of the leaves that were written; the other samples are
        taken from `before`.
        """
        old = before.samples if before is not None else {}
        return self._replace(samples={key: old[key] for key in old if key in self.leaves} | samples)

    def _count_link(self, file: FileEntry) -> FileEntry:
        origin = file.origin or self.path.name
        return FileEntry(
            file.size_bytes, file.digest, origin, file.written or self.created, file.links + 1
        )

    def _must_rewrite(self, file: FileEntry, whole: Whole, now_s: float) -> bool:
        age_s = now_s - created_s(file.written or self.created)
        return file.links + 1 >= whole.checkpoints or age_s >= whole.hours * _HOUR_S


def samples_of(leaves: Mapping[str, Block], keys: Iterable[str]) -> dict[str, bytes]:
    """Return a few bytes of each big leaf."""
    return {
        key: sample_bytes(leaves[key].data)
        for key in keys
        if leaves[key].data.nbytes >= _SAMPLED_BYTES
    }


def has_same_description(block: Block, leaf: LeafEntry) -> bool:
    """Return whether a block and a stored leaf have the same kind, dtype, shape and attributes."""
    return (
        block.data.nbytes == leaf.size_bytes
        and (block.kind, block.dtype, tuple(block.shape)) == (leaf.kind, leaf.dtype, leaf.shape)
        and dict(block.attrs) == leaf.attrs
    )


def _has_same_bytes(leaf: LeafEntry, old: LeafEntry) -> bool:
    facts = attrgetter("digest", "kind", "dtype", "shape", "attrs")
    return bool(facts(leaf) == facts(old))


def digest_all(views: Sequence[Data], kind: str = XXH3) -> list[str]:
    """Return the digest of each view, computed with one thread per core. A thread's share is
    contiguous: small leaves need that.
    """
    total, ends, sent = sum(view.nbytes for view in views), [0], 0
    for index, view in enumerate(views, 1):
        sent += view.nbytes
        if sent >= total * len(ends) / THREADS or index == len(views):
            ends.append(index)
    shares = [views[start:end] for start, end in pairwise(ends)]
    found = map_in_threads(lambda share: [digest(view, kind) for view in share], shares, THREADS)
    return list(chain.from_iterable(found))
