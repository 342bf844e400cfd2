"""CollectiveStore: the checkpoints of a run of several ranks. A checkpoint holds what every rank gave."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec

from ..errors import UsageError
from ..ranks import Ranks
from ..rules import Rule, Whole
from ..state import tree
from ..state.codec import uncollected
from ..state.snapshot import Arena
from ..store import attempt as attempts
from ..store import pruning
from ..store.attempt import Attempt
from ..store.checkpoint import Checkpoint
from ..store.format import Manifest
from ..store.pruning import DamagedSince
from ..store.shards import Staged
from ..store.store import Facts, Store, checked_name
from .collective import appear, claim, load
from .collective_save import CollectiveSave
from .rank_share import RankShare, Seal, sealed_manifest


class CollectiveStore(Store):
    """Each of several `ranks` has one, with the same root. They claim, save and load together.

    What fails on one rank fails on all. Rank 0 alone pins, prunes and moves to quarantine.
    """

    def __init__(
        self,
        root: str | os.PathLike[str],
        *,
        ranks: Ranks,
        keep: Rule | None = None,
        take_over: bool = False,
        whole: Whole = Whole(),  # noqa: B008  a frozen value
    ) -> None:
        self.ranks = ranks.twin("store")  # claims and saves may run beside what else the ranks say
        super().__init__(root, keep=keep, take_over=take_over, whole=whole)
        self._share = RankShare(ranks.rank, self._sharing)

    def _begin(self) -> Attempt:
        return claim(self.ranks, self.root, super()._begin)

    def _load(self, choose: Callable[[], Checkpoint] | None, read: Callable[[Checkpoint], Any]) -> Any:
        """Each rank loads what it saved, all of them from the same checkpoint, which is whole for every one."""
        return load(self.ranks, self._shelf, choose, read)

    def save(
        self,
        state: Any,
        *,
        step: int,
        metrics: Mapping[str, Any] | None = None,
        note: str | None = None,
        facts: Facts | None = None,
    ) -> Checkpoint:
        """As `Store.save`, together with all other ranks."""
        with self.ranks.together(f"state of step {step}"):
            staged = self.stage(state)
        return self.commit(staged, step=step, facts=facts or Facts(metrics=metrics or {}, note=note))

    def lay_out(self, state: Any, arena: Arena | None = None) -> Staged:
        """As `Store.lay_out`. The files are those that this rank is likely to write."""
        with uncollected():
            flat = tree.flatten(state)
            staged = Staged(flat.tree, flat.leaves, self._share.foreseen(flat.leaves))
        return staged if arena is None else staged.snapshot_in(arena)

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
        """As `Store.commit`, together with all other ranks."""
        facts = facts or Facts()
        name, owner, attempt = checked_name(step, facts.phase), self.owner, self.claim()
        save = CollectiveSave(self.ranks, attempt, name, self._share)

        def commit(seals: list[Seal]) -> Manifest:
            return owner.finish(name, save.partial, lambda _: sealed_manifest(owner, name, facts, seals, staged.tree))

        with owner.acting(attempt, "save"):
            try:
                agreed = save.plan(staged, owner.parent, lambda: owner.begin(name), owner.require_space)
                save.write(agreed, staged, before_each, before_last, commit)
            except Exception:
                if self.ranks.rank == 0:
                    attempts.clean_up(save.partial)
                raise
            owner.parent = str(name)
            checkpoint = self._shelf.checkpoint(name)
            with suppress(DamagedSince) if self.ranks.rank else owner.telling():
                self._apply_rule(save, checkpoint, leave)
        return checkpoint

    def _apply_rule(self, save: CollectiveSave, checkpoint: Checkpoint, leave: Callable[[], int]) -> None:
        """Remove what the rule does not keep, after each rank has read back from the disk what it wrote."""
        owner, attempt, plan = self.owner, self.claim(), pruning.PruningPlan([], [])

        def rule() -> bytes:
            if owner.keep is not None:
                plan.doomed[:], plan.needed[:] = pruning.plan(self._shelf, owner.keep, {checkpoint.path.name})
            names = [each.path.name for each in plan.doomed]
            return msgspec.json.encode(names) if len(names) > leave() else b""

        def read_back() -> bytes:
            appear(checkpoint.path)
            pruning.verify(attempt, [checkpoint.as_rank(self.ranks.rank)], self._sharing, doomed=doomed)
            others = [each for each in plan.needed if each.path != checkpoint.path]
            pruning.verify(attempt, others, self._sharing)
            return b""

        def discard(_: list[bytes]) -> bytes:
            pruning.discard(attempt, plan.doomed)
            owner.point()
            return b""

        word = save.lead("rule", rule)
        if word:
            doomed = [self._shelf.checkpoint(name) for name in msgspec.json.decode(word, type=list[str])]
            save.collect("pruning", read_back, discard)

    def directory(self, **_: Any) -> Any:
        """
        Raises:
            UsageError: one process saves a directory.
        """
        raise UsageError("a directory is saved by one process: use a Store on one of the ranks")

    def pin(self, step: int | str) -> None:
        """As `Store.pin`; rank 0 does it."""
        if self.ranks.rank == 0:
            super().pin(step)

    def unpin(self, step: int | str) -> None:
        """As `Store.unpin`; rank 0 does it."""
        if self.ranks.rank == 0:
            super().unpin(step)

    def prune(self, rule: Rule) -> list[Checkpoint]:
        """As `Store.prune`; rank 0 does it, once all have claimed the run."""
        self.claim()
        return [] if self.ranks.rank else super().prune(rule)

    def quarantine(self, checkpoint: Checkpoint, why: str) -> Path:
        """As `Store.quarantine`; rank 0 does it, once all have claimed the run."""
        if self.ranks.rank == 0:
            return super().quarantine(checkpoint, why)
        self.claim()
        self._sharing.forget()
        return checkpoint.path
