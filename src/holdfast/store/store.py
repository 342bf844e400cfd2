"""Store: the checkpoints of one run. `save` builds one in the attempt's own directory and
commits it by one rename.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

from .. import disk, retention
from ..errors import NotFound, UsageError
from ..ranks import ALONE, Ranks
from ..rules import Rule, Whole
from ..state import tree
from ..state.codec import without_garbage_collection
from ..state.snapshot import Arena
from ..threads import Hook, nothing
from . import divided, format, html, pins, pruning, shards
from .checkpoint import Checkpoint, Problem
from .checkpoint_index import CheckpointIndex
from .committing import CheckpointWriter, ManifestFields, translate_write_errors
from .files import make_durable
from .format import CheckpointName, Manifest
from .lineage import LinkedShard
from .locate import require_run
from .shards import SaveAbandoned, StagedState, StaleLink
from .sharing import FileLinker
from .signing import Signer

__all__ = ["ManifestFields", "Store"]


class SaveHooks(NamedTuple):
    """Callbacks of a save, as `Store.commit` describes them."""

    before_each: Hook
    before_last: Hook
    leave: Callable[[], int]


class Store(CheckpointWriter):
    """The checkpoints in the directory `root`, saved, verified and pruned by the rule `keep`.

        store = Store("runs/x", keep=Last(3))
        store.save({"w": w}, step=100)
        state = store.load()

    Reading needs no lock: other processes may save meanwhile. The first write claims the run; a
    second writer is refused, with an error that names the first, while that may be alive. Threads
    may share a store: they write one after another.
    """

    ranks: Ranks = ALONE

    def __init__(
        self,
        root: str | os.PathLike[str],
        *,
        keep: Rule | None = None,
        take_over: bool = False,
        private: bool = False,
        whole: Whole = Whole(),  # noqa: B008  a frozen value
        signer: Signer | None = None,
    ) -> None:
        # absolute, because the caller may change its working directory
        self.root = Path(root).absolute()
        if not isinstance(whole, Whole):
            raise UsageError(
                f"whole={whole!r}: give a value, as in Whole(checkpoints=20, hours=24)"
            )
        with translate_write_errors(self.root, "open the run"):
            require_run(self.root)
        index = CheckpointIndex(self.root, None if signer is None else signer.key)
        super().__init__(
            index, FileLinker(index, whole, self.ranks), keep, take_over=take_over, private=private
        )
        self.signer = signer

    def __repr__(self) -> str:
        return f"Store({str(self.root)!r})"

    def _repr_html_(self) -> str:
        return html.table(str(self), self.checkpoints())

    # -- reading
    # ----------------------------------------------------------------------------------------------

    def checkpoints(self) -> list[Checkpoint]:
        """Committed checkpoints, oldest first.
        They may be damaged since; `verify` finds that out.
        """
        return self.index.checkpoints()

    def latest(self) -> Checkpoint:
        """The newest committed checkpoint.

        Raises:
            NotFound: there is none.
        """
        return self.index.latest()

    def __getitem__(self, step: int | str) -> Checkpoint:
        """Return the checkpoint of `step` (the end of its epoch,
        if both exist), or the one with that name.
        """
        names = self.index.names()
        wanted = [name for name in names if step in (name.step, str(name))]
        if not wanted:
            have = ", ".join(map(str, names[-5:])) or "none"
            raise NotFound(f"{self.root}: no checkpoint of step {step}; the newest are: {have}")
        return self.index.checkpoint(wanted[-1])

    def load(
        self,
        step: int | str | None = None,
        *,
        types: Iterable[type] = (),
        placeholders: bool = False,
        mmap: bool = False,
    ) -> Any:
        """Return the state of the newest valid checkpoint, of a step's, or of "best". Every byte is
        checked.

        With `mmap`, meant for inspection, tensors and arrays are private memory maps of the files.
        Bytes are read when they are used, and writing to them changes no file. Only layout and
        headers are checked; `holdfast verify` checks the rest.

        If the newest checkpoint is damaged, this reports that and loads an older one.
        A step given by number is never replaced by another.

        Raises:
            NotFound: there is no such checkpoint.
            Damaged: no checkpoint that may be loaded is sound.
        """

        def read(checkpoint: Checkpoint) -> Any:
            return checkpoint.load(types=types, placeholders=placeholders, mmap=mmap)

        def choose() -> Checkpoint:
            return self.best() if step == "best" else self[step or 0]

        return self._load(None if step is None else choose, read)

    def _load(
        self, choose: Callable[[], Checkpoint] | None, read: Callable[[Checkpoint], Any]
    ) -> Any:
        return self.index.read_newest(read) if choose is None else read(choose())

    def pins(self) -> set[str]:
        """Names of pinned checkpoints, which no rule removes."""
        return self.index.pins()

    def facts(self) -> list[retention.CheckpointFacts]:
        """The facts for retention rules,
        of every checkpoint with a valid manifest; oldest first.
        """
        return self.index.facts()

    def sharing_damage(self, checkpoint: Checkpoint) -> dict[str, str]:
        """Names of the other checkpoints that share a damaged file with `checkpoint`;
        each mapped to such a file.
        """
        return self.index.sharing_damage(checkpoint)

    # -- writing
    # ----------------------------------------------------------------------------------------------

    def save(
        self,
        state: Any,
        *,
        step: int,
        metrics: Mapping[str, Any] | None = None,
        note: str | None = None,
        facts: ManifestFields | None = None,
    ) -> Checkpoint:
        """Commit `state` as the checkpoint of `step`. When this returns, the checkpoint survives a
        power loss.

        Then this applies the rule `keep`, which never removes the new checkpoint. Others are
        removed only after it was committed and the newest was read back from the medium.

        Raises:
            UsageError: that step is committed already, or the state holds a value that cannot be
                encoded.
            NoSpace: the state does not fit; the store is unchanged.
            Superseded: a later attempt owns the run.
        """

        def staged() -> StagedState:
            with self.ranks.together(f"state of step {step}"):
                return self.stage(state)

        with without_garbage_collection():  # until this ends, the collector would visit `staged`
            return self.commit(
                staged(), step=step, facts=facts or ManifestFields(metrics=metrics or {}, note=note)
            )

    def stage(
        self, state: Any, arena: Arena | None = None, weights: Collection[int] = ()
    ) -> StagedState:
        """Return what `commit` takes: `state` laid out in files. With an arena, it is a copy of the
        state.

        Without an arena nothing is copied: the state must not change until `commit` has returned.
        `weights`: ids of the leaves in which the save checks that all numbers are finite.
        """
        staged = self.lay_out(state, arena, weights)
        if staged.snapshot is not None:
            staged.snapshot.copy()
        return staged

    def lay_out(
        self, state: Any, arena: Arena | None = None, weights: Collection[int] = ()
    ) -> StagedState:
        """Lay out `state` as `stage` does, but let the caller copy the snapshot into the arena
        later. `commit` waits for that.
        """
        with without_garbage_collection():
            flat = tree.flatten(state, weights)
            unchanged = self.sharing.find_unchanged(flat.leaves, self.parent)
            linked, links = unchanged.linked_keys, unchanged.links
            fresh = {key: block for key, block in flat.leaves.items() if key not in linked}
            names = {link.name for link in links}
            stays = unchanged.leaves | flat.viewed
            big = {key: fresh[key] for key in divided.large_leaves(fresh) if key not in stays}
            divisions = self.sharing.plan_divisions(big, self.parent, names) if big else {}
            plain = {key: block for key, block in fresh.items() if key not in divisions}
            pieces = [shard for each in divisions.values() for shard in each.shards]
            links = [*links, *(link for each in divisions.values() for link in each.links)]
            names |= {link.name for link in links} | {shard.name for shard in pieces}
            plan = shards.layout(plain, unchanged.leaves - linked, names) + pieces
            fresh = plain | {
                key: block for each in divisions.values() for key, block in each.fresh.items()
            }
            kept = {key: block for each in divisions.values() for key, block in each.kept.items()}
            leaves = (
                {key: block for key, block in flat.leaves.items() if key not in divisions}
                | fresh
                | kept
            )
            staged = StagedState(
                flat.tree, leaves, plan, links, whole=flat.leaves, kind=self.index.kind
            )
        return staged if arena is None else staged.snapshot_in(arena)

    def go_on(self, checkpoint: Checkpoint) -> None:
        """Let the next save continue `checkpoint`,
        which this process has loaded, as its rank sees it.
        """
        self.parent = checkpoint.name
        if checkpoint.path == self.index.checkpoint(self.parent).path:  # not another run's
            self.sharing.continue_from(checkpoint)

    def unread(self) -> list[LinkedShard]:
        """Files of the last checkpoint that the next one will probably share,
        not read back since their commit.
        """
        return self.sharing.links_to_read_back(self.parent)

    def read_back_early(
        self, links: Collection[LinkedShard], before_each: Hook = nothing
    ) -> Problem | None:
        """Read back the files from `unread`, so that the next save need not. It may run at the same
        time as a save.

        Returns the damaged place, if any; the next save writes that file anew. What `before_each`
        raises ends this.
        """
        return self.sharing.read_back_early(links, before_each)

    def read_anew(self) -> None:
        """Let the next save read each file when it links it,
        even if the file was read back early.
        """
        self.sharing.reread_when_linking()

    @without_garbage_collection()
    def commit(
        self,
        staged: StagedState,
        *,
        step: int,
        facts: ManifestFields | None = None,
        before_each: Hook = nothing,
        before_last: Hook = nothing,
        leave: Callable[[], int] = lambda: 0,
    ) -> Checkpoint:
        """Write and commit what `stage` returned: the second half of `save`.

        `before_each` is called before each request to the disk; what it raises ends the save, and
        nothing was saved. `before_last` runs when the leaves are on disk and not yet published; if
        it raises, nothing is saved. If the rule would remove at most `leave()` checkpoints, nothing
        is read back or removed; the next save will do that.

        Raises:
            Stale: an unchanged file of the last checkpoint cannot be linked, and the snapshot
                `staged` lacks its bytes. Stage the state again: the new snapshot will have them.
        """
        facts = facts or ManifestFields()
        return self._commit(
            staged, _name(step, facts.phase), facts, SaveHooks(before_each, before_last, leave)
        )

    def _commit(
        self, staged: StagedState, name: CheckpointName, facts: ManifestFields, hooks: SaveHooks
    ) -> Checkpoint:
        attempt = self.claim()

        def fill(partial: Path) -> Manifest:
            files: dict[str, format.FileEntry] = {}
            leaves: dict[str, format.LeafEntry] = {}
            self.sharing.link_files(attempt, staged.links, partial, hooks.before_each)
            for link in staged.links:
                files[link.name] = link.file
                leaves.update(link.leaves)
            for index, shard in enumerate(staged.shards):
                written = shards.write_shard(partial, staged, index, hooks.before_each)
                files[shard.name] = written.file
                leaves.update(written.leaves)
            hooks.before_last()
            # in the state's order, with the leaves that are written in pieces
            ordered = {key: leaves[key] for key in staged.leaves} | leaves
            return self.manifest(name, facts, files, ordered, staged.tree)

        with self.translate_errors(attempt, "save"):
            tree_bytes = len(format.json_bytes(staged.tree))
            self.require_space(staged.size_bytes + tree_bytes + 512 * len(staged.leaves))
            before = self.sharing.lineage
            try:
                self.commit_partial(name, self.create_partial(name), fill)
            except StaleLink:
                self.sharing.stop_linking_from(self.parent)
                if staged.snapshot is not None:
                    raise
                alone = StagedState(
                    staged.tree,
                    staged.whole or {},
                    shards.layout(staged.whole or {}),
                    kind=staged.kind,
                )
                return self._commit(alone, name, facts, hooks)
            written = [key for shard in staged.shards for key in shard.keys]
            self.sharing.note_written(staged.leaves, written, before)
            # the checkpoint is committed; the save that waits for this one will prune
            with suppress(SaveAbandoned):
                hooks.before_each()
                self.apply_rule(name, hooks.leave)
        return self.index.checkpoint(name)

    @contextmanager
    def directory(
        self, *, step: int, metrics: Mapping[str, Any] | None = None, note: str | None = None
    ) -> Iterator[Path]:
        """Commit whatever files the block writes into the path it gets, as one atomic checkpoint.

            with store.directory(step=100) as path:
                torch.save(model, path / "model.pt")

        If the block raises, nothing is saved.
        """
        name, facts = _name(step, "step"), ManifestFields(metrics=metrics or {}, note=note)
        partial = self.create_partial(name)
        try:
            yield partial
        except BaseException:
            disk.remove_tree(partial)
            raise
        self.commit_partial(
            name,
            partial,
            lambda path: self.manifest(name, facts, make_durable(path, self.index.kind), {}, None),
        )
        self.apply_rule(name)

    def pin(self, step: int | str) -> None:
        """Keep that checkpoint permanently, whatever the rules. Files that it shares with others
        are copied for it.

        Raises:
            Damaged: one of these differs from what was committed; the checkpoint is pinned
                nevertheless.
        """
        if self.ranks.leads:  # the others may not see it yet
            checkpoint = self[step]
            with translate_write_errors(self.root):
                pins.pin(self.root, checkpoint)

    def unpin(self, step: int | str) -> None:
        """Undo `pin`: the rules may remove that checkpoint again."""
        if self.ranks.leads:
            name = self[step].path.name
            with translate_write_errors(self.root):
                pins.unpin(self.root, name)

    def prunable(self, rule: Rule) -> list[Checkpoint]:
        """Return what `prune` would remove, oldest first."""
        return pruning.prunable_checkpoints(self.index, rule)

    def prune(self, rule: Rule) -> list[Checkpoint]:
        """Remove and return what `rule` does not keep, after the newest remaining one was read back
        from the medium.

        Pinned and damaged checkpoints remain; so does the newest valid one.

        Raises:
            Damaged: the newest is damaged on the medium; nothing was removed.
        """
        return self.prune_except(rule)


def _name(step: int, phase: str) -> CheckpointName:
    if isinstance(step, bool) or not isinstance(step, int) or not 0 <= step < 10**18:
        raise UsageError(f"a step is a whole number from 0, not {step!r}")
    return CheckpointName(step, phase)
