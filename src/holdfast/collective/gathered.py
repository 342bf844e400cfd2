"""Gathered: one checkpoint whose parts are written by processes that agree in a way of their own, as torch's DCP has one.

`begin` and `commit` are its leader's; every process calls `write` in between, and hands its seal to the leader.
"""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ..state.codec import Block
from ..store import format, parts, shards
from ..store.attempt import JOIN_S
from ..store.checkpoint import Checkpoint
from ..store.format import File, Leaf
from ..store.parts import Part, own_key
from ..store.shards import Staged
from ..store.store import Facts, Store
from .rank_share import Seal, sealed, sealed_manifest


class Gathered:
    """The leader's side of one save."""

    def __init__(self, store: Store, step: int, facts: Facts) -> None:
        self._owner, self._facts, self.name = store.owner, facts, format.Name(step, facts.phase)

    def begin(self) -> Path:
        """An empty directory in the attempt's own room, for every process to write its part into.

        Raises:
            UsageError: that step is committed already, or another attempt lives.
        """
        return self._owner.begin(self.name)

    def commit(self, partial: Path, seals: Sequence[Seal], tree: Any) -> Checkpoint:
        """All parts are durable: the checkpoint exists from here on."""
        owner, name, facts = self._owner, self.name, self._facts
        owner.finish(name, partial, lambda _: sealed_manifest(owner, name, facts, seals, tree))
        owner.apply_rule(name)
        return owner.shelf.checkpoint(name)


class Writing:
    """One process's part: leaves in shards, as many times as it likes, and then the seal."""

    def __init__(self, partial: Path, rank: int) -> None:
        self._partial, self._rank = partial, rank
        self._files: dict[str, File] = {}
        self._leaves: dict[str, Leaf] = {}

    def add(self, blocks: Mapping[str, Block]) -> None:
        """Write these leaves, durably; every one but those of rank 0 that are whole is a piece, and says of what."""
        layout = shards.layout(blocks, taken=set(self._files), prefix=parts.prefix(self._rank))
        for index, shard in enumerate(layout):
            written = shards.write(self._partial, Staged(None, blocks, layout), index, lambda: None)
            self._files[shard.name] = written.file
            self._leaves |= {
                own_key(self._rank, key) if "of" in leaf.attrs else key: leaf for key, leaf in written.leaves.items()
            }

    def seal(self) -> Seal:
        """Say what was written; durable when this returns."""
        return sealed(self._partial, Part(self._rank, self._files, self._leaves), ())


def await_directory(path: Path) -> None:
    """Return when this process sees a directory that another made.

    Raises:
        FileNotFoundError: it does not, in the time that network file systems lag.
    """
    until = time.monotonic() + JOIN_S
    while not path.is_dir():
        if time.monotonic() > until:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(path))
        time.sleep(0.05)
