"""Sharing: files that did not change pass from the last checkpoint to the next, linked where that goes, else copied.

A shared file shares its damage: each is read back from the medium before it is taken over.
"""

from __future__ import annotations

import errno
import time
from collections.abc import Collection, Mapping
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from .. import disk
from ..errors import Damaged, NotFound, StoreError
from ..rules import Whole
from ..state.codec import Block
from . import shards
from .attempt import Attempt, is_checkpoint
from .checkpoint import Checkpoint
from .format import Manifest
from .lineage import Lineage, Link
from .shards import Staged, Stale
from .shelf import Shelf

_NO_LINK = (errno.EMLINK, errno.EXDEV, errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS)


class Unchanged(NamedTuple):
    """What a state has in common with the last checkpoint."""

    leaves: set[str]
    links: list[Link]  # files of which every leaf is among these

    @property
    def linked(self) -> set[str]:
        return {key for link in self.links for key in link.leaves}


class Sharing:
    """The checkpoint from which the next one of the run may take over files, and the taking."""

    def __init__(self, shelf: Shelf, whole: Whole) -> None:
        self.whole = whole
        self.lineage: Lineage | None = None
        self._shelf = shelf
        self._barren: str | None = None  # the checkpoint from which nothing is taken over: a file of it is damaged
        self._read: tuple[str, Collection[str]] = "", ()  # files of a checkpoint, read back as they were linked

    def unchanged(self, leaves: Mapping[str, Block], parent: str | None) -> Unchanged:
        """What need not be written because the checkpoint `parent` has it."""
        lineage = self._lineage_of(parent)
        if lineage is None:
            return Unchanged(set(), [])
        found = lineage.unchanged(leaves)
        return Unchanged(found, lineage.links(found, self.whole, time.time()))

    def _lineage_of(self, parent: str | None) -> Lineage | None:
        """None unless `parent` is in its place, whole and not pinned."""
        if parent is None or parent == self._barren or self.whole.checkpoints == 1:
            return None
        checkpoint = self._shelf.checkpoint(parent)
        if self.lineage is None or self.lineage.path != checkpoint.path:
            self.lineage = None
            with suppress(Damaged, NotFound, StoreError):
                if checkpoint.world == 1:  # the files of several ranks are not those of one
                    self.lineage = Lineage(checkpoint.path, checkpoint.manifest, None)
        gone = self.lineage is None or not is_checkpoint(self.lineage.path) or parent in self._shelf.pins()
        return None if gone else self.lineage

    def looks_at(self, keys: Collection[str], parent: str) -> bool:
        """Whether one of these leaves would be digested, after the checkpoint `parent`, to see if it is unchanged."""
        lineage = self.lineage
        if lineage is None or lineage.path.name != parent or lineage.steady is None:
            return True
        return not lineage.steady.isdisjoint(keys)

    def take_over(self, attempt: Attempt, links: Collection[Link], partial: Path) -> None:
        """Let `partial` hold files of the last checkpoint, each after it was read back from the medium.

        Raises:
            Stale: one is not there, or not what was committed.
        """
        self._read = partial.name, {link.name for link in links}
        for link in links:
            self._take_over(attempt, link, partial)

    def _take_over(self, attempt: Attempt, link: Link, partial: Path) -> None:
        lineage = self.lineage
        if lineage is None or link.source.parent != lineage.path:
            raise Stale(f"{link.source}: no longer the last checkpoint's")
        parent = Checkpoint(lineage.path)
        try:
            wrong = list(parent.problems(cold=True, only={link.name}))
            if not wrong and not self._linked(link, partial / link.name):
                shards.copy(link.source, partial / link.name, link)
        except (NotFound, FileNotFoundError) as error:
            attempt.require()
            raise Stale(f"{link.source} is gone: its leaves, unchanged since, are written anew") from error
        if wrong:
            raise Stale(f"{link.source} is damaged: its leaves, unchanged since, are written anew")

    def _linked(self, link: Link, target: Path) -> bool:
        """Link it if that can be done, and its checkpoint is not pinned, perhaps since a moment ago."""
        name = link.source.parent.name
        if name in self._shelf.pins():
            return False
        try:
            disk.link(link.source, target)
        except OSError as error:
            if error.errno not in _NO_LINK:
                raise
            return False
        if name in self._shelf.pins():
            disk.remove_file(target)
            return False
        return True

    def read_back(self, checkpoint: Checkpoint) -> Collection[str]:
        """Names of its files that were read from the medium as it took them over."""
        name, files = self._read
        return files if checkpoint.path.name == name else ()

    def remember(self, path: Path, manifest: Manifest) -> None:
        """Make the checkpoint committed at `path` the one to take over files from."""
        before = self.lineage
        self.lineage = before.after(path, manifest) if before else Lineage(path, manifest, None)

    def sample(self, staged: Staged, before: Lineage | None) -> None:
        """Note a few bytes of what was written. `before`: the lineage when it was not yet."""
        if self.lineage is not None:
            written = (key for shard in staged.shards for key in shard.keys)
            self.lineage = self.lineage.sampled(before, staged.leaves, written)

    def forget(self) -> None:
        """Read anew, with the next save, what the last checkpoint is."""
        self.lineage = None

    def distrust(self, name: str | None) -> None:
        """Take nothing over from that checkpoint any more."""
        self.lineage, self._barren = None, name
