"""CollectiveStore: the checkpoints of a run of several ranks. A checkpoint holds what every rank gave."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from ..errors import UsageError
from ..ranks import Ranks
from ..rules import Rule, Whole
from ..state import tree
from ..state.codec import uncollected
from ..state.snapshot import Arena
from ..store import attempt as attempts
from ..store.attempt import Attempt
from ..store.checkpoint import Checkpoint
from ..store.pruning import DamagedSince
from ..store.shards import Staged
from ..store.store import Facts, Store, checked_name
from .collective import claim, load
from .collective_save import CollectiveSave
from .rank_share import RankShare


class CollectiveStore(Store):
    """Each of several `ranks` has one, with the same root. They claim, save and load together.

    An error on one rank is raised on all. Rank 0 alone pins, prunes and moves to quarantine.
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
        self.ranks = ranks.twin("store")  # claims and saves may run beside other messages of the ranks
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
        facts, owner = facts or Facts(), self.owner
        save = CollectiveSave(self.ranks, owner, checked_name(step, facts.phase), self._share)
        with owner.acting(save.attempt, "save"):
            try:
                save.write(staged, facts, before_each, before_last)
            except Exception:
                if self.ranks.rank == 0:
                    attempts.clean_up(save.partial)
                raise
            owner.parent = str(save.name)
            with suppress(DamagedSince) if self.ranks.rank else owner.telling():
                save.apply_rule(leave)
        return self._shelf.checkpoint(save.name)

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
