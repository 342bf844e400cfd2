"""Lineage: what of a state did not change since the checkpoint before it, so that its shards are linked, not written.

A leaf that has changed once is taken to change again; so only leaves that were the same in the last two checkpoints are
looked at before a save, and they lie in shards of their own. A shared file shares its damage: it is read back from the
medium before each link, and written anew every so often (`Whole`).
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable, Mapping, Sequence
from itertools import chain, pairwise
from operator import attrgetter
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple

from ..pages import Data, sample
from ..rules import Whole
from ..state.codec import Block
from ..threads import map_in_threads
from .format import File, Leaf, digest, seconds

LINK_BYTES = 1 << 20  # of leaves that did not change; fewer are not worth a file
THREADS = min(4, os.cpu_count() or 1)
_HOUR_S = 3600.0
_SAMPLED_BYTES = 64 << 10  # a smaller leaf is digested in the time that asking takes


class Link(NamedTuple):
    """A shard that is the same as in the checkpoint before."""

    name: str
    source: Path
    file: File
    leaves: Mapping[str, Leaf]


class Lineage(NamedTuple):
    """The checkpoint from which the next one may take over files.

    Of several ranks, what this one wrote of it, and, without a file, what all had alike and another one wrote.
    """

    path: Path
    created: str
    files: Mapping[str, File]
    leaves: Mapping[str, Leaf]
    steady: frozenset[str] | None = None  # leaves that were the same in the one before it; None: nobody knows
    samples: Mapping[str, bytes] = {}  # a few bytes of big leaves: where these differ nothing need be digested

    def unchanged(self, leaves: Mapping[str, Block], digests: Mapping[str, str] = MappingProxyType({})) -> set[str]:
        """Keys of leaves whose bytes are the same as in this checkpoint, among those that are worth a look.

        `digests`: of leaves, as far as somebody has asked for them.
        """
        likely = self.leaves.keys() if self.steady is None else self.steady
        worth = [
            key
            for key, block in leaves.items()
            if key in likely
            and alike(block, self.leaves[key])
            and (key in digests or key not in self.samples or self.samples[key] == sample(block.data))
        ]
        if sum(leaves[key].data.nbytes for key in worth) < LINK_BYTES:
            return set()
        asked = [key for key in worth if key not in digests]
        found = dict(zip(asked, digests_of([leaves[key].data for key in asked]), strict=True))
        return {key for key in worth if (found.get(key) or digests[key]) == self.leaves[key].digest}

    def links(self, unchanged: Collection[str], whole: Whole, now_s: float) -> list[Link]:
        """The shards of which every leaf is unchanged, and that are not due to be written anew."""
        found = self.links_of((leaf.shard for leaf in self.leaves.values()), whole, now_s)
        large = (link for link in found if link.file.size_bytes >= LINK_BYTES)
        return [link for link in large if all(key in unchanged for key in link.leaves)]

    def links_of(self, names: Iterable[str], whole: Whole, now_s: float) -> list[Link]:
        """The files with these names that are not due to be written anew, with all that they hold."""
        members: dict[str, dict[str, Leaf]] = {name: {} for name in names}
        for key, leaf in self.leaves.items():
            if leaf.shard in members:
                members[leaf.shard][key] = leaf
        return [
            Link(name, self.path / name, self._shared(self.files[name]), held)
            for name, held in members.items()
            if name in self.files and not self._worn(self.files[name], whole, now_s)
        ]

    def after(self, path: Path, created: str, files: Mapping[str, File], leaves: Mapping[str, Leaf]) -> Lineage:
        """The lineage when a checkpoint with these has been committed at `path`."""
        steady = (key for key, leaf in leaves.items() if key in self.leaves and _same(leaf, self.leaves[key]))
        return Lineage(path, created, files, leaves, frozenset(steady))

    def sampled(self, before: Lineage | None, samples: dict[str, bytes]) -> Lineage:
        """With samples of the leaves that were written; of the others as `before`."""
        old = before.samples if before is not None else {}
        return self._replace(samples={key: old[key] for key in old if key in self.leaves} | samples)

    def _shared(self, file: File) -> File:
        origin = file.origin or self.path.name
        return File(file.size_bytes, file.digest, origin, file.written or self.created, file.links + 1)

    def _worn(self, file: File, whole: Whole, now_s: float) -> bool:
        age_s = now_s - seconds(file.written or self.created)
        return file.links + 1 >= whole.checkpoints or age_s >= whole.hours * _HOUR_S


def samples_of(leaves: Mapping[str, Block], keys: Iterable[str]) -> dict[str, bytes]:
    """A few bytes of each that is big."""
    return {key: sample(leaves[key].data) for key in keys if leaves[key].data.nbytes >= _SAMPLED_BYTES}


def alike(block: Block, leaf: Leaf) -> bool:
    """Whether they have the same kind, dtype, shape and attributes."""
    return (
        block.data.nbytes == leaf.size_bytes
        and (block.kind, block.dtype, tuple(block.shape)) == (leaf.kind, leaf.dtype, leaf.shape)
        and dict(block.attrs) == leaf.attrs
    )


def _same(leaf: Leaf, old: Leaf) -> bool:
    facts = attrgetter("digest", "kind", "dtype", "shape", "attrs")
    return bool(facts(leaf) == facts(old))


def digests_of(views: Sequence[Data]) -> list[str]:
    """The digest of each, by one thread for each core. Each thread's share is contiguous, as small leaves need."""
    total, ends, sent = sum(view.nbytes for view in views), [0], 0
    for index, view in enumerate(views, 1):
        sent += view.nbytes
        if sent >= total * len(ends) / THREADS or index == len(views):
            ends.append(index)
    shares = [views[start:end] for start, end in pairwise(ends)]
    return list(chain.from_iterable(map_in_threads(lambda share: [digest(view) for view in share], shares, THREADS)))
