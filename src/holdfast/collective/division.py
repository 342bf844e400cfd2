"""Division: who of several ranks writes what of a state that they save together. Pure, but for digests of the leaves.

What every rank has alike is found by digests, written once, and divided among them by bytes. What a rank has in a way of
its own it writes itself, and so its piece of a divided leaf.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import msgspec
import xxhash

from ..errors import UsageError
from ..ranks import Ranks
from ..state.codec import Block
from ..store import format
from ..store.boxes import Box, is_tiled
from ..store.lineage import digests_of
from ..store.parts import AS_RANK_0, own_key, top
from ..store.shards import Staged

SHARE_BYTES = 4 << 20  # of what all have alike; less is not worth a file of one more rank
_ELSEWHERE = {"device"}  # attributes of a leaf that may differ where the leaf is the same
_PLACES = {"of", "at", "spare"}  # attributes of a piece


class Sheet(msgspec.Struct, frozen=True, array_like=True):
    """What rank 0 tells of its state; 16 bytes for each leaf."""

    whole: dict[str, bytes]  # of what is not divided: facts and bytes
    divided: dict[str, bytes]  # of what is: facts
    tree: list[tuple[str | None, bytes]]  # its top-level members; None: it is none of a mapping


class RankDifference(msgspec.Struct, frozen=True, array_like=True):
    """In what a rank's state is not as rank 0's."""

    differing: list[int]  # places in the sheet of what is whole
    volumes: list[int]  # of its pieces, in the order of the sheet
    further: dict[str, tuple[int, int]]  # pieces of leaves that rank 0 lacks: volume, and that of the whole
    size_bytes: int  # that is the rank's to write, besides what all have alike


class Claim(msgspec.Struct, frozen=True, array_like=True):
    """What a rank answers; its first part is the same on many."""

    answer: bytes
    held: list[int]  # places in the sheet of leaves that it has as rank 0 has them, in files that it can take over
    spared_bytes: int  # of what is its own to write, and in such files


class Decision(msgspec.Struct, frozen=True, array_like=True):
    """What is to be known for a plan, besides what a rank knows of itself."""

    differing: list[str]  # keys of rank 0's leaves that some rank lacks, or has otherwise
    doubtful: list[str]  # and of those of which there are more pieces than the whole has room for
    held: dict[int, list[int]]  # places in the sheet of what a rank takes over, and nobody need write


class WritePlan(NamedTuple):
    """What one rank writes."""

    blocks: dict[str, Block]
    keys: dict[str, str]  # of its blocks: what they are called in the part
    digests: Mapping[str, str]  # of its blocks' bytes, but for pieces; they must not change until they are written
    tree: list[Any]
    firsts: list[str]  # of what all have alike and this rank has, where it begins, in the order of all of that
    spare: dict[str, int]  # its pieces that another rank has, too, and writes
    elsewhere: list[str]  # what all have alike and another rank has


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

    def names(self, rank: int) -> dict[str, str]:
        """The keys that its leaves may have in its part, and what they are called in the state."""
        own = {own_key(rank, key): key for key in self.blocks if rank or key in self.pieces}
        return own | {key: key for key in self.digests}

    def claim(self, sheet: Sheet, rank: int, linked: Collection[str]) -> Claim:
        """What this rank says to `sheet`, when it can take over files with the leaves `linked`.

        Raises:
            UsageError: a leaf is divided here and whole there, or the whole is another one.
        """
        held = [
            place
            for place, (key, mark) in enumerate(sheet.whole.items())
            if key in linked and self.sheet.whole.get(key) == mark
        ]
        begin = own_key(rank, "")
        spared = sum(self.blocks[key.removeprefix(begin)].data.nbytes for key in linked if key.startswith(begin))
        return Claim(msgspec.msgpack.encode(self.answer(sheet)), held, spared)

    def answer(self, sheet: Sheet) -> RankDifference:
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
        return RankDifference(
            differing,
            [self._volume(key) for key in sheet.divided],
            {key: (self._volume(key), _total(block)) for key, block in self.pieces.items() if key not in sheet.divided},
            sum(self.blocks[key].data.nbytes for key in written) + 512 * len(written),
        )

    def places(self, keys: Sequence[str]) -> dict[str, tuple[list[int], list[int], list[int]]]:
        """Of its pieces of these leaves: the shape of the whole, and where they lie in it."""
        found = [(key, self.pieces[key]) for key in self._written_pieces() if key in set(keys)]
        return {key: (block.attrs["of"], block.attrs["at"], list(block.shape)) for key, block in found}

    def _written_pieces(self) -> list[str]:
        """Not another rank's, too; not empty, unless the whole is."""
        return [
            key
            for key, block in self.pieces.items()
            if "spare" not in block.attrs and (block.data.nbytes or not _total(block))
        ]

    def _volume(self, key: str) -> int:
        block = self.pieces.get(key)
        return 0 if block is None or "spare" in block.attrs else math.prod(block.shape)

    def whole_bytes(self, spared: Collection[int]) -> int:
        """Of what is not divided, but for these places in the sheet; on rank 0 that is written, whoever writes it."""
        return sum(self.blocks[key].data.nbytes + 512 for place, key in enumerate(self.digests) if place not in spared)

    def plan(self, sheet: Sheet, decision: Decision, spare: set[str], ranks: Ranks) -> WritePlan:
        """What this rank writes, when all have agreed on `decision`, and its pieces of the leaves `spare` another writes."""
        rank, whole, differing = ranks.rank, list(sheet.whole), set(decision.differing)
        held = {whole[place]: holder for holder, places in decision.held.items() for place in places}
        common = sorted(key for key in whole if key not in differing)
        rest = {key: self.blocks[key].data.nbytes for key in common if key not in held}
        mine = {*share(rest, rank, ranks.world), *(key for key, holder in held.items() if holder == rank)}
        keys = {key: key for key in whole if key in mine}
        if rank == 0:
            keys |= {key: key for key in self.digests if key in differing}
        else:
            keys |= {key: own_key(rank, key) for key, mark in self.sheet.whole.items() if sheet.whole.get(key) != mark}
        keys |= {key: own_key(rank, key) for key in self._written_pieces() if key not in spare}
        blocks = {key: block for key, block in self.blocks.items() if key in keys}
        tree = own_tree(self.tree, self.sheet.tree, sheet.tree)
        writers = {key: block.attrs.get("spare", rank) for key, block in self.pieces.items() if block.data.nbytes}
        spared = {key: writer for key, writer in writers.items() if writer != rank}
        elsewhere = [key for key in common if key not in mine]
        return WritePlan(blocks, keys, self.digests, tree, begins(common, mine), spared, elsewhere)


def begins(keys: Iterable[str], mine: Collection[str]) -> list[str]:
    """Those of `mine` that follow, among `keys`, on none of these."""
    before = [False, *(key in mine for key in keys)]
    return [key for key, follows in zip(keys, before, strict=False) if key in mine and not follows]


def decided(words: Sequence[bytes], mine: Mine, require_space: Callable[[int], None]) -> bytes:
    """On rank 0, the `Decision`, of what each rank claims.

    Raises:
        UsageError: the ranks do not hold pieces of the same leaves.
    """
    claims = [msgspec.msgpack.decode(word, type=Claim) for word in words]
    alike = Counter(claim.answer for claim in claims)
    answers = [(msgspec.msgpack.decode(answer, type=RankDifference), ranks) for answer, ranks in alike.items()]
    doubtful = require_covered(mine, answers)
    differing = {place for answer, _ in answers for place in answer.differing}
    held = holders([claim.held for claim in claims], differing)
    spared = {place for places in held.values() for place in places}
    own = sum(ranks * answer.size_bytes for answer, ranks in answers) - sum(claim.spared_bytes for claim in claims)
    require_space(max(0, own) + mine.whole_bytes(spared))
    keys = [key for place, key in enumerate(mine.sheet.whole) if place in differing]
    return msgspec.msgpack.encode(Decision(keys, doubtful, held))


def holders(claimed: Sequence[Sequence[int]], differing: Collection[int]) -> dict[int, list[int]]:
    """By rank, what it goes on holding of what each claims: the first who does; what is not alike everywhere, only rank 0."""
    taken: set[int] = set()
    found = {}
    for rank, places in enumerate(claimed):
        kept = [place for place in places if place not in taken and (rank == 0 or place not in differing)]
        taken.update(kept)
        if kept:
            found[rank] = kept
    return found


def require_covered(mine: Mine, answers: Sequence[tuple[RankDifference, int]]) -> list[str]:
    """Keys of the leaves whose pieces, all ranks' together, are more than the whole: some are several ranks'.

    Raises:
        UsageError: those of a leaf are less than the whole.
    """
    volumes = [0] * len(mine.sheet.divided)
    further: dict[str, tuple[int, int]] = {}
    for answer, ranks in answers:
        volumes = [before + ranks * volume for before, volume in zip(volumes, answer.volumes, strict=True)]
        for key, (volume, total) in answer.further.items():
            further[key] = further.get(key, (0, total))[0] + ranks * volume, total
    found = {key: (volume, _total(mine.pieces[key])) for key, volume in zip(mine.sheet.divided, volumes, strict=True)}
    _require([key for key, (volume, total) in (found | further).items() if volume < total])
    return [key for key, (volume, total) in (found | further).items() if volume > total]


def spares(words: Sequence[bytes]) -> bytes:
    """On rank 0, for each rank the keys of those of its pieces that a rank before it has, too.

    Raises:
        UsageError: what is left of the pieces of a leaf does not make it whole.
    """
    kept: dict[str, tuple[tuple[int, ...], set[Box]]] = {}
    spare: list[list[str]] = []
    for word in words:
        spare.append([])
        for key, (of, at, shape) in msgspec.msgpack.decode(word, type=dict[str, tuple[Any, Any, Any]]).items():
            boxes, box = kept.setdefault(key, (tuple(of), set()))[1], Box(tuple(at), tuple(shape))
            if box in boxes:
                spare[-1].append(key)
            boxes.add(box)
    _require([key for key, (of, boxes) in kept.items() if not is_tiled(of, sorted(boxes))])
    return msgspec.msgpack.encode(spare)


def _require(wrong: Sequence[str]) -> None:
    if wrong:
        raise UsageError(
            f"leaf {wrong[0]!r} ({len(wrong)} such) is divided among ranks, and their pieces do not make it whole: every "
            "rank must save the same model"
        )


def share(sizes: Mapping[str, int], rank: int, world: int) -> list[str]:
    """What the rank writes of what all have alike: keys that follow on each other, about as many bytes as the others.

    Where there is little, few ranks write, and those far from each other: on nodes of their own.
    """
    total = sum(sizes.values())
    writers = max(1, min(world, total // SHARE_BYTES))
    sent, found = 0, []
    for key in sorted(sizes):
        middle = 2 * sent + sizes[key]
        sent += sizes[key]
        writer = min(writers - 1, middle * writers // (2 * total)) if total else 0
        if writer * world // writers == rank:
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
