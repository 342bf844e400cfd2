"""Store: the checkpoints of one run. `save` builds in the attempt's own room and commits by one rename."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from .. import disk, retention
from ..errors import NotFound, UsageError
from ..ranks import ALONE, Ranks
from ..rules import Rule, Whole
from ..state import tree
from ..state.codec import uncollected
from ..state.snapshot import Arena
from . import claiming, divided, format, pins, pruning, shards
from .attempt import Attempt
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


class Store:
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
        self._shelf = Shelf(self.root)
        self._sharing = Sharing(self._shelf, whole, self.ranks)
        self._take_over = take_over or os.environ.get("HOLDFAST_TAKE_OVER") == "1"
        self.owner = Committing(self._shelf, self._sharing, keep, self._begin)

    def __repr__(self) -> str:
        return f"Store({str(self.root)!r})"

    # -- reading -------------------------------------------------------------------------------------------------

    def checkpoints(self) -> list[Checkpoint]:
        """Committed checkpoints, oldest first. Whether they are still what was committed, `verify` tells."""
        return self._shelf.checkpoints()

    def latest(self) -> Checkpoint:
        """The newest committed checkpoint.

        Raises:
            NotFound: there is none.
        """
        return self._shelf.latest()

    def __getitem__(self, step: int | str) -> Checkpoint:
        """The checkpoint of `step` (the end of its epoch, if both are there), or the one with that name."""
        names = self._shelf.names()
        wanted = [name for name in names if step in (name.step, str(name))]
        if not wanted:
            have = ", ".join(map(str, names[-5:])) or "none"
            raise NotFound(f"{self.root}: no checkpoint of step {step}; the newest are: {have}")
        return self._shelf.checkpoint(wanted[-1])

    def best(self) -> Checkpoint:
        """The checkpoint that the newest one's `Best` rule ranks first.

        Raises:
            NotFound: no rule, or no checkpoint with that metric.
        """
        return self.owner.best()

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
        return self._shelf.read_newest(read) if choose is None else read(choose())

    def pins(self) -> set[str]:
        """Names that no rule removes."""
        return self._shelf.pins()

    def facts(self) -> list[retention.CheckpointFacts]:
        """What retention goes by, of every checkpoint whose manifest is whole; oldest first."""
        return self._shelf.facts()

    def sharing_damage(self, checkpoint: Checkpoint) -> dict[str, str]:
        """Names of the other checkpoints that hold one of the damaged files of `checkpoint`, and which."""
        return self._shelf.sharing_damage(checkpoint)

    # -- writing -------------------------------------------------------------------------------------------------

    @property
    def keep(self) -> Rule | None:
        """The rule."""
        return self.owner.keep

    @keep.setter
    def keep(self, rule: Rule | None) -> None:
        self.owner.keep = rule

    @property
    def parent(self) -> str | None:
        """Name of the checkpoint after which the next one comes."""
        return self.owner.parent

    @parent.setter
    def parent(self, name: str | None) -> None:
        self.owner.parent = name

    @property
    def attempt(self) -> Attempt | None:
        """The run's owner, once this store is; None: it has written nothing."""
        return self.owner.attempt

    def claim(self) -> Attempt:
        """Become the run's owner, if this store is not yet.

        Raises:
            UsageError: another attempt lives, or may live.
        """
        return self.owner.claim()

    def _begin(self) -> Attempt:
        with writing(self.root):
            return claiming.claim(self.root, take_over=self._take_over)

    def close(self) -> None:
        """Give the run back: the next writer need not ask whether this one lives."""
        self.owner.close()

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
            unchanged = self._sharing.unchanged(flat.leaves, self.parent)
            linked, links = unchanged.linked, unchanged.links
            fresh = {key: block for key, block in flat.leaves.items() if key not in linked}
            names = {link.name for link in links}
            stays = unchanged.leaves | flat.viewed
            big = {key: fresh[key] for key in divided.big(fresh) if key not in stays}
            divisions = self._sharing.divisions(big, self.parent, names) if big else {}
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
        """Files of the last checkpoint that the next one is likely to share, and that were not read back since its commit."""
        return self._sharing.unread(self.parent)

    def read_back_early(
        self, links: Collection[Link], before_each: Callable[[], None] = lambda: None
    ) -> Problem | None:
        """Read back what was `unread`: the save that shares it need not, then. It may go on beside that.

        Returns what is damaged: the next save writes it anew. What `before_each` piece raises ends it.
        """
        return self._sharing.read_back_early(links, before_each)

    def read_anew(self) -> None:
        """Let the next save read what it shares as it shares it, whatever was read ahead."""
        self._sharing.read_anew()

    def commit(
        self,
        staged: Staged,
        *,
        step: int,
        facts: Facts | None = None,
        before_each: Callable[[], None] = lambda: None,
        before_last: Callable[[], None] = lambda: None,
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
        name = checked_name(step, facts.phase)
        owner, attempt = self.owner, self.claim()

        def fill(partial: Path) -> Manifest:
            files: dict[str, format.File] = {}
            leaves: dict[str, format.Leaf] = {}
            self._sharing.take_over(attempt, staged.links, partial, before_each)
            for link in staged.links:
                files[link.name] = link.file
                leaves.update(link.leaves)
            for index, shard in enumerate(staged.shards):
                written = shards.write(partial, staged, index, before_each)
                files[shard.name] = written.file
                leaves.update(written.leaves)
            before_last()
            ordered = {key: leaves[key] for key in staged.leaves} | leaves  # with what pieces were before
            return owner.manifest(name, facts, files, ordered, staged.tree)

        with owner.acting(attempt, "save"):
            owner.require_space(staged.size_bytes + 512 * len(staged.leaves))
            before = self._sharing.lineage
            try:
                owner.finish(name, owner.begin(name), fill)
            except Stale:
                self._sharing.distrust(self.parent)
                if staged.snapshot is not None:
                    raise
                alone = Staged(staged.tree, staged.whole or {}, shards.layout(staged.whole or {}))
                return self.commit(
                    alone, step=step, facts=facts, before_each=before_each, before_last=before_last, leave=leave
                )
            written = [key for shard in staged.shards for key in shard.keys]
            self._sharing.note(staged.leaves, written, before)
            with suppress(Abandoned):  # it is committed; whoever waits for the writer will prune
                before_each()
                owner.apply_rule(name, leave)
        return self._shelf.checkpoint(name)

    @contextmanager
    def directory(
        self, *, step: int, metrics: Mapping[str, Any] | None = None, note: str | None = None
    ) -> Iterator[Path]:
        """Commit whatever files the block writes into the path it gets, as one atomic checkpoint.

            with store.directory(step=100) as path:
                torch.save(model, path / "model.pt")

        When the block raises, nothing was saved.
        """
        name, facts = checked_name(step, "step"), Facts(metrics=metrics or {}, note=note)
        owner = self.owner
        partial = owner.begin(name)
        try:
            yield partial
        except BaseException:
            disk.remove_tree(partial)
            raise
        owner.finish(name, partial, lambda path: owner.manifest(name, facts, make_durable(path), {}, None))
        owner.apply_rule(name)

    def pin(self, step: int | str) -> None:
        """Keep that checkpoint for ever, whatever the rules say; files that it shares with others become its own.

        Raises:
            Damaged: one of these is not what was committed; it is pinned all the same.
        """
        checkpoint = self[step]
        with writing(self.root):
            pins.pin(self.root, checkpoint)

    def unpin(self, step: int | str) -> None:
        """Let the rules remove that checkpoint again."""
        name = self[step].path.name
        with writing(self.root):
            pins.unpin(self.root, name)

    def prunable(self, rule: Rule) -> list[Checkpoint]:
        """What `prune` would remove, oldest first."""
        return pruning.prunable(self._shelf, rule)

    def prune(self, rule: Rule) -> list[Checkpoint]:
        """Remove what `rule` does not keep, after the newest that stays was read back whole from the medium.

        Pinned and damaged checkpoints stay; so does the newest valid one.

        Raises:
            Damaged: the newest is not whole on the medium; nothing was removed.
        """
        return self.owner.prune(rule, spared=())

    def quarantine(self, checkpoint: Checkpoint, why: str) -> Path:
        """Move a checkpoint aside, never deleting it; `why` is a word or two that become part of its name."""
        return self.owner.quarantine(checkpoint, why)


def checked_name(step: int, phase: str) -> Name:
    """
    Raises:
        UsageError: the step is not a whole number from 0 to 10**18.
    """
    if isinstance(step, bool) or not isinstance(step, int) or not 0 <= step < 10**18:
        raise UsageError(f"a step is a whole number from 0, not {step!r}")
    return Name(step, phase)
