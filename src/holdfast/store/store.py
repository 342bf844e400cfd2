"""Store: the checkpoints of one run. `save` builds in the attempt's own room and commits by one rename."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import msgspec

from .. import bulk, disk, retention
from ..errors import Damaged, NoSpace, NotFound, StoreError, UsageError
from ..provenance import document
from ..ranks import ALONE, Ranks
from ..rules import Best, Rule, Whole, parts
from ..state import tree
from ..state.codec import Block, uncollected
from ..state.snapshot import Arena, Image, Snapshot
from . import attempt as attempts
from . import format, pins, pruning, shards
from .attempt import Attempt
from .checkpoint import Checkpoint
from .files import make_durable
from .format import MANIFEST, Manifest, Name
from .locate import require_run
from .shards import Abandoned, Staged, Stale
from .sharing import Sharing, Unchanged
from .shelf import Shelf
from .together import Seal, Together, appear, claim, foreseen, load

_SPARE_BYTES = 1 << 20  # for the manifest's fixed part, directories and the journal


@dataclass(frozen=True)
class Facts:
    """What a checkpoint says of itself besides its state. All of it is optional."""

    phase: str = "step"
    epoch: int | None = None
    metrics: Mapping[str, Any] = field(default_factory=dict)
    note: str | None = None
    document: Mapping[str, Any] = field(default_factory=dict)


class Store:
    """The checkpoints in the directory `root`, saved, verified and pruned by the rule `keep`.

        store = Store("runs/x", keep=Last(3))
        store.save({"w": w}, step=100)
        state = store.load()

    Reading needs no permission and no care: other processes may save meanwhile. The first write claims the run; a
    second writer is refused by name while the first may live. Threads may share a store: they write in turn.

    Of several `ranks` each has a store of its own with the same root. They claim and save together: a checkpoint holds
    what every one of them gave, and what fails on one fails on all. What else is written, rank 0 writes.
    """

    def __init__(
        self,
        root: str | os.PathLike[str],
        *,
        keep: Rule | None = None,
        take_over: bool = False,
        whole: Whole = Whole(),  # noqa: B008  a frozen value
        ranks: Ranks = ALONE,
    ) -> None:
        self.root = Path(root).absolute()  # the caller may change its directory
        if not isinstance(whole, Whole):
            raise UsageError(f"whole={whole!r}: give a value, as in Whole(checkpoints=20, hours=24)")
        require_run(self.root)
        self.keep = keep
        self.ranks = ranks.twin("store")  # claims and saves may run beside what else the ranks say
        self.attempt: Attempt | None = None
        self.parent: str | None = None
        self._wrote: Collection[str] = ()  # of several ranks: what this one wrote of the last save
        self._shelf = Shelf(self.root)
        self._sharing = Sharing(self._shelf, whole)
        self._turn = threading.RLock()  # of this process's threads, to claim and to write
        self._take_over = take_over or os.environ.get("HOLDFAST_TAKE_OVER") == "1"

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
        name = self._shelf.newest()
        if name is None:
            raise NotFound(f"{self.root}: no committed checkpoint")
        return self._shelf.checkpoint(name)

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
        rule = self._own_best() or self._shelf.best_rule()
        if rule is None:
            raise NotFound(f'{self.root}: nothing says which metric is best; save with keep=Best("metric", max)')
        ranked = retention.ranked(rule, self.facts())
        if not ranked:
            raise NotFound(f"{self.root}: no checkpoint has the metric {rule.metric!r}")
        return self._shelf.checkpoint(ranked[0].name)

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

        A damaged newest one is passed over, and told; a step that was asked for by number is not passed over. Several
        ranks load together: each what it saved, all of the same checkpoint, which is whole for every one of them.

        Raises:
            NotFound: no such checkpoint.
            Damaged: none that would do is whole.
        """

        def read(checkpoint: Checkpoint) -> Any:
            return checkpoint.load(types=types, placeholders=placeholders, mmap=mmap)

        def choose() -> Checkpoint:
            return self.best() if step == "best" else self[step or 0]

        if not self.ranks.alone:
            return load(self.ranks, self._shelf, None if step is None else choose, read)
        return self._shelf.read_newest(read) if step is None else read(choose())

    def pins(self) -> set[str]:
        """Names that no rule removes."""
        return self._shelf.pins()

    def facts(self) -> list[retention.Facts]:
        """What retention goes by, of every checkpoint whose manifest is whole; oldest first."""
        return self._shelf.facts()

    def sharing_damage(self, checkpoint: Checkpoint) -> dict[str, str]:
        """Names of the other checkpoints that hold one of the damaged files of `checkpoint`, and which."""
        return self._shelf.sharing_damage(checkpoint)

    # -- writing -------------------------------------------------------------------------------------------------

    def claim(self) -> Attempt:
        """Become the run's owner, if this store is not yet; of several ranks all do, together.

        Raises:
            UsageError: another attempt lives, or may live; or a rank sees another directory than rank 0.
        """
        if self.attempt is None:
            with self._turn:
                if self.attempt is None:  # still
                    self.attempt = claim(self.ranks, self.root, self._claimed)
        return self.attempt

    def _claimed(self) -> Attempt:
        with _writing(self.root):
            return attempts.claim(self.root, take_over=self._take_over)

    def close(self) -> None:
        """Give the run back: the next writer need not ask whether this one lives."""
        attempt = self.attempt
        if attempt is not None:
            with self._acting(attempt, "close"):
                attempt.close("end", step=0)
                self.attempt = None

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

    def stage(self, state: Any, arena: Arena | None = None, later: Callable[[Block], bool] = lambda _: False) -> Staged:
        """What `commit` takes: `state` laid out in files. With an arena, a copy of it, but for what `later` allows.

        Without one nothing is copied: until `commit` has returned, nobody may change the state.
        """
        staged = self.lay_out(state, arena, later)
        if staged.snapshot is not None:
            staged.snapshot.copy()
        return staged

    def lay_out(
        self, state: Any, arena: Arena | None = None, later: Callable[[Block], bool] = lambda _: False
    ) -> Staged:
        """As `stage`, but that its snapshot is still to be copied: `commit` waits for that, and begins meanwhile."""
        with uncollected():
            flat = tree.flatten(state)
            alone = self.ranks.alone
            unchanged = self._sharing.unchanged(flat.leaves, self.parent) if alone else Unchanged(set(), [])
            linked, links = unchanged.linked, unchanged.links
            fresh = {key: block for key, block in flat.leaves.items() if key not in linked}
            if alone:
                plan = shards.layout(fresh, unchanged.leaves - linked, {link.name for link in links})
            else:
                plan = foreseen(fresh, self._wrote, self.ranks.rank)
        if arena is None:
            return Staged(flat.tree, flat.leaves, plan, links)
        bulk.release()  # a snapshot is written from where it lies
        snapshot = Snapshot(arena, [Image(shard.header, shard.keys) for shard in plan], fresh, later)
        return Staged(flat.tree, {**flat.leaves, **snapshot.blocks}, plan, links, snapshot)

    def may_link(self, keys: Collection[str]) -> bool:
        """Whether the next save looks at one of these leaves to see if it is unchanged."""
        return self.ranks.alone and self.parent is not None and self._sharing.looks_at(keys, self.parent)

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
        name = _name(step, facts.phase)
        attempt = self.claim()
        if not self.ranks.alone:
            return self._commit_together(staged, name, facts, before_each, before_last, leave)

        def fill(partial: Path) -> Manifest:
            files: dict[str, format.File] = {}
            leaves: dict[str, format.Leaf] = {}
            self._sharing.take_over(attempt, staged.links, partial)
            for link in staged.links:
                files[link.name] = link.file
                leaves.update(link.leaves)
            for index, shard in enumerate(staged.shards):
                written = shards.write(partial, staged, index, before_each)
                files[shard.name] = written.file
                leaves.update(written.leaves)
            before_last()
            return self._manifest(name, facts, files, {key: leaves[key] for key in staged.leaves}, staged.tree)

        with self._acting(attempt, "save"):
            self._require_space(staged.size_bytes + 512 * len(staged.leaves))
            before = self._sharing.lineage
            try:
                checkpoint = self._finish(attempt, name, self._begin(attempt, name), fill)
            except Stale:
                self._sharing.distrust(self.parent)
                if staged.snapshot is not None:
                    raise
                alone = Staged(staged.tree, staged.leaves, shards.layout(staged.leaves))
                return self.commit(
                    alone, step=step, facts=facts, before_each=before_each, before_last=before_last, leave=leave
                )
            self._sharing.sample(staged, before)
            with suppress(Abandoned):  # it is committed; whoever waits for the writer will prune
                before_each()
                self._apply_rule(name, leave)
            return checkpoint

    def _commit_together(
        self,
        staged: Staged,
        name: Name,
        facts: Facts,
        before_each: Callable[[], None],
        before_last: Callable[[], None],
        leave: Callable[[], int],
    ) -> Checkpoint:
        attempt = self.claim()
        save = Together(self.ranks, attempt, name)

        def commit(seals: list[Seal]) -> None:
            self._finish(attempt, name, save.partial, lambda _: self._sealed(name, facts, seals, staged.tree))

        with self._acting(attempt, "save"):
            try:
                plan = save.plan(staged, lambda: self._begin(attempt, name), self._require_space)
                self._wrote = plan.blocks.keys()
                save.write(plan, staged, before_each, before_last, commit)
            except Exception:
                if self.ranks.rank == 0:
                    attempts.clean_up(save.partial)
                raise
            self.parent = str(name)
            checkpoint = self._shelf.checkpoint(name)
            self._apply_rule_together(save, checkpoint, leave)
        return checkpoint

    @contextmanager
    def directory(
        self, *, step: int, metrics: Mapping[str, Any] | None = None, note: str | None = None
    ) -> Iterator[Path]:
        """Commit whatever files the block writes into the path it gets, as one atomic checkpoint.

            with store.directory(step=100) as path:
                torch.save(model, path / "model.pt")

        When the block raises, nothing was saved.
        """
        if not self.ranks.alone:
            raise UsageError("a directory is one process's to save: use a Store without ranks=, on one of them")
        name, facts = _name(step, "step"), Facts(metrics=metrics or {}, note=note)
        attempt = self.claim()
        partial = self._begin(attempt, name)
        try:
            yield partial
        except BaseException:
            disk.remove_tree(partial)
            raise
        self._finish(attempt, name, partial, lambda path: self._manifest(name, facts, make_durable(path), {}, None))
        self._apply_rule(name)

    def pin(self, step: int | str) -> None:
        """Keep that checkpoint for ever, whatever the rules say; files that it shares with others become its own.

        Raises:
            Damaged: one of these is not what was committed; it is pinned all the same.
        """
        if self.ranks.rank:
            return
        checkpoint = self[step]
        with _writing(self.root):
            pins.pin(self.root, checkpoint)

    def unpin(self, step: int | str) -> None:
        if self.ranks.rank:
            return
        name = self[step].path.name
        with _writing(self.root):
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
        if not self.ranks.alone:
            self.claim()  # together; what follows is rank 0's alone
        return self._prune(rule, spared=()) if self.ranks.rank == 0 else []

    def quarantine(self, checkpoint: Checkpoint, why: str) -> Path:
        """Move a checkpoint aside, never deleting it; `why` is a word or two that become part of its name. Rank 0 does."""
        attempt = self.claim()
        if self.ranks.rank:
            return checkpoint.path
        with self._acting(attempt, "move a checkpoint to quarantine"):
            self._sharing.forget()
            path = attempts.set_aside(attempt, checkpoint.path, why)
            self._point()
        return path

    @cached_property
    def _document(self) -> dict[str, Any]:
        return document()

    # -- the parts of a save ---------------------------------------------------------------------------------------

    @contextmanager
    def _acting(self, attempt: Attempt, what: str) -> Iterator[None]:
        with attempt.acting(what), self._turn:  # a forked child is refused before it waits for a thread of its parent's
            yield

    def _begin(self, attempt: Attempt, name: Name) -> Path:
        """An empty directory in the attempt's own room."""
        partial = attempt.room / str(name)
        with self._acting(attempt, "save"):
            if attempts.is_checkpoint(self.root / "checkpoints" / str(name)):
                attempt.require()  # else it may be a successor's
                raise UsageError(f"{self.root}: {name} is already committed; checkpoints are immutable")
            disk.remove_tree(partial)
            disk.make_dir(partial)
        return partial

    def _finish(self, attempt: Attempt, name: Name, partial: Path, fill: Callable[[Path], Manifest]) -> Checkpoint:
        with self._acting(attempt, "save"):
            try:
                manifest = fill(partial)
                disk.write(partial / MANIFEST, [format.encode(manifest)])
                path = attempts.publish(attempt, partial, str(name))
            except Exception:
                attempts.clean_up(partial)
                raise
            self.parent = str(name)
            self._point()
            if manifest.ranks is None:
                self._sharing.remember(path, manifest)
        return Checkpoint(path)

    def _apply_rule(self, name: Name, leave: Callable[[], int] = lambda: 0) -> None:
        """Remove what the rule does not keep, now that `name` is committed."""
        if self.keep is not None:
            with suppress(Abandoned):
                self._prune(self.keep, spared=(str(name),), leave=leave)

    def _apply_rule_together(self, save: Together, checkpoint: Checkpoint, leave: Callable[[], int]) -> None:
        """As `_apply_rule`; each rank reads back from the medium what it wrote."""
        attempt, plan = self.claim(), pruning.Plan([], [])

        def rule() -> bytes:
            if self.keep is not None:
                plan.doomed[:], plan.needed[:] = pruning.plan(self._shelf, self.keep, {checkpoint.path.name})
            return b"prune" if len(plan.doomed) > leave() else b""

        def read_back() -> bytes:
            appear(checkpoint.path)
            pruning.verify(attempt, [checkpoint.as_rank(self.ranks.rank)], self._sharing)
            others = [each for each in plan.needed if each.path != checkpoint.path]
            pruning.verify(attempt, others, self._sharing)
            return b""

        def discard(_: list[bytes]) -> bytes:
            pruning.discard(attempt, plan.doomed)
            self._point()
            return b""

        if save.lead("rule", rule):
            save.collect("pruning", read_back, discard)

    def _sealed(self, name: Name, facts: Facts, seals: list[Seal], body: Any) -> Manifest:
        files = {seal.entry.part: seal.file for seal in seals}
        manifest = self._manifest(name, facts, files, {}, body)
        return msgspec.structs.replace(manifest, ranks=[seal.entry for seal in seals])

    def _manifest(
        self, name: Name, facts: Facts, files: dict[str, format.File], leaves: dict[str, format.Leaf], body: Any
    ) -> Manifest:
        attempt = self.claim()
        best = self._own_best()
        return Manifest(
            step=name.step,
            phase=name.phase,
            epoch=facts.epoch,
            created=format.utc(time.time()),
            run=attempt.run,
            attempt=attempt.number,
            parent=self.parent,
            metrics=format.pack_metrics(facts.metrics),
            best={"metric": best.metric, "direction": best.direction.__name__} if best else None,
            note=facts.note,
            document=dict(facts.document or self._document),
            files=files,
            leaves=leaves,
            tree=body,
        )

    def _require_space(self, need: int) -> None:
        free = disk.free_bytes(self.root)
        if need + _SPARE_BYTES > free and self.keep is not None:
            with suppress(Damaged):  # the newest, which is why nothing was removed
                if self._prune(self.keep, spared=()):  # what a stop has left
                    free = disk.free_bytes(self.root)
        if need + _SPARE_BYTES > free:
            raise NoSpace(
                f"{self.root}: the checkpoint needs {need:,} bytes and {free:,} are free; nothing was written. "
                "Free some space, or keep fewer checkpoints"
            )

    def _point(self) -> None:
        """Renew the links for people. They are not the truth: a failure is not one of the save's."""
        for link, find in (("latest", self.latest), ("best", self.best)):
            with suppress(OSError, Damaged):
                self._point_to(link, find)

    def _point_to(self, link: str, find: Callable[[], Checkpoint]) -> None:
        attempt = self.claim()
        try:
            attempts.point(attempt, link, find().path.name)
        except NotFound:
            attempts.unpoint(attempt, link)

    def _prune(self, rule: Rule, spared: Collection[str], leave: Callable[[], int] = lambda: 0) -> list[Checkpoint]:
        """What was removed. Abandoned: it is no more than `leave` says, perhaps only now, and nothing was removed."""
        if self.attempt is None and not pruning.prunable(self._shelf, rule, spared):
            return []
        attempt = self.claim()
        with self._acting(attempt, "prune"):
            plan = pruning.plan(self._shelf, rule, spared)  # as the owner: before, another might have been at work
            if not plan.doomed:
                return []

            def still_wanted() -> None:
                if len(plan.doomed) <= leave():
                    raise Abandoned

            still_wanted()
            pruning.verify(attempt, plan.needed, self._sharing, still_wanted)
            removed = pruning.discard(attempt, plan.doomed)
            self._point()
            return removed

    def _own_best(self) -> Best | None:
        return next((rule for rule in parts(self.keep) if isinstance(rule, Best)), None) if self.keep else None


@contextmanager
def _writing(root: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise StoreError(f"{root}: cannot write here: {error.strerror}") from error


def _name(step: int, phase: str) -> Name:
    if isinstance(step, bool) or not isinstance(step, int) or not 0 <= step < 10**18:
        raise UsageError(f"a step is a whole number from 0, not {step!r}")
    return Name(step, phase)
