"""Lineage: what of a state did not change since the checkpoint before it, so that its shards are linked, not written.

A leaf that has changed once is taken to change again; so only leaves that were the same in the last two checkpoints are
looked at before a save, and they lie in shards of their own. A shared file shares its damage: it is read back from the
medium before each link, and written anew every so often (`Whole`).
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable, Mapping, Sequence
from itertools import chain, pairwise
from pathlib import Path
from typing import NamedTuple

from ..pages import Data, sample, side_by_side
from ..rules import Whole
from ..state.codec import Block
from .format import File, Leaf, Manifest, digest, seconds

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
    """The checkpoint from which the next one may take over files."""

    path: Path
    manifest: Manifest
    steady: frozenset[str] | None  # leaves that were the same in the one before it; None: nobody knows
    samples: Mapping[str, bytes] = {}  # a few bytes of big leaves: where these differ nothing need be digested

    def unchanged(self, leaves: Mapping[str, Block]) -> set[str]:
        """Keys of leaves whose bytes are the same as in this checkpoint, among those that are worth a look."""
        known = self.manifest.leaves
        likely = known.keys() if self.steady is None else self.steady
        alike = [
            key
            for key, block in leaves.items()
            if key in likely
            and _alike(block, known[key])
            and (key not in self.samples or self.samples[key] == sample(block.data))
        ]
        if sum(leaves[key].data.nbytes for key in alike) < LINK_BYTES:
            return set()
        found = digests_of([leaves[key].data for key in alike])
        return {key for key, value in zip(alike, found, strict=True) if value == known[key].digest}

    def links(self, unchanged: Collection[str], whole: Whole, now_s: float) -> list[Link]:
        """The shards of which every leaf is unchanged, and that are not due to be written anew."""
        shards: dict[str, dict[str, Leaf]] = {}
        for key, leaf in self.manifest.leaves.items():
            shards.setdefault(leaf.shard, {})[key] = leaf
        return [
            Link(name, self.path / name, self._shared(name), members)
            for name, members in shards.items()
            if all(key in unchanged for key in members)
            and self.manifest.files[name].size_bytes >= LINK_BYTES
            and not self._worn(self.manifest.files[name], whole, now_s)
        ]

    def after(self, path: Path, manifest: Manifest) -> Lineage:
        """The lineage when `manifest`, committed at `path`, has followed."""
        old = self.manifest.leaves
        steady = (key for key, leaf in manifest.leaves.items() if key in old and _same(leaf, old[key]))
        return Lineage(path, manifest, frozenset(steady))

    def sampled(self, before: Lineage | None, leaves: Mapping[str, Block], written: Iterable[str]) -> Lineage:
        """With samples of the leaves that were `written`; of the others as `before`."""
        old = before.samples if before is not None else {}
        fresh = {key: sample(leaves[key].data) for key in written if leaves[key].data.nbytes >= _SAMPLED_BYTES}
        return self._replace(samples={key: old[key] for key in old if key in leaves} | fresh)

    def _shared(self, name: str) -> File:
        file = self.manifest.files[name]
        origin = file.origin or str(self.manifest.name)
        return File(file.size_bytes, file.digest, origin, file.written or self.manifest.created, file.links + 1)

    def _worn(self, file: File, whole: Whole, now_s: float) -> bool:
        age_s = now_s - seconds(file.written or self.manifest.created)
        return file.links + 1 >= whole.checkpoints or age_s >= whole.hours * _HOUR_S


def _alike(block: Block, leaf: Leaf) -> bool:
    return (
        block.data.nbytes == leaf.size_bytes
        and (block.kind, block.dtype, tuple(block.shape)) == (leaf.kind, leaf.dtype, leaf.shape)
        and dict(block.attrs) == leaf.attrs
    )


def _same(leaf: Leaf, old: Leaf) -> bool:
    return leaf.digest == old.digest and (leaf.kind, leaf.dtype, leaf.shape, leaf.attrs) == (
        old.kind,
        old.dtype,
        old.shape,
        old.attrs,
    )


def digests_of(views: Sequence[Data]) -> list[str]:
    """Of each, in one thread for each core; a thread's share is contiguous, so that small leaves cost little more than their bytes."""
    total, ends, sent = sum(view.nbytes for view in views), [0], 0
    for index, view in enumerate(views, 1):
        sent += view.nbytes
        if sent >= total * len(ends) / THREADS or index == len(views):
            ends.append(index)
    shares = [views[start:end] for start, end in pairwise(ends)]
    return list(chain.from_iterable(side_by_side(lambda share: [digest(view) for view in share], shares, THREADS)))
