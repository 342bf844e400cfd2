"""Sharing: passes unchanged files from the last checkpoint to the next: linked if possible, else
copied.

Damage to a shared file affects all checkpoints that share it. So each file is read back from the
medium before it is linked, after the commit of the checkpoint that it comes from. That may be long
before the save: a sound read is noted.
"""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple

from .. import disk, scan
from ..errors import Damaged, NotFound, StoreError
from ..ranks import ALONE, Ranks
from ..rules import Whole
from ..state.codec import Block
from ..threads import Hook, nothing
from . import shards
from .attempt import Attempt, is_checkpoint
from .checkpoint import Checkpoint, Problem
from .checkpoint_index import CheckpointIndex
from .divided import Division, LeafDivider, parse_key
from .format import MANIFEST, FileEntry, LeafEntry
from .lineage import Lineage, LinkedShard, samples_of
from .shards import StaleLink

_NO_LINK = (errno.EMLINK, errno.EXDEV, errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS)

Identity = tuple[int, int, int, int]  # device, inode, size, mtime_ns


class ReusableLeaves(NamedTuple):
    """The leaves of a state that are unchanged since the last checkpoint, and the files that can be
    linked for them.
    """

    leaves: set[str]
    links: list[LinkedShard]  # files of which every leaf is unchanged

    @property
    def linked_keys(self) -> set[str]:
        return {key for link in self.links for key in link.leaves}


class _ReadBack(NamedTuple):
    """Files of the checkpoint `name` that were sound on the medium after its commit."""

    name: str
    files: dict[str, Identity]


class _LinkedFiles(NamedTuple):
    """Files that the checkpoint `name` has linked: those read back as it linked them, and those
    read back before.
    """

    name: str
    now: set[str]
    ahead: set[str]


class FileLinker:
    """Links files of the last checkpoint into the next one of the run.

    With several ranks each has its own linker for the files that it wrote itself. Ranks exchange no
    messages about links.
    """

    def __init__(self, index: CheckpointIndex, whole: Whole, ranks: Ranks = ALONE) -> None:
        self.whole, self._ranks = whole, ranks
        self.lineage: Lineage | None = None
        self._index = index
        self._divided = LeafDivider()
        # the checkpoint from which no file is linked, because one of its files is damaged
        self._barren: str | None = None
        self._found, self._taken = _ReadBack("", {}), _LinkedFiles("", set(), set())
        self._linkless = False  # whether this file system refuses links

    def find_unchanged(
        self,
        leaves: Mapping[str, Block],
        parent: str | None,
        digests: Mapping[str, str] = MappingProxyType({}),
    ) -> ReusableLeaves:
        """Find the leaves that this rank already wrote, unchanged, for the checkpoint `parent`.

        `digests`: those that were computed already, by key.
        """
        lineage = self._lineage_of(parent)
        if lineage is None:
            return ReusableLeaves(set(), [])
        found = lineage.unchanged(leaves, digests)
        return ReusableLeaves(found, lineage.links_of_unchanged(found, self.whole, time.time()))

    def plan_divisions(
        self, leaves: Mapping[str, Block], parent: str | None, taken: Collection[str]
    ) -> dict[str, Division]:
        """Decide which of `leaves` are written in pieces: they changed only in part since the
        checkpoint `parent`.

        No new file gets a name in `taken`.
        """
        lineage = self._lineage_of(parent)
        return (
            {}
            if lineage is None or self._linkless
            else self._divided.divide(leaves, lineage, self.whole, taken)
        )

    def _lineage_of(self, parent: str | None) -> Lineage | None:
        """The lineage from `parent`; None if that is missing, pinned, damaged, or a link to another
        checkpoint.

        None as well if reading it fails: then every file is written.
        """
        with suppress(OSError):
            return self._sound_lineage(parent)
        return None

    def _sound_lineage(self, parent: str | None) -> Lineage | None:
        if parent is None or parent == self._barren or self.whole.checkpoints == 1:
            return None
        checkpoint = self._index.checkpoint(parent)
        if self.lineage is None or self.lineage.path != checkpoint.path:
            self.lineage = None
            with suppress(Damaged, NotFound, StoreError):
                self.continue_from(self._as_own_rank(checkpoint.path))
        elsewhere = scan.is_symlink(checkpoint.path)  # its files belong to another run
        gone = (
            self.lineage is None
            or not is_checkpoint(self.lineage.path)
            or parent in self._index.pins()
        )
        return None if gone or elsewhere else self.lineage

    def continue_from(self, checkpoint: Checkpoint) -> None:
        """Make `checkpoint`, as this rank sees it, the one whose files may be linked next."""
        # otherwise other processes wrote the files, perhaps on other machines
        if checkpoint.world == self._ranks.world and checkpoint.head.kind == self._index.kind:
            mine = checkpoint.manifest
            self.lineage = Lineage(checkpoint.path, mine.created, mine.files, mine.leaves)
            self._found = _ReadBack(checkpoint.path.name, {})

    def _as_own_rank(self, path: Path) -> Checkpoint:
        """Return the checkpoint as this rank saved it, so that only its own files are read."""
        return self._index.checkpoint_at(path, rank=self._own_rank)

    @property
    def _own_rank(self) -> int | None:
        return None if self._ranks.alone else self._ranks.rank

    def links_to_read_back(self, parent: str | None) -> list[LinkedShard]:
        """Return the files that the save after `parent` will probably link, and would have to read
        first.

        After a restart these are the files that were linked before.
        """
        lineage = None if self._linkless else self._lineage_of(parent)
        if lineage is None:
            return []
        passed = (
            key
            for key, leaf in lineage.leaves.items()
            if leaf.shard in lineage.files and lineage.files[leaf.shard].links
        )
        steady = frozenset(passed) if lineage.steady is None else lineage.steady
        steady |= {key for key in lineage.leaves if parse_key(key) is not None}
        links = lineage.links_of_unchanged(steady, self.whole, time.time()) if steady else []
        return [link for link in links if link.name not in self._found.files]

    def read_back_early(self, links: Collection[LinkedShard], before_each: Hook) -> Problem | None:
        """Read these files back. Return the first problem; then no file of that checkpoint is
        linked again.

        `before_each` is called before each piece; what it raises ends this.
        """
        for link in links:
            checkpoint = self._as_own_rank(link.source.parent)
            for problem in self.problems(checkpoint, {link.name}, before_each):
                before_each()
                self._barren = checkpoint.path.name
                return problem
        return None

    def known_lineage(self, checkpoint: Checkpoint) -> Lineage | None:
        """Return the lineage if `checkpoint` is the last one, as this rank sees it: with only what
        this rank wrote.
        """
        lineage, mine = self.lineage, checkpoint.rank == self._own_rank
        return lineage if mine and lineage is not None and lineage.path == checkpoint.path else None

    def problems(
        self, checkpoint: Checkpoint, names: Collection[str], before_each: Hook = nothing
    ) -> list[Problem]:
        """Return the problems of these files and of the manifest on the medium.

        The last checkpoint's manifest is known, and not decoded again. If it has no problems, note
        that.
        """
        found, known = self._found, self.known_lineage(checkpoint)
        if known is None or checkpoint.path.name != found.name:
            return list(checkpoint.problems(cold=True, only=names, before_each=before_each))
        before = {name: _file_identity(checkpoint.path / name) for name in (MANIFEST, *names)}
        sound = before[MANIFEST] is not None and before[MANIFEST] == found.files.get(MANIFEST)
        wrong = [] if sound else list(checkpoint.manifest_problems(known.files))
        wrong = wrong or list(
            checkpoint.problems(cold=True, only=names, before_each=before_each, known=known)
        )
        if not wrong:
            same = (
                (name, known)
                for name, known in before.items()
                if known == _file_identity(checkpoint.path / name)
            )
            found.files.update((name, known) for name, known in same if known is not None)
        return wrong

    def link_files(
        self,
        attempt: Attempt,
        links: Sequence[LinkedShard],
        partial: Path,
        before_each: Hook = nothing,
    ) -> None:
        """Link these files of the last checkpoint into `partial`. Each was read back since its
        commit, or is read now.

        Raises:
            Stale: one is missing, or differs from what was committed; `partial` has none of them.
        """
        self._taken = _LinkedFiles(partial.name, set(), set())
        for link in links:
            if self.lineage is None or link.source.parent != self.lineage.path:
                raise StaleLink(f"{link.source}: no longer the last checkpoint's")
        try:
            rest = [
                link for link in links if not self._link_if_unmodified(link, partial / link.name)
            ]
            wrong = self._why_not_linkable(rest, before_each) if rest else ""
            for link in () if wrong else rest:
                if self._link(link, partial / link.name):
                    self._taken.now.add(link.name)
                else:
                    shards.copy_file(link.source, partial / link.name, link)
        except (NotFound, FileNotFoundError) as error:
            wrong = f"{getattr(error, 'filename', None) or links[0].source.parent} is gone"
        if wrong:
            attempt.require_ownership()
            for link in links:
                disk.remove_tree(partial / link.name)
            raise StaleLink(f"{wrong}: its leaves, unchanged since, are written anew")

    def _why_not_linkable(self, links: Sequence[LinkedShard], before_each: Hook) -> str:
        """Return which file must not be shared, and why; an empty string if all are sound on the
        medium.

        They are read together, because a manifest with many pieces takes long to decode. A read
        error on a broken disk only prevents the sharing: the state in memory must still be saved.
        """
        source = links[0].source.parent
        self.reread_manifest()
        try:
            problems = self.problems(
                self._as_own_rank(source), {link.name for link in links}, before_each
            )
        except (NotFound, FileNotFoundError):
            raise
        except (OSError, StoreError) as error:
            return f"{source} cannot be read ({error})"
        return f"{problems[0].path} is damaged" if problems else ""

    def _link_if_unmodified(self, link: LinkedShard, target: Path) -> bool:
        """Link it if it is still the file that was read back."""
        found = self._found
        known = found.files.get(link.name) if found.name == link.source.parent.name else None
        if known is None or not self._link(link, target):
            return False
        if _file_identity(target) == known:
            self._taken.ahead.add(link.name)
            return True
        disk.remove_file(target)
        return False

    def _link(self, link: LinkedShard, target: Path) -> bool:
        """Link it if the file system allows that, and its checkpoint was not pinned meanwhile."""
        name = link.source.parent.name
        if name in self._index.pins():
            return False
        try:
            disk.link(link.source, target)
        except OSError as error:
            if error.errno not in _NO_LINK:
                raise
            self._linkless = True
            return False
        if name in self._index.pins():
            disk.remove_file(target)
            return False
        return True

    def files_read_back(
        self, checkpoint: Checkpoint, doomed: Sequence[Checkpoint] | None
    ) -> Collection[str]:
        """Return names of files that need no read-back before `doomed` are removed; None: it is
        unknown what will be removed.

        These are files that were read when they were linked. Files read earlier are included if all
        of the doomed share them: then removing the doomed loses no other copy.
        """
        name, now, ahead = self._taken
        if checkpoint.path.name != name:
            return ()
        places = None if doomed is None else [each.path for each in doomed]
        return now.union(
            file for file in ahead if places and _is_same_file(file, [checkpoint.path, *places])
        )

    def files_read_early(self, checkpoint: Checkpoint) -> Collection[str]:
        """Return names of its files that were read from the medium some time before they were
        linked.
        """
        return self._taken.ahead if checkpoint.path.name == self._taken.name else ()

    def set_last_checkpoint(
        self,
        path: Path,
        created: str,
        files: Mapping[str, FileEntry],
        leaves: Mapping[str, LeafEntry],
    ) -> None:
        """Make the checkpoint committed at `path` the one whose files may be linked next."""
        before, facts = self.lineage, (path, created, files, leaves)
        self.lineage = before.after_commit(*facts) if before else Lineage(*facts)
        self._found = _ReadBack(path.name, {})

    def reread_when_linking(self) -> None:
        """Let the next save read each file when it links it."""
        self._found = _ReadBack(self._found.name, {})

    def reread_manifest(self) -> None:
        """Let `problems` read the last checkpoint's manifest once more:
        an early read is not enough for it.
        """
        self._found.files.pop(MANIFEST, None)

    def keep_samples(self, samples: dict[str, bytes], before: Lineage | None) -> None:
        """Keep a few bytes of the leaves that were written.
        `before`: the lineage before this save.
        """
        if self.lineage is not None:
            self.lineage = self.lineage.with_samples(before, samples)

    def note_written(
        self, leaves: Mapping[str, Block], written: Collection[str], before: Lineage | None
    ) -> None:
        """Sample the leaves of a single process. The next save may divide the big ones."""
        self._divided.note_written(leaves, written)
        self.keep_samples(samples_of(leaves, written), before)

    def forget_last_checkpoint(self) -> None:
        """Let the next save read again which checkpoint is the last."""
        self.lineage = None

    def stop_linking_from(self, name: str | None) -> None:
        """Link no more files of that checkpoint."""
        self.lineage, self._barren = None, name


def _is_same_file(name: str, places: Collection[Path]) -> bool:
    found = {_file_identity(place / name) for place in places}
    return len(found) == 1 and None not in found


def _file_identity(path: Path) -> Identity | None:
    """Values that differ if a file was replaced or changed; None if there is no file."""
    with suppress(FileNotFoundError):
        facts = os.lstat(path)
        return facts.st_dev, facts.st_ino, facts.st_size, facts.st_mtime_ns
    return None
