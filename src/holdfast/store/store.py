"""Store: the checkpoints of one run. `save` builds in the attempt's own room and commits by one rename."""

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
from ..state.codec import uncollected
from ..state.snapshot import Arena
from ..threads import Hook, nothing
from . import divided, format, pins, pruning, shards
from .checkpoint import Checkpoint, Problem
from .committing import Committing, Facts, writing
from .files import make_durable
from .format import Manifest, Name
from .lineage import Link
from .locate import require_run
from .shards import Abandoned, Staged, Stale
from .sharing import Sharing
from .shelf import Shelf

__all__ = ["Facts", "Store"]


class Hooks(NamedTuple):
    """Callbacks of a save, as `Store.commit` describes them."""

    before_each: Hook
    before_last: Hook
    leave: Callable[[], int]


class Store(Committing):
    """The checkpoints in the directory `root`, saved, verified and pruned by the rule `keep`.

        store = Store("runs/x", keep=Last(3))
        store.save({"w": w}, step=100)
        state = store.load()

    Reading needs no permission and no care: other processes may save meanwhile. The first write claims the run; a
    second writer is refused by name while the first may live. Threads may share a store: they write in turn.
    """

    ranks: Ranks = ALONE

    def __init__(
        self,
        root: str | os.PathLike[str],
        *,
        keep: Rule | None = None,
        take_over: bool = False,
        whole: Whole = Whole(),  # noqa: B008  a frozen value
    ) -> None:
        self.root = Path(root).absolute()  # the caller may change its directory
        if not isinstance(whole, Whole):
            raise UsageError(f"whole={whole!r}: give a value, as in Whole(checkpoints=20, hours=24)")
        require_run(self.root)
        shelf = Shelf(self.root)
        super().__init__(shelf, Sharing(shelf, whole, self.ranks), keep, take_over=take_over)

    def __repr__(self) -> str:
        return f"Store({str(self.root)!r})"

    # -- reading -------------------------------------------------------------------------------------------------

    def checkpoints(self) -> list[Checkpoint]:
        """Committed checkpoints, oldest first. Whether they are still what was committed, `verify` tells."""
        return self.shelf.checkpoints()

    def latest(self) -> Checkpoint:
        """The newest committed checkpoint.

        Raises:
            NotFound: there is none.
        """
        return self.shelf.latest()

    def __getitem__(self, step: int | str) -> Checkpoint:
        """The checkpoint of `step` (the end of its epoch, if both are there), or the one with that name."""
        names = self.shelf.names()
        wanted = [name for name in names if step in (name.step, str(name))]
        if not wanted:
            have = ", ".join(map(str, names[-5:])) or "none"
            raise NotFound(f"{self.root}: no checkpoint of step {step}; the newest are: {have}")
        return self.shelf.checkpoint(wanted[-1])

    def load(
        self,
        step: int | str | None = None,
        *,
        types: Iterable[type] = (),
        placeholders: bool = False,
        mmap: bool = False,
    ) -> Any:
        """The state of the newest valid checkpoint, of a step's, or of "best"; every byte is checked.

        With `mmap`, for those who look rather than train: tensors and arrays lie over private maps of the files.
        Nothing is read before it is looked at, what is written to them changes no file, and of the bytes nothing is
        checked but layout and headers: `holdfast verify` checks the rest.

        A damaged newest one is passed over, and told; a step that was asked for by number is not passed over.

        Raises:
            NotFound: no such checkpoint.
            Damaged: none that would do is whole.
        """

        def read(checkpoint: Checkpoint) -> Any:
            return checkpoint.load(types=types, placeholders=placeholders, mmap=mmap)

        def choose() -> Checkpoint:
            return self.best() if step == "best" else self[step or 0]

        return self._load(None if step is None else choose, read)

    def _load(self, choose: Callable[[], Checkpoint] | None, read: Callable[[Checkpoint], Any]) -> Any:
        return self.shelf.read_newest(read) if choose is None else read(choose())

    def pins(self) -> set[str]:
        """Names that no rule removes."""
        return self.shelf.pins()

    def facts(self) -> list[retention.CheckpointFacts]:
        """What retention goes by, of every checkpoint whose manifest is whole; oldest first."""
        return self.shelf.facts()

    def sharing_damage(self, checkpoint: Checkpoint) -> dict[str, str]:
        """Names of the other checkpoints that hold one of the damaged files of `checkpoint`, and which."""
        return self.shelf.sharing_damage(checkpoint)

    # -- writing -------------------------------------------------------------------------------------------------

    def save(
        self,
        state: Any,
        *,
        step: int,
        metrics: Mapping[str, Any] | None = None,
        note: str | None = None,
        facts: Facts | None = None,
    ) -> Checkpoint:
        """Commit `state` as the checkpoint of `step`. When this returns, it survives a power loss.

        Then the rule `keep` is applied, but never to this one: another checkpoint goes only after this one, and the
        newest, were read back from the medium.

        Raises:
            UsageError: that step is committed already, or the state holds something that cannot be encoded.
            NoSpace: it does not fit; the store is as it was.
            Superseded: a later attempt owns the run.
        """
        with self.ranks.together(f"state of step {step}"):
            staged = self.stage(state)
        return self.commit(staged, step=step, facts=facts or Facts(metrics=metrics or {}, note=note))

    def stage(self, state: Any, arena: Arena | None = None) -> Staged:
        """What `commit` takes: `state` laid out in files. With an arena, a copy of it.

        Without one nothing is copied: until `commit` has returned, nobody may change the state.
        """
        staged = self.lay_out(state, arena)
        if staged.snapshot is not None:
            staged.snapshot.copy()
        return staged

    def lay_out(self, state: Any, arena: Arena | None = None) -> Staged:
        """As `stage`, but that its snapshot is still to be copied: `commit` waits for that, and begins meanwhile."""
        with uncollected():
            flat = tree.flatten(state)
            unchanged = self.sharing.unchanged(flat.leaves, self.parent)
            linked, links = unchanged.linked, unchanged.links
            fresh = {key: block for key, block in flat.leaves.items() if key not in linked}
            names = {link.name for link in links}
            stays = unchanged.leaves | flat.viewed
            big = {key: fresh[key] for key in divided.big(fresh) if key not in stays}
            divisions = self.sharing.divisions(big, self.parent, names) if big else {}
            plain = {key: block for key, block in fresh.items() if key not in divisions}
            pieces = [shard for each in divisions.values() for shard in each.shards]
            links = [*links, *(link for each in divisions.values() for link in each.links)]
            names |= {link.name for link in links} | {shard.name for shard in pieces}
            plan = shards.layout(plain, unchanged.leaves - linked, names) + pieces
            fresh = plain | {key: block for each in divisions.values() for key, block in each.fresh.items()}
            kept = {key: block for each in divisions.values() for key, block in each.kept.items()}
            leaves = {key: block for key, block in flat.leaves.items() if key not in divisions} | fresh | kept
            staged = Staged(flat.tree, leaves, plan, links, whole=flat.leaves)
        return staged if arena is None else staged.snapshot_in(arena)

    def unread(self) -> list[Link]:
        """Files of the last checkpoint that the next one is likely to share, not read back since their commit."""
        return self.sharing.unread(self.parent)

    def read_back_early(self, links: Collection[Link], before_each: Hook = nothing) -> Problem | None:
        """Read back what was `unread`: the save that shares it need not, then. It may go on beside that.

        Returns what is damaged: the next save writes it anew. What `before_each` piece raises ends it.
        """
        return self.sharing.read_back_early(links, before_each)

    def read_anew(self) -> None:
        """Let the next save read what it shares as it shares it, whatever was read ahead."""
        self.sharing.read_anew()

    def commit(
        self,
        staged: Staged,
        *,
        step: int,
        facts: Facts | None = None,
        before_each: Hook = nothing,
        before_last: Hook = nothing,
        leave: Callable[[], int] = lambda: 0,
    ) -> Checkpoint:
        """The second half of `save`. What `before_each` request to the disk raises ends it: nothing was saved. So does
        what `before_last` raises, when the leaves are on the disk and nobody can see them yet. While the rule would
        remove no more than `leave` says, nothing is read back or removed: it is left to the next save.

        Raises:
            Stale: a file that did not change cannot be taken over from the last checkpoint, and `staged`, being a
                snapshot, lacks its bytes; staged again it will have them.
        """
        facts = facts or Facts()
        return self._commit(staged, _name(step, facts.phase), facts, Hooks(before_each, before_last, leave))

    def _commit(self, staged: Staged, name: Name, facts: Facts, hooks: Hooks) -> Checkpoint:
        attempt = self.claim()

        def fill(partial: Path) -> Manifest:
            files: dict[str, format.File] = {}
            leaves: dict[str, format.Leaf] = {}
            self.sharing.take_over(attempt, staged.links, partial, hooks.before_each)
            for link in staged.links:
                files[link.name] = link.file
                leaves.update(link.leaves)
            for index, shard in enumerate(staged.shards):
                written = shards.write(partial, staged, index, hooks.before_each)
                files[shard.name] = written.file
                leaves.update(written.leaves)
            hooks.before_last()
            ordered = {key: leaves[key] for key in staged.leaves} | leaves  # with what pieces were before
            return self.manifest(name, facts, files, ordered, staged.tree)

        with self.acting(attempt, "save"):
            self.require_space(staged.size_bytes + 512 * len(staged.leaves))
            before = self.sharing.lineage
            try:
                self.finish(name, self.begin(name), fill)
            except Stale:
                self.sharing.distrust(self.parent)
                if staged.snapshot is not None:
                    raise
                alone = Staged(staged.tree, staged.whole or {}, shards.layout(staged.whole or {}))
                return self._commit(alone, name, facts, hooks)
            written = [key for shard in staged.shards for key in shard.keys]
            self.sharing.note(staged.leaves, written, before)
            with suppress(Abandoned):  # it is committed; whoever waits for the writer will prune
                hooks.before_each()
                self.apply_rule(name, hooks.leave)
        return self.shelf.checkpoint(name)

    @contextmanager
    def directory(
        self, *, step: int, metrics: Mapping[str, Any] | None = None, note: str | None = None
    ) -> Iterator[Path]:
        """Commit whatever files the block writes into the path it gets, as one atomic checkpoint.

            with store.directory(step=100) as path:
                torch.save(model, path / "model.pt")

        When the block raises, nothing was saved.
        """
        name, facts = _name(step, "step"), Facts(metrics=metrics or {}, note=note)
        partial = self.begin(name)
        try:
            yield partial
        except BaseException:
            disk.remove_tree(partial)
            raise
        self.finish(name, partial, lambda path: self.manifest(name, facts, make_durable(path), {}, None))
        self.apply_rule(name)

    def pin(self, step: int | str) -> None:
        """Keep that checkpoint for ever, whatever the rules say; files that it shares with others become its own.

        Raises:
            Damaged: one of these is not what was committed; it is pinned all the same.
        """
        if self.ranks.rank == 0:  # the others may not see it yet
            checkpoint = self[step]
            with writing(self.root):
                pins.pin(self.root, checkpoint)

    def unpin(self, step: int | str) -> None:
        """Let the rules remove that checkpoint again."""
        if self.ranks.rank == 0:
            name = self[step].path.name
            with writing(self.root):
                pins.unpin(self.root, name)

    def prunable(self, rule: Rule) -> list[Checkpoint]:
        """What `prune` would remove, oldest first."""
        return pruning.prunable(self.shelf, rule)

    def prune(self, rule: Rule) -> list[Checkpoint]:
        """Remove what `rule` does not keep, after the newest that stays was read back whole from the medium.

        Pinned and damaged checkpoints stay; so does the newest valid one.

        Raises:
            Damaged: the newest is not whole on the medium; nothing was removed.
        """
        return self.prune_but(rule)


def _name(step: int, phase: str) -> Name:
    if isinstance(step, bool) or not isinstance(step, int) or not 0 <= step < 10**18:
        raise UsageError(f"a step is a whole number from 0, not {step!r}")
    return Name(step, phase)
