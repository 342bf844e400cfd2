"""A checkpoint that all ranks write. Rank 0 commits it when the files of all ranks are durable.

Rank 0 never reads what the other ranks wrote. The manifest names one part for each rank, with its digest, so that its
size grows only with the number of ranks.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import msgspec

from ..ranks import Ranks
from ..store.attempt import Attempt
from ..store.format import Manifest, Name
from ..store.pruning import DamagedSince
from ..store.shards import Abandoned, Staged
from ..store.sharing import Unchanged
from .collective import tried
from .division import Decision, Mine, Sheet, WritePlan, decided, spares
from .rank_share import Laid, RankShare, Seal, sealed

_KNOWN = (Abandoned, DamagedSince)  # told besides our own errors


class Agreed(NamedTuple):
    """What a rank has to write, and which of its leaves did not change."""

    plan: WritePlan
    unchanged: Unchanged


class CollectiveSave:
    """One save of all ranks. All ranks call the same methods in the same order; a failure on one fails the save on all."""

    def __init__(self, ranks: Ranks, attempt: Attempt, name: Name, share: RankShare) -> None:
        self.ranks, self.attempt, self.name, self.share = ranks, attempt, name, share
        self.partial = attempt.room / str(name)

    def lead(self, what: str, work: Callable[[], bytes]) -> bytes:
        """Rank 0 alone does `work`; all ranks get its result."""
        return self.ranks.lead(f"{what} of {self.name}", self._acting(work), _KNOWN)

    def collect(
        self, what: str, work: Callable[[], bytes], then: Callable[[list[bytes]], bytes] = lambda _: b""
    ) -> bytes:
        """All ranks do `work`; rank 0 calls `then` with their results; all ranks get what `then` returned."""
        return self.ranks.collect(
            f"{what} of {self.name}", self._acting(work), lambda found: self._acting(lambda: then(found))(), _KNOWN
        )

    def _acting(self, work: Callable[[], bytes]) -> Callable[[], bytes]:
        """`work`, whose errors are raised as what they mean for the attempt."""

        def done() -> bytes:
            with self.attempt.acting("save"):
                return work()

        return done

    def plan(
        self, staged: Staged, parent: str | None, begin: Callable[[], object], require_space: Callable[[int], None]
    ) -> Agreed:
        """Decide which rank writes which leaves, given the checkpoint `parent`.

        Rank 0 calls `begin` first, and `require_space` for the bytes of all ranks.

        Raises:
            UsageError: the ranks do not hold pieces of the same leaves.
        """
        looked: list[Mine] = []
        found: list[Unchanged] = []

        def look() -> bytes:
            if self.ranks.rank == 0:
                begin()
            if staged.snapshot is not None and not staged.snapshot.wait_for_all():
                raise Abandoned
            looked.append(Mine(staged))
            found.append(self.share.unchanged(looked[0], parent))
            return msgspec.msgpack.encode(looked[0].sheet)

        look = tried(self._acting(look))  # now, so that all ranks look at their leaves at the same time
        sheet = msgspec.msgpack.decode(self.lead("sheet", look), type=Sheet)

        def answer() -> bytes:
            look()
            return msgspec.msgpack.encode(looked[0].claim(sheet, self.ranks.rank, found[0].linked))

        word = self.collect("plan", answer, lambda words: decided(words, looked[0], require_space))
        decision = msgspec.msgpack.decode(word, type=Decision)
        spare = self._spare(looked[0], decision.doubtful) if decision.doubtful else set()
        return Agreed(looked[0].plan(sheet, decision, spare, self.ranks), found[0])

    def _spare(self, mine: Mine, doubtful: Sequence[str]) -> set[str]:
        """Which of these pieces a lower rank writes. A device mesh does not know the pieces of ranks outside."""
        word = self.collect("pieces", lambda: msgspec.msgpack.encode(mine.places(doubtful)), spares)
        return set(msgspec.msgpack.decode(word, type=list[list[str]])[self.ranks.rank])

    def write(
        self,
        agreed: Agreed,
        staged: Staged,
        before_each: Callable[[], None],
        before_last: Callable[[], None],
        commit: Callable[[list[Seal]], Manifest],
    ) -> None:
        """Write this rank's shards and its part. When those of all ranks are durable, rank 0 calls `commit`."""
        laid: list[Laid] = []

        def written() -> bytes:
            laid.append(
                self.share.write(self.attempt, self.partial, agreed.plan, staged, agreed.unchanged, before_each)
            )
            before_last()
            return msgspec.msgpack.encode(sealed(self.partial, laid[0].part, agreed.plan.firsts))

        def committed(words: list[bytes]) -> bytes:
            return commit([msgspec.msgpack.decode(word, type=Seal) for word in words]).created.encode()

        created = self.collect("commit", written, committed).decode()
        self.share.remember(self.attempt.root / "checkpoints" / str(self.name), created, laid[0])
