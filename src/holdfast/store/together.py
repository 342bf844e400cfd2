"""Together: one checkpoint that all ranks write. They agree on who writes what; rank 0 commits when all of it is durable.

What every rank has alike is found by its digests, written once, and divided among them. What a rank has in a way of its
own it writes itself, and so every piece of a divided leaf. Rank 0 never reads what the others wrote: the manifest names a
part of each, with its digest, and that costs no more than there are ranks.
"""

from __future__ import annotations

import errno
import math
import os
import time
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import xxhash

from .. import disk
from ..errors import StoreError, UsageError
from ..ranks import Ranks
from ..state.codec import Block
from . import format, parts, shards
from .attempt import JOIN_S, Attempt, is_checkpoint, join
from .format import File, Leaf, PartEntry
from .lineage import digests_of
from .parts import AS_RANK_0, Part, own_key, top
from .shards import Abandoned, Shard, Staged

_KNOWN = (Abandoned,)  # told besides our own errors
_ELSEWHERE = {"device"}  # attributes of a leaf that may differ where the leaf is the same
_PLACES = {"of", "at", "spare"}  # attributes of a piece


class Sheet(msgspec.Struct, frozen=True, array_like=True):
    """What rank 0 tells of its state; 16 bytes for each leaf."""

    whole: dict[str, bytes]  # of what is not divided: facts and bytes
    divided: dict[str, bytes]  # of what is: facts
    tree: list[tuple[str | None, bytes]]  # its top-level members; None: it is none of a mapping


class Answer(msgspec.Struct, frozen=True, array_like=True):
    """In what a rank's state is not as rank 0's."""

    differing: list[int]  # places in the sheet of what is whole
    volumes: list[int]  # of its pieces, in the order of the sheet
    further: dict[str, tuple[int, int]]  # pieces of leaves that rank 0 lacks: volume, and that of the whole
    size_bytes: int  # that it is to write, besides what all have alike


class Seal(msgspec.Struct, frozen=True, array_like=True):
    """What a rank wrote, durably."""

    entry: PartEntry
    file: File


class Plan(NamedTuple):
    """What one rank writes."""

    blocks: dict[str, Block]
    keys: dict[str, str]  # of its blocks: what they are called in the part
    digests: Mapping[str, str]  # of its blocks' bytes, but for pieces; they must not change until they are written
    tree: list[Any]
    first: str | None


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
        return looked[0].plan(sheet, set(msgspec.msgpack.decode(word, type=list[str])), self.ranks)

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
            data = parts.encode(part)
            disk.write(self.partial / format.part_name(rank), [data])
            disk.sync_dir(self.partial)
            size = sum(file.size_bytes for file in part.files.values())
            entry = PartEntry(format.part_name(rank), size, plan.first)
            return msgspec.msgpack.encode(Seal(entry, parts.entry(data)))

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
        failure = error

    def fail() -> bytes:
        raise failure

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


class Mine:
    """One rank's state, and what makes it comparable."""

    def __init__(self, staged: Staged) -> None:
        self.tree = staged.tree
        self.blocks = staged.leaves
        self.pieces = {key: block for key, block in self.blocks.items() if "of" in block.attrs}
        whole = {key: block for key, block in self.blocks.items() if key not in self.pieces}
        self.digests = dict(zip(whole, digests_of([block.data for block in whole.values()]), strict=True))
        self.sheet = Sheet(
            {key: _mark(whole[key], found) for key, found in self.digests.items()},
            {key: _mark(block) for key, block in self.pieces.items()},
            _members(staged.tree),
        )

    def answer(self, sheet: Sheet) -> Answer:
        """In what this is not as `sheet` says.

        Raises:
            UsageError: a leaf is divided here and whole there, or the whole is another one.
        """
        for key, mark in self.sheet.divided.items():
            if key in sheet.whole or sheet.divided.get(key, mark) != mark:
                raise UsageError(f"leaf {key!r} is divided among ranks, and rank 0 has another one under that key")
        for key in sheet.divided.keys() & self.sheet.whole.keys():
            raise UsageError(f"leaf {key!r} is whole on this rank, and divided among others on rank 0")
        mine = self.sheet.whole
        differing = [place for place, (key, mark) in enumerate(sheet.whole.items()) if mine.get(key) != mark]
        own = [key for key, mark in mine.items() if sheet.whole.get(key) != mark]
        written = [*own, *self._written_pieces()]
        return Answer(
            differing,
            [self._volume(key) for key in sheet.divided],
            {key: (self._volume(key), _total(block)) for key, block in self.pieces.items() if key not in sheet.divided},
            sum(self.blocks[key].data.nbytes for key in written) + 512 * len(written),
        )

    def _written_pieces(self) -> list[str]:
        """Not another rank's, too; not empty, unless the whole is."""
        return [
            key
            for key, block in self.pieces.items()
            if not block.attrs.get("spare") and (block.data.nbytes or not _total(block))
        ]

    def _volume(self, key: str) -> int:
        block = self.pieces.get(key)
        return 0 if block is None or block.attrs.get("spare") else math.prod(block.shape)

    @property
    def whole_bytes(self) -> int:
        """Of what is not divided; on rank 0 that is written, whoever writes it."""
        return sum(self.blocks[key].data.nbytes + 512 for key in self.digests)

    def plan(self, sheet: Sheet, differing: set[str], ranks: Ranks) -> Plan:
        """What this rank writes, when `differing` are those leaves of rank 0's that some rank lacks, or has otherwise."""
        rank = ranks.rank
        common = {key: self.blocks[key].data.nbytes for key in sheet.whole if key not in differing}
        mine = share(common, rank, ranks.world)
        keys = {key: key for key in mine}
        if rank == 0:
            keys |= {key: key for key in self.digests if key in differing}
        else:
            keys |= {key: own_key(rank, key) for key, mark in self.sheet.whole.items() if sheet.whole.get(key) != mark}
        keys |= {key: own_key(rank, key) for key in self._written_pieces()}
        blocks = {key: block for key, block in self.blocks.items() if key in keys}
        return Plan(
            blocks, keys, self.digests, own_tree(self.tree, self.sheet.tree, sheet.tree), min(mine, default=None)
        )


def decided(words: Sequence[bytes], mine: Mine, require_space: Callable[[int], None]) -> bytes:
    """On rank 0, what is to be known for a plan: the keys of its leaves that some rank lacks, or has otherwise.

    Raises:
        UsageError: the ranks do not hold pieces of the same leaves.
    """
    answers = [(msgspec.msgpack.decode(word, type=Answer), ranks) for word, ranks in Counter(words).items()]
    require_tiled(mine, answers)
    require_space(sum(ranks * answer.size_bytes for answer, ranks in answers) + mine.whole_bytes)
    places = {place for answer, _ in answers for place in answer.differing}
    return msgspec.msgpack.encode([key for place, key in enumerate(mine.sheet.whole) if place in places])


def require_tiled(mine: Mine, answers: Sequence[tuple[Answer, int]]) -> None:
    """
    Raises:
        UsageError: the pieces of a leaf, all ranks' together, are not as much as the whole.
    """
    volumes = [0] * len(mine.sheet.divided)
    further: dict[str, tuple[int, int]] = {}
    for answer, ranks in answers:
        volumes = [before + ranks * volume for before, volume in zip(volumes, answer.volumes, strict=True)]
        for key, (volume, total) in answer.further.items():
            further[key] = further.get(key, (0, total))[0] + ranks * volume, total
    found = dict(zip(mine.sheet.divided, volumes, strict=True))
    wrong = [key for key, volume in found.items() if volume != _total(mine.pieces[key])]
    wrong += [key for key, (volume, total) in further.items() if volume != total]
    if wrong:
        raise UsageError(
            f"leaf {wrong[0]!r} ({len(wrong)} such) is divided among ranks, and their pieces do not make it whole: every "
            "rank must save the same model"
        )


def share(sizes: Mapping[str, int], rank: int, world: int) -> list[str]:
    """The keys, in their order, of the `rank`th of `world` parts, which are about as long as each other."""
    total, sent, found = sum(sizes.values()), 0, []
    for key in sorted(sizes):
        middle = 2 * sent + sizes[key]
        sent += sizes[key]
        if (min(world - 1, middle * world // (2 * total)) if total else 0) == rank:
            found.append(key)
    return found


def own_tree(
    tree: Any, mine: Sequence[tuple[str | None, bytes]], first: Sequence[tuple[str | None, bytes]]
) -> list[Any]:
    """What a part says of the tree: nothing where it is as rank 0's; else it, with what is as there only named."""
    if list(mine) == list(first):
        return []
    members, known = top(tree), dict(first)
    if members is None:
        return [tree]
    marks = dict(mine)
    return [{"dict": {key: {AS_RANK_0: 0} if known.get(key) == marks[key] else node for key, node in members.items()}}]


def _members(tree: Any) -> list[tuple[str | None, bytes]]:
    members = top(tree)
    if members is None:
        return [(None, _digest(format.json_bytes(tree)))]
    return [(key, _digest(format.json_bytes(node))) for key, node in members.items()]


def _mark(block: Block, digest: str = "") -> bytes:
    """Equal for leaves that are the same: a piece's place is not asked."""
    ignored = _ELSEWHERE if "of" not in block.attrs else _ELSEWHERE | (_PLACES - {"of"})
    attrs = sorted((name, value) for name, value in block.attrs.items() if name not in ignored)
    shape = () if "of" in block.attrs else tuple(block.shape)
    return _digest(format.json_bytes([block.kind, block.dtype, shape, attrs, digest]))


def _digest(data: bytes) -> bytes:
    return xxhash.xxh3_128_digest(data)


def _total(block: Block) -> int:
    return math.prod(block.attrs["of"])


def foreseen(leaves: Mapping[str, Block], wrote: Collection[str], rank: int) -> list[Shard]:
    """Files for a snapshot: those that this rank is to write if it is to write again what it `wrote`, and the rest."""
    mine = {key: block for key, block in leaves.items() if key in wrote}
    rest = {key: block for key, block in leaves.items() if key not in mine}
    return shards.layout(mine, prefix=parts.prefix(rank)) + shards.layout(rest)


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
    return Part(rank, files, named, plan.tree)


def _without_spare(leaf: Leaf) -> Leaf:
    if "spare" not in leaf.attrs:
        return leaf
    return msgspec.structs.replace(leaf, attrs={name: value for name, value in leaf.attrs.items() if name != "spare"})
