"""Joint: saves of several ranks, each from the plan to what the rule does when it is committed."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import msgspec

from ..state.codec import Block
from . import attempt as attempts
from . import pruning
from .checkpoint import Checkpoint
from .collective_save import CollectiveSave, appear
from .committing import Committing, Facts
from .format import Manifest, Name
from .rank_share import RankShare, Seal
from .shards import Shard, Staged


class Hooks(NamedTuple):
    """What a save asks on its way, as `Store.commit` says."""

    before_each: Callable[[], None]
    before_last: Callable[[], None]
    leave: Callable[[], int]


class CollectiveSaves:
    """This rank's side of them."""

    def __init__(self, committing: Committing) -> None:
        self._owner = committing
        self._portion = RankShare(committing.ranks.rank, committing.sharing)

    def foreseen(self, leaves: Mapping[str, Block]) -> Sequence[Shard]:
        """Files for a snapshot, as the next save is likely to write them."""
        return self._portion.foreseen(leaves)

    def commit(self, staged: Staged, name: Name, facts: Facts, hooks: Hooks) -> Checkpoint:
        """Save it as `Store.commit` does, with all other ranks. What fails on one fails on all."""
        owner = self._owner
        attempt = owner.claim()
        save = CollectiveSave(owner.ranks, attempt, name, self._portion)

        def commit(seals: list[Seal]) -> Manifest:
            return owner.finish(name, save.partial, lambda _: owner.sealed(name, facts, seals, staged.tree))

        with owner.acting(attempt, "save"):
            try:
                agreed = save.plan(staged, owner.parent, lambda: owner.begin(name), owner.require_space)
                save.write(agreed, staged, hooks.before_each, hooks.before_last, commit)
            except Exception:
                if owner.ranks.rank == 0:
                    attempts.clean_up(save.partial)
                raise
            owner.parent = str(name)
            checkpoint = owner.shelf.checkpoint(name)
            with owner.telling():
                self._apply_rule(save, checkpoint, hooks.leave)
        return checkpoint

    def _apply_rule(self, save: CollectiveSave, checkpoint: Checkpoint, leave: Callable[[], int]) -> None:
        """Remove what the rule does not keep, when each rank has read back from the medium what it wrote."""
        owner, plan = self._owner, pruning.Plan([], [])
        attempt, rank = owner.claim(), owner.ranks.rank

        def rule() -> bytes:
            if owner.keep is not None:
                plan.doomed[:], plan.needed[:] = pruning.plan(owner.shelf, owner.keep, {checkpoint.path.name})
            names = [each.path.name for each in plan.doomed]
            return msgspec.json.encode(names) if len(names) > leave() else b""

        def read_back() -> bytes:
            appear(checkpoint.path)
            pruning.verify(attempt, [checkpoint.as_rank(rank)], owner.sharing, doomed=doomed)
            others = [each for each in plan.needed if each.path != checkpoint.path]
            pruning.verify(attempt, others, owner.sharing)
            return b""

        def discard(_: list[bytes]) -> bytes:
            pruning.discard(attempt, plan.doomed)
            owner.point()
            return b""

        word = save.lead("rule", rule)
        if word:
            doomed = [owner.shelf.checkpoint(name) for name in msgspec.json.decode(word, type=list[str])]
            save.collect("pruning", read_back, discard)
