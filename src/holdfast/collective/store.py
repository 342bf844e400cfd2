"""CollectiveStore: the checkpoints of a run of several ranks.
A checkpoint holds the state of every rank.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec

from ..errors import Damaged, DiskError, NotFound, UsageError
from ..ranks import Ranks, returning
from ..rules import Rule
from ..state import tree
from ..state.codec import without_garbage_collection
from ..state.snapshot import Arena
from ..store.attempt import Attempt, join_attempt
from ..store.checkpoint import Checkpoint
from ..store.format import CheckpointName
from ..store.pruning import DamagedBefore, DamagedSince
from ..store.shards import StagedState
from ..store.store import ManifestFields, SaveHooks, Store
from .collective_save import CollectiveSave
from .rank_share import RankShare


class CollectiveStore(Store):
    """Each rank has one such store, with the same root. They claim, save and load together.

    An error on one rank is raised on all. Rank 0 alone pins, prunes and moves to quarantine.
    """

    def __init__(self, root: str | os.PathLike[str], *, ranks: Ranks, **options: Any) -> None:
        # claims and saves may run beside other messages of the ranks
        self.ranks = ranks.for_thread("store")
        super().__init__(root, **options)
        self._share = RankShare(ranks.rank, self.sharing)

    def _begin_attempt(self) -> Attempt:
        """Rank 0 begins the attempt; the other ranks join it.

        Raises:
            UsageError: another attempt may live, or a rank does not see rank 0's directory.
        """
        found: list[Attempt] = []

        def claimed() -> bytes:
            found.append(super(CollectiveStore, self)._begin_attempt())
            return msgspec.json.encode((found[0].number, found[0].run))

        number, run = msgspec.json.decode(
            self.ranks.run_on_rank_0("claim", claimed), type=tuple[int, str]
        )
        with self.ranks.together("join"):
            if self.ranks.rank:
                try:
                    found.append(join_attempt(self.root, number, run))
                except UsageError as error:
                    raise UsageError(
                        f"rank {self.ranks.rank} does not see what rank 0 does: {error}"
                    ) from None
        return found[0]

    def _load(
        self, choose: Callable[[], Checkpoint] | None, read: Callable[[Checkpoint], Any]
    ) -> Any:
        """Read on each rank its own part of one checkpoint; return what `read` returned.

        Rank 0 chooses the checkpoint by `choose`. Without `choose` it is the newest one that all
        ranks can read.
        """
        ranks, index = self.ranks, self.index

        def one(checkpoint: Checkpoint) -> Any:
            found = []
            with ranks.together(f"load {checkpoint.path.name}"):
                found.append(read(checkpoint.as_rank(ranks.rank)))
            return found[0]

        def led(find: Callable[[], Checkpoint]) -> Checkpoint:
            """Return the checkpoint that rank 0 finds, on every rank."""
            name = ranks.run_on_rank_0("checkpoint", lambda: find().path.name.encode())  # noqa: PLW0108  only rank 0 finds
            return index.checkpoint(name.decode())

        if choose is not None:
            return one(led(choose))
        if ranks.leads:
            try:
                return index.read_newest(lambda checkpoint: one(led(lambda: checkpoint)))
            except (NotFound, Damaged) as error:
                ranks.run_on_rank_0("checkpoint", returning(error=error))
                raise
        while True:  # until rank 0 finds no further checkpoint
            checkpoint = led(index.latest)
            with suppress(NotFound, Damaged):
                return one(checkpoint)

    def lay_out(
        self, state: Any, arena: Arena | None = None, weights: Collection[int] = ()
    ) -> StagedState:
        """Lay out `state` as `Store.lay_out` does, into the files that this rank will probably
        write.
        """
        with without_garbage_collection():
            flat = tree.flatten(state, weights)
            staged = StagedState(
                flat.tree,
                flat.leaves,
                self._share.expected_shards(flat.leaves),
                kind=self.index.kind,
            )
        return staged if arena is None else staged.snapshot_in(arena)

    def _commit(
        self, staged: StagedState, name: CheckpointName, facts: ManifestFields, hooks: SaveHooks
    ) -> Checkpoint:
        save = CollectiveSave(self.ranks, self, name, self._share)
        with self.translate_errors(save.attempt, "save"):
            try:
                self.not_finite = save.write(staged, facts, hooks)
            except Exception:
                if self.ranks.leads:
                    self.discard_partial(save.partial)
                raise
            self.parent = str(name)
            with (
                suppress(DamagedBefore, DamagedSince, DiskError, NotFound)
                if self.ranks.rank
                else self.warn_if_prune_fails()
            ):
                save.apply_rule(hooks.leave)
        return self.index.checkpoint(name)

    def directory(self, **_: Any) -> Any:
        """Refuse to save a directory: only a single process can do that.

        Raises:
            UsageError: always. Only a single process can save a directory.
        """
        raise UsageError("a directory is saved by one process: use a Store on one of the ranks")

    def prune(self, rule: Rule) -> list[Checkpoint]:
        """Prune as `Store.prune` does. All ranks must call it: they claim the run together; then
        rank 0 prunes.
        """
        self.claim()
        return [] if self.ranks.rank else super().prune(rule)

    def quarantine(self, checkpoint: Checkpoint, why: str) -> Path:
        """Move a checkpoint as `Store.quarantine` does. All ranks must call it and claim the run;
        then rank 0 moves it.
        """
        if self.ranks.leads:
            return super().quarantine(checkpoint, why)
        self.claim()
        self.sharing.forget_last_checkpoint()
        return checkpoint.path
