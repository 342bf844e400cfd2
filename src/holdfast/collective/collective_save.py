"""A checkpoint that all ranks write. Rank 0 commits it when the files of all ranks are durable.

Rank 0 never reads what the other ranks wrote. The manifest names one part for each rank, with its
digest, so that its size grows only with the number of ranks.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec

from ..ranks import Ranks, capture_outcome
from ..store import pruning
from ..store.attempt import is_checkpoint, wait_until_visible
from ..store.committing import CheckpointWriter, ManifestFields
from ..store.format import CheckpointName
from ..store.pruning import DamagedBefore, DamagedSince, PruningPlan
from ..store.shards import SaveAbandoned, StagedState
from ..store.sharing import ReusableLeaves
from ..store.store import SaveHooks
from .division import DECISIONS, SHEETS, RankState, WritePlan, assign_leaves, find_duplicate_pieces
from .rank_share import SEALS, RankShare, WrittenShare, commit_parts, seal_part

_KNOWN = (SaveAbandoned, DamagedBefore, DamagedSince)  # raised on all ranks, like our own errors


class CollectiveSave:
    """One save by all ranks. All call the same methods in the same order; an error on one fails the
    save on all.
    """

    def __init__(
        self, ranks: Ranks, owner: CheckpointWriter, name: CheckpointName, share: RankShare
    ) -> None:
        self.ranks, self.owner, self.name, self.share = ranks, owner, name, share
        self.attempt = owner.claim()
        self.partial = self.attempt.room / str(name)

    def _run_on_rank_0(self, what: str, work: Callable[[], bytes]) -> bytes:
        """Do `work` on rank 0 alone; return its result on all ranks."""
        return self.ranks.run_on_rank_0(
            f"{what} of {self.name}", lambda: self._run_translating_errors(work), _KNOWN
        )

    def _run_on_all_ranks(
        self,
        what: str,
        work: Callable[[], bytes],
        then: Callable[[list[bytes]], bytes] = lambda _: b"",
    ) -> bytes:
        """Do `work` on all ranks; rank 0 calls `then` with their results. Return the result of
        `then` on all ranks.
        """
        return self.ranks.run_on_all(
            f"{what} of {self.name}",
            lambda: self._run_translating_errors(work),
            lambda found: self._run_translating_errors(lambda: then(found)),
            _KNOWN,
        )

    def _run_translating_errors(self, work: Callable[[], bytes]) -> bytes:
        with self.attempt.translate_errors("save"):
            return work()

    def write(self, staged: StagedState, facts: ManifestFields, hooks: SaveHooks) -> Sequence[str]:
        """Write this rank's shards and its part. When those of all ranks are durable, rank 0
        commits the checkpoint.

        Returns the names of weights of any rank that are not finite: the first of them.

        Raises:
            UsageError: the ranks do not hold pieces of the same leaves.
        """
        plan, unchanged = self._plan_writes(staged)
        done: list[WrittenShare] = []

        def write_share() -> bytes:
            done.append(
                self.share.write(
                    self.attempt, self.partial, plan, staged, unchanged, hooks.before_each
                )
            )
            hooks.before_last()
            return msgspec.msgpack.encode(
                seal_part(self.partial, done[0].part, plan.firsts, staged.kind)
            )

        def committed(words: list[bytes]) -> bytes:
            seals = [SEALS.decode(word) for word in words]
            manifest = commit_parts(self.owner, self.name, facts, self.partial, seals, staged.tree)
            return msgspec.json.encode((manifest.created, manifest.not_finite))

        word = self._run_on_all_ranks("commit", write_share, committed)
        created, not_finite = msgspec.json.decode(word, type=tuple[str, list[str]])
        self.share.note_committed(self.owner.index.checkpoint(self.name).path, created, done[0])
        return not_finite

    def _plan_writes(self, staged: StagedState) -> tuple[WritePlan, ReusableLeaves]:
        """Decide which rank writes which leaves.
        Return this rank's plan, and which of its leaves did not change.
        """
        mine: list[RankState] = []
        found: list[ReusableLeaves] = []

        def look() -> bytes:
            if self.ranks.leads:
                self.owner.create_partial(self.name)
            if staged.snapshot is not None and not staged.snapshot.wait_for_all():
                raise SaveAbandoned
            mine.append(RankState(staged))
            found.append(self.share.find_unchanged(mine[0], self.owner.parent))
            return msgspec.msgpack.encode(mine[0].sheet)

        # now, so that all ranks compare their leaves at the same time
        looked = capture_outcome(lambda: self._run_translating_errors(look))
        sheet = SHEETS.decode(self._run_on_rank_0("sheet", looked))

        def answer() -> bytes:
            looked()
            return msgspec.msgpack.encode(
                mine[0].reply_to(sheet, self.ranks.rank, found[0].linked_keys)
            )

        word = self._run_on_all_ranks(
            "plan", answer, lambda words: assign_leaves(words, mine[0], self.owner.require_space)
        )
        decision = DECISIONS.decode(word)
        spare = self._duplicates_to_skip(mine[0], decision.doubtful) if decision.doubtful else set()
        return mine[0].plan(sheet, decision, spare, self.ranks), found[0]

    def _duplicates_to_skip(self, mine: RankState, doubtful: Sequence[str]) -> set[str]:
        """Return which of these pieces a lower rank writes.
        A device mesh does not list outside ranks.
        """
        word = self._run_on_all_ranks(
            "pieces",
            lambda: msgspec.msgpack.encode(mine.piece_boxes(doubtful)),
            find_duplicate_pieces,
        )
        return set(msgspec.msgpack.decode(word, type=list[list[str]])[self.ranks.rank])

    def apply_rule(self, leave: Callable[[], int]) -> None:
        """Remove what the rule does not keep,
        after each rank has read back from the disk what it wrote.
        """
        owner, attempt, plans = self.owner, self.attempt, [PruningPlan([], [])]
        checkpoint = owner.index.checkpoint(self.name)

        def rule() -> bytes:
            if owner.keep is not None:
                spared = {checkpoint.path.name}
                plans[:] = [
                    pruning.plan_pruning(
                        owner.index,
                        owner.keep,
                        spared,
                        {*owner.copies.protected_names(), *owner.protected},
                    )
                ]
            names = [each.path.name for each in plans[0].doomed]
            return msgspec.json.encode(names) if len(names) > leave() else b""

        def read_back() -> bytes:
            wait_until_visible(checkpoint.path, is_checkpoint)
            mine = owner.index.checkpoint_at(checkpoint.path, rank=self.ranks.rank)
            pruning.read_back(attempt, [mine], owner.sharing, doomed=doomed)
            others = [each for each in plans[0].needed if each.path != checkpoint.path]
            pruning.read_back(attempt, others, owner.sharing)
            pruning.read_back_finite(attempt, plans[0].finite, owner.sharing)
            return b""

        def discard(_: list[bytes]) -> bytes:
            pruning.discard(attempt, plans[0])
            owner.update_links()
            return b""

        word = self._run_on_rank_0("rule", rule)
        if word:
            doomed = [
                owner.index.checkpoint(name) for name in msgspec.json.decode(word, type=list[str])
            ]
            self._run_on_all_ranks("pruning", read_back, discard)
