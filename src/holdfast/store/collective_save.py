"""Together: one checkpoint that all ranks write. Rank 0 commits when all of it is durable.

Rank 0 never reads what the others wrote: the manifest names a part of each, with its digest, and that costs no more than
there are ranks.
"""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple, TypeVar

import msgspec

from ..errors import Damaged, NotFound, UsageError
from ..ranks import Ranks
from . import format
from .attempt import JOIN_S, Attempt, is_checkpoint, join
from .checkpoint import Checkpoint
from .division import Decision, Mine, Plan, Sheet, decided, spares
from .format import Manifest
from .pruning import DamagedSince
from .rank_share import Laid, RankShare, Seal, sealed
from .shards import Abandoned, Staged
from .sharing import Unchanged
from .shelf import Shelf

T = TypeVar("T")

_KNOWN = (Abandoned, DamagedSince)  # told besides our own errors


class Agreed(NamedTuple):
    """What a rank is to write, and what of it need not be written."""

    plan: Plan
    unchanged: Unchanged


class CollectiveSave:
    """One save of all ranks. Every one of them calls the same methods in the same order; what fails on one fails on all."""

    def __init__(self, ranks: Ranks, attempt: Attempt, name: format.Name, share: RankShare) -> None:
        self.ranks, self.attempt, self.name, self.share = ranks, attempt, name, share
        self.partial = attempt.room / str(name)

    def lead(self, what: str, work: Callable[[], bytes]) -> bytes:
        """What `work` gives on rank 0; it alone does it."""
        return self.ranks.lead(f"{what} of {self.name}", self._acting(work), _KNOWN)

    def collect(
        self, what: str, work: Callable[[], bytes], then: Callable[[list[bytes]], bytes] = lambda _: b""
    ) -> bytes:
        """Do `work` on all ranks, then on rank 0 `then` with what it gave; what that gives."""
        return self.ranks.collect(
            f"{what} of {self.name}", self._acting(work), lambda found: self._acting(lambda: then(found))(), _KNOWN
        )

    def _acting(self, work: Callable[[], bytes]) -> Callable[[], bytes]:
        """What fails is raised as what it means for the attempt."""

        def done() -> bytes:
            with self.attempt.acting("save"):
                return work()

        return done

    def plan(
        self, staged: Staged, parent: str | None, begin: Callable[[], object], require_space: Callable[[int], None]
    ) -> Agreed:
        """Who writes what, after the checkpoint `parent`. Rank 0 calls `begin` first; `require_space` is asked there, for all.

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

        look = _tried(self._acting(look))  # now: each looks at its own while rank 0 does
        sheet = msgspec.msgpack.decode(self.lead("sheet", look), type=Sheet)

        def answer() -> bytes:
            look()
            return msgspec.msgpack.encode(looked[0].claim(sheet, self.ranks.rank, found[0].linked))

        word = self.collect("plan", answer, lambda words: decided(words, looked[0], require_space))
        decision = msgspec.msgpack.decode(word, type=Decision)
        spare = self._spare(looked[0], decision.doubtful) if decision.doubtful else set()
        return Agreed(looked[0].plan(sheet, decision, spare, self.ranks), found[0])

    def _spare(self, mine: Mine, doubtful: Sequence[str]) -> set[str]:
        """Which of these pieces a rank before this one writes: a mesh of some ranks may not know of its neighbours."""
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
        """Write this rank's shards and its part; when those of all ranks are durable, `commit` on rank 0."""
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


def _tried(work: Callable[[], bytes]) -> Callable[[], bytes]:
    """What gives, or raises, again what `work` does now."""
    try:
        found = work()
        return lambda: found
    except Exception as error:
        return _raising(error)


def _raising(error: Exception) -> Callable[[], bytes]:
    def fail() -> bytes:
        raise error

    return fail


def claim(ranks: Ranks, root: Path, begin: Callable[[], Attempt]) -> Attempt:
    """What `begin` gives on rank 0; on the others the same attempt, joined.

    Raises:
        UsageError: what `begin` raised; or a rank does not see rank 0's directory.
    """
    if ranks.alone:
        return begin()
    found: list[Attempt] = []

    def claimed() -> bytes:
        found.append(begin())
        return msgspec.json.encode((found[0].number, found[0].run))

    number, run = msgspec.json.decode(ranks.lead("claim", claimed), type=tuple[int, str])

    def joined() -> bytes:
        if ranks.rank:
            try:
                found.append(join(root, number, run))
            except UsageError as error:
                raise UsageError(f"rank {ranks.rank} does not see what rank 0 does: {error}") from None
        return b""

    ranks.collect("join", joined)
    return found[0]


def appear(checkpoint: Path) -> None:
    """Return when this process, too, sees what rank 0 has committed.

    Raises:
        FileNotFoundError: it does not, in the time that network file systems lag.
    """
    until = time.monotonic() + JOIN_S
    while not is_checkpoint(checkpoint):
        if time.monotonic() > until:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(checkpoint))
        os.listdir(checkpoint.parent)  # makes them look again
        time.sleep(0.05)


def load(ranks: Ranks, shelf: Shelf, choose: Callable[[], Checkpoint] | None, read: Callable[[Checkpoint], T]) -> T:
    """What `read` makes, on each rank, of what that rank saved: of the checkpoint that `choose` finds on rank 0, or of the
    newest that is whole for all of them.

    Raises:
        NotFound: there is none.
        Damaged: none that would do is whole for every rank.
    """

    def one(checkpoint: Checkpoint) -> T:
        found: list[T] = []

        def mine() -> bytes:
            found.append(read(checkpoint.as_rank(ranks.rank)))
            return b""

        ranks.collect(f"load {checkpoint.path.name}", mine)
        return found[0]

    def told(find: Callable[[], Checkpoint] | None) -> Checkpoint:
        def named() -> bytes:
            return find().path.name.encode() if find is not None else b""

        return shelf.checkpoint(ranks.lead("checkpoint", named).decode())

    if choose is not None:
        return one(told(choose))
    if ranks.rank == 0:
        try:
            return shelf.read_newest(lambda checkpoint: one(told(lambda: checkpoint)))
        except (NotFound, Damaged) as error:
            ranks.lead("checkpoint", _raising(error))
            raise
    while True:  # until rank 0 has no further one
        checkpoint = told(None)
        with suppress(NotFound, Damaged):
            return one(checkpoint)
