"""Together: one checkpoint that all ranks write. Rank 0 commits when all of it is durable.

Rank 0 never reads what the others wrote: the manifest names a part of each, with its digest, and that costs no more than
there are ranks.
"""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TypeVar

import msgspec

from .. import disk
from ..errors import Damaged, NotFound, StoreError, UsageError
from ..ranks import Ranks
from ..state.codec import Block
from . import format, parts, shards
from .attempt import JOIN_S, Attempt, is_checkpoint, join
from .checkpoint import Checkpoint
from .division import Mine, Plan, Sheet, decided, spares
from .format import File, Leaf, PartEntry
from .parts import Part
from .shards import Abandoned, Shard, Staged
from .shelf import Shelf

T = TypeVar("T")

_KNOWN = (Abandoned,)  # told besides our own errors


class Seal(msgspec.Struct, frozen=True, array_like=True):
    """What a rank wrote, durably."""

    entry: PartEntry
    file: File


class Together:
    """One save of all ranks. Every one of them calls the same methods in the same order; what fails on one fails on all."""

    def __init__(self, ranks: Ranks, attempt: Attempt, name: format.Name) -> None:
        self.ranks, self.attempt, self.name = ranks, attempt, name
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

    def plan(self, staged: Staged, begin: Callable[[], object], require_space: Callable[[int], None]) -> Plan:
        """Who writes what. Rank 0 calls `begin` first; `require_space` is asked there, too, for all.

        Raises:
            UsageError: the ranks do not hold pieces of the same leaves.
        """
        looked: list[Mine] = []

        def look() -> bytes:
            if self.ranks.rank == 0:
                begin()
            if staged.snapshot is not None and not staged.snapshot.wait_for_all():
                raise Abandoned
            looked.append(Mine(staged))
            return msgspec.msgpack.encode(looked[0].sheet)

        look = _tried(self._acting(look))  # now: each looks at its own while rank 0 does
        sheet = msgspec.msgpack.decode(self.lead("sheet", look), type=Sheet)

        def answer() -> bytes:
            look()
            return msgspec.msgpack.encode(looked[0].answer(sheet))

        word = self.collect("plan", answer, lambda words: decided(words, looked[0], require_space))
        differing, doubtful = msgspec.msgpack.decode(word, type=tuple[list[str], list[str]])
        spare = self._spare(looked[0], doubtful) if doubtful else set()
        return looked[0].plan(sheet, set(differing), spare, self.ranks)

    def _spare(self, mine: Mine, doubtful: Sequence[str]) -> set[str]:
        """Which of these pieces a rank before this one writes: a mesh of some ranks may not know of its neighbours."""
        word = self.collect("pieces", lambda: msgspec.msgpack.encode(mine.places(doubtful)), spares)
        return set(msgspec.msgpack.decode(word, type=list[list[str]])[self.ranks.rank])

    def write(
        self,
        plan: Plan,
        staged: Staged,
        before_each: Callable[[], None],
        before_last: Callable[[], None],
        commit: Callable[[list[Seal]], object],
    ) -> None:
        """Write this rank's shards and its part; when those of all ranks are durable, `commit` on rank 0."""
        rank = self.ranks.rank

        def written() -> bytes:
            part = _written(self.partial, rank, plan, staged, before_each)
            before_last()
            return msgspec.msgpack.encode(sealed(self.partial, part, plan.first))

        def committed(words: list[bytes]) -> bytes:
            commit([msgspec.msgpack.decode(word, type=Seal) for word in words])
            return b""

        self.collect("commit", written, committed)


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


def foreseen(leaves: Mapping[str, Block], wrote: Collection[str], rank: int) -> list[Shard]:
    """Files for a snapshot: those that this rank is to write if it is to write again what it `wrote`, and the rest."""
    mine = {key: block for key, block in leaves.items() if key in wrote}
    rest = {key: block for key, block in leaves.items() if key not in mine}
    return shards.layout(mine, prefix=parts.prefix(rank)) + shards.layout(rest)


def sealed(partial: Path, part: Part, first: str | None) -> Seal:
    """Write a rank's part beside its shards. When this returns, both are durable."""
    data, name = parts.encode(part), format.part_name(part.rank)
    disk.write(partial / name, [data])
    disk.sync_dir(partial)
    return Seal(PartEntry(name, sum(file.size_bytes for file in part.files.values()), first), parts.entry(data))


def _written(path: Path, rank: int, plan: Plan, staged: Staged, before_each: Callable[[], None]) -> Part:
    layout = shards.layout(plan.blocks, prefix=parts.prefix(rank))
    alone = Staged(None, plan.blocks, layout)
    images = {shard.name: index for index, shard in enumerate(staged.shards)}
    files, leaves = dict[str, File](), dict[str, Leaf]()
    for index, shard in enumerate(layout):
        at = images.get(shard.name)
        if at is not None and staged.shards[at] == shard:  # as it was foreseen: a snapshot holds it in one piece
            written = shards.write(path, staged, at, before_each)
        else:
            written = shards.write(path, alone, index, before_each)
        files[shard.name] = written.file
        leaves |= written.leaves
    for key, leaf in leaves.items():
        if plan.digests.get(key, leaf.digest) != leaf.digest:
            raise StoreError(
                f"leaf {key!r} changed while it was saved: nothing may change the state until the save is over"
            )
    named = {plan.keys[key]: _without_spare(leaves[key]) for key in plan.blocks}
    return Part(rank, files, named, plan.tree, plan.spare)


def _without_spare(leaf: Leaf) -> Leaf:
    if "spare" not in leaf.attrs:
        return leaf
    return msgspec.structs.replace(leaf, attrs={name: value for name, value in leaf.attrs.items() if name != "spare"})
