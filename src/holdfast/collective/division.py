"""Division: which of several ranks writes which leaves of a state that they save together. Pure,
except for digests.

Leaves that are equal on all ranks (the common leaves) are found by digests, written once, and
divided among the ranks by bytes. A rank writes its differing leaves itself, and so its pieces of
divided leaves.
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
from ..store.lineage import digest_all
from ..store.parts import AS_RANK_0, is_cut, own_key, top_members
from ..store.shards import StagedState

SHARE_BYTES = 4 << 20  # of the common leaves; fewer bytes are not worth a file of one more rank
# attributes that may differ among ranks although the leaf is the same
_IGNORED = {"device", "at", "spare"}


class DigestSheet(msgspec.Struct, frozen=True, array_like=True):
    """Rank 0's digests of its state: 16 bytes for each leaf."""

    whole: dict[str, bytes]  # for undivided leaves: digests of facts and bytes
    divided: dict[str, bytes]  # for divided leaves: digests of facts
    # the tree's top-level members and their digests; None: the tree is no mapping
    tree: list[tuple[str | None, bytes]]


class RankDifference(msgspec.Struct, frozen=True, array_like=True):
    """How a rank's state differs from rank 0's."""

    differing: list[int]  # indexes in `Sheet.whole`
    volumes: list[int]  # item counts of its pieces, in the order of `Sheet.divided`
    # pieces of leaves that rank 0 lacks: item count of the piece, and of the whole
    further: dict[str, tuple[int, int]]
    # of models that are cut over ranks, whole leaves under keys that rank 0 lacks: digests of
    # facts and bytes
    others: dict[str, bytes] = {}


class SheetReply(msgspec.Struct, frozen=True, array_like=True):
    """A rank's reply to the sheet. Its first part is the same on many ranks."""

    difference: bytes
    # indexes in `Sheet.whole` of leaves that equal rank 0's, in files that this rank can link
    held: list[int]
    own_bytes: int  # bytes that this rank writes besides the common leaves


class LeafAssignment(msgspec.Struct, frozen=True, array_like=True):
    """Rank 0's decision which leaves differ, and which rank links which common leaf. Every rank
    derives its plan from it.
    """

    differing: list[str]  # keys of rank 0's leaves that some rank lacks or has with other content
    doubtful: list[str]  # keys of divided leaves whose pieces have more items than the whole
    # rank -> indexes in `Sheet.whole` of leaves that it links, so that no rank writes them
    held: dict[int, list[int]]
    # by rank: of its leaves under keys that rank 0 lacks, those that a lower rank writes, and which
    spared: dict[int, dict[str, int]] = {}


# Made here for the reason that `format` has.
_CLAIMS, _DIFFERENCES = msgspec.msgpack.Decoder(SheetReply), msgspec.msgpack.Decoder(RankDifference)
SHEETS, DECISIONS = msgspec.msgpack.Decoder(DigestSheet), msgspec.msgpack.Decoder(LeafAssignment)


class WritePlan(NamedTuple):
    """What one rank writes of a checkpoint."""

    blocks: dict[str, Block]
    keys: dict[str, str]  # key of each block -> its name in the part
    # of the blocks that are not pieces; their bytes must not change until they are written
    digests: Mapping[str, str]
    tree: list[Any]
    firsts: list[str]  # keys at which this rank's stretches of the common leaves begin
    spare: dict[str, int]  # its pieces that another rank has, too, and writes; key -> that rank
    elsewhere: list[str]  # common leaves that another rank writes


class RankState:
    """One rank's state, and its digests."""

    def __init__(self, staged: StagedState) -> None:
        self.tree = staged.tree
        self._cut = {name for name, node in (top_members(self.tree) or {}).items() if is_cut(node)}
        self.blocks = staged.leaves
        self.pieces = {key: block for key, block in self.blocks.items() if "of" in block.attrs}
        whole = {key: block for key, block in self.blocks.items() if key not in self.pieces}
        self.digests = dict(
            zip(
                whole,
                digest_all([block.data for block in whole.values()], staged.kind),
                strict=True,
            )
        )
        self.sheet = DigestSheet(
            {key: _comparison_digest(whole[key], found) for key, found in self.digests.items()},
            {key: _comparison_digest(block) for key, block in self.pieces.items()},
            _members(staged.tree),
        )

    def part_keys(self, rank: int) -> dict[str, str]:
        """Return the keys that this rank's leaves may have in its part, each with the key in the
        state.
        """
        own = {own_key(rank, key): key for key in self.blocks if rank or key in self.pieces}
        return own | {key: key for key in self.digests}

    def reply_to(self, sheet: DigestSheet, rank: int, linked: Collection[str]) -> SheetReply:
        """Return this rank's reply to `sheet`. It can link files with the leaves `linked`.

        Raises:
            UsageError: a leaf is divided here and whole there, or it is a piece of another whole.
        """
        mine, begin = self.sheet.whole, own_key(rank, "")
        alike = [mine.get(key) == mark for key, mark in sheet.whole.items()]
        held = [place for place, key in enumerate(sheet.whole) if alike[place] and key in linked]
        written = [
            *(key for key, mark in mine.items() if sheet.whole.get(key) != mark),
            *self._written_pieces(),
        ]
        spared = [key.removeprefix(begin) for key in linked if key.startswith(begin)]
        sizes = (sum(self.blocks[key].data.nbytes for key in keys) for keys in (written, spared))
        difference = self._difference(
            sheet, [place for place, same in enumerate(alike) if not same]
        )
        return SheetReply(
            msgspec.msgpack.encode(difference), held, next(sizes) + 512 * len(written) - next(sizes)
        )

    def _difference(self, sheet: DigestSheet, differing: list[int]) -> RankDifference:
        for key, mark in self.sheet.divided.items():
            if key in sheet.whole or sheet.divided.get(key, mark) != mark:
                raise UsageError(
                    f"leaf {key!r} is divided among ranks, "
                    "and rank 0 has another leaf under that key"
                )
        for key in sheet.divided.keys() & self.sheet.whole.keys():
            raise UsageError(
                f"leaf {key!r} is whole on this rank, and divided among others on rank 0"
            )
        return RankDifference(
            differing,
            [self._item_count(key) for key in sheet.divided],
            {
                key: (self._item_count(key), _whole_item_count(block))
                for key, block in self.pieces.items()
                if key not in sheet.divided
            },
            {
                key: mark
                for key, mark in self.sheet.whole.items()
                if key not in sheet.whole and key.partition("/")[0] in self._cut
            },
        )

    def piece_boxes(self, keys: Sequence[str]) -> dict[str, tuple[list[int], list[int], list[int]]]:
        """Return for this rank's pieces of these leaves: the whole leaf's shape, the piece's
        position in it, and the piece's shape.
        """
        found = [(key, self.pieces[key]) for key in self._written_pieces() if key in set(keys)]
        return {
            key: (block.attrs["of"], block.attrs["at"], list(block.shape)) for key, block in found
        }

    def _written_pieces(self) -> list[str]:
        """Return the keys of the pieces that this rank writes: no copies of another rank's, no
        empty piece of a non-empty leaf.
        """
        return [
            key
            for key, block in self.pieces.items()
            if "spare" not in block.attrs and (block.data.nbytes or not _whole_item_count(block))
        ]

    def _item_count(self, key: str) -> int:
        block = self.pieces.get(key)
        return 0 if block is None or "spare" in block.attrs else math.prod(block.shape)

    def undivided_bytes(self, spared: Collection[int]) -> int:
        """Return the size of all undivided leaves, except those at the indexes `spared`. On rank 0:
        some rank writes them.
        """
        return sum(
            self.blocks[key].data.nbytes + 512
            for place, key in enumerate(self.digests)
            if place not in spared
        )

    def plan(
        self, sheet: DigestSheet, decision: LeafAssignment, spare: set[str], ranks: Ranks
    ) -> WritePlan:
        """Return what this rank writes. Other ranks write its pieces of the leaves in `spare`."""
        rank, whole, differing = ranks.rank, list(sheet.whole), set(decision.differing)
        held = {
            whole[place]: holder for holder, places in decision.held.items() for place in places
        }
        common = sorted(key for key in whole if key not in differing)
        rest = {key: self.blocks[key].data.nbytes for key in common if key not in held}
        mine = {
            *share_of_rank(rest, rank, ranks.world),
            *(key for key, holder in held.items() if holder == rank),
        }
        keys = {key: key for key in whole if key in mine}
        if rank == 0:
            keys |= {key: key for key in self.digests if key in differing}
        else:
            keys |= {
                key: own_key(rank, key)
                for key, mark in self.sheet.whole.items()
                if sheet.whole.get(key) != mark
            }
        keys |= {key: own_key(rank, key) for key in self._written_pieces() if key not in spare}
        twins = decision.spared.get(rank, {})
        keys = {key: name for key, name in keys.items() if key not in twins}
        blocks = {key: block for key, block in self.blocks.items() if key in keys}
        tree = tree_of_part(self.tree, self.sheet.tree, sheet.tree)
        writers = {
            key: block.attrs.get("spare", rank)
            for key, block in self.pieces.items()
            if block.data.nbytes
        }
        spared = {key: writer for key, writer in writers.items() if writer != rank}
        elsewhere = [key for key in common if key not in mine]
        return WritePlan(
            blocks, keys, self.digests, tree, run_starts(common, mine), spared | twins, elsewhere
        )


def run_starts(keys: Iterable[str], mine: Collection[str]) -> list[str]:
    """Return those keys of `mine` whose predecessor in `keys` is not in `mine`."""
    before = [False, *(key in mine for key in keys)]
    return [key for key, follows in zip(keys, before, strict=False) if key in mine and not follows]


def assign_leaves(
    words: Sequence[bytes], mine: RankState, require_space: Callable[[int], None]
) -> bytes:
    """Compute the `LeafAssignment` on rank 0 from the reply of each rank.

    Raises:
        UsageError: the ranks do not hold pieces of the same leaves.
    """
    claims = [_CLAIMS.decode(word) for word in words]
    alike = Counter(claim.difference for claim in claims)
    answers = [(_DIFFERENCES.decode(answer), ranks) for answer, ranks in alike.items()]
    doubtful = require_covered(mine, answers)
    differing = {place for answer, _ in answers for place in answer.differing}
    held = assign_linked([claim.held for claim in claims], differing)
    spared = {place for places in held.values() for place in places}
    require_space(max(0, sum(claim.own_bytes for claim in claims)) + mine.undivided_bytes(spared))
    keys = [key for place, key in enumerate(mine.sheet.whole) if place in differing]
    twins = find_twins([claim.difference for claim in claims])
    return msgspec.msgpack.encode(LeafAssignment(keys, doubtful, held, twins))


def find_twins(answers: Sequence[bytes]) -> dict[int, dict[str, int]]:
    """Return for each rank those of its leaves, under keys that rank 0 lacks, that a lower rank has
    and writes, with that rank.
    """
    decoded = {answer: _DIFFERENCES.decode(answer).others for answer in {*answers}}
    first: dict[tuple[str, bytes], int] = {}
    found: dict[int, dict[str, int]] = {}
    for rank, answer in enumerate(answers):
        for leaf in decoded[answer].items():
            if (writer := first.setdefault(leaf, rank)) != rank:
                found.setdefault(rank, {})[leaf[0]] = writer
    return found


def assign_linked(
    claimed: Sequence[Sequence[int]], differing: Collection[int]
) -> dict[int, list[int]]:
    """Decide which leaves each rank links: the first rank that offers a link; for leaves in
    `differing` only rank 0.
    """
    taken: set[int] = set()
    found = {}
    for rank, places in enumerate(claimed):
        kept = [
            place
            for place in places
            if place not in taken and (rank == 0 or place not in differing)
        ]
        taken.update(kept)
        if kept:
            found[rank] = kept
    return found


def require_covered(mine: RankState, answers: Sequence[tuple[RankDifference, int]]) -> list[str]:
    """Return the keys of divided leaves whose pieces have more items than the whole: several ranks
    have the same piece.

    Raises:
        UsageError: the pieces of a leaf have fewer items than the whole.
    """
    held, total = (
        Counter[str](),
        {key: _whole_item_count(block) for key, block in mine.pieces.items()},
    )
    for answer, ranks in answers:
        for key, volume in zip(mine.sheet.divided, answer.volumes, strict=True):
            held[key] += ranks * volume
        for key, (volume, of) in answer.further.items():
            held[key] += ranks * volume
            total[key] = of
    _require_covered([key for key, volume in held.items() if volume < total[key]])
    return [key for key, volume in held.items() if volume > total[key]]


def find_duplicate_pieces(words: Sequence[bytes]) -> bytes:
    """Return, on rank 0, for each rank the keys of its pieces that a lower rank has, too.

    Raises:
        UsageError: the other pieces of a leaf do not cover the whole leaf.
    """
    kept: dict[str, tuple[tuple[int, ...], set[Box]]] = {}
    spare: list[list[str]] = []
    for word in words:
        spare.append([])
        for key, (of, at, shape) in msgspec.msgpack.decode(
            word, type=dict[str, tuple[Any, Any, Any]]
        ).items():
            boxes, box = kept.setdefault(key, (tuple(of), set()))[1], Box(tuple(at), tuple(shape))
            if box in boxes:
                spare[-1].append(key)
            boxes.add(box)
    _require_covered([key for key, (of, boxes) in kept.items() if not is_tiled(of, sorted(boxes))])
    return msgspec.msgpack.encode(spare)


def _require_covered(wrong: Sequence[str]) -> None:
    if wrong:
        raise UsageError(
            f"leaf {wrong[0]!r} ({len(wrong)} such) is divided among ranks, "
            "and their pieces do not make it whole: "
            "every rank must save the same model"
        )


def share_of_rank(sizes: Mapping[str, int], rank: int, world: int) -> list[str]:
    """Return the keys of common leaves that the rank writes: consecutive ones, about as many bytes
    as each other rank.

    If there are few bytes, few ranks write, far from each other: on different nodes.
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


def tree_of_part(
    tree: Any, mine: Sequence[tuple[str | None, bytes]], first: Sequence[tuple[str | None, bytes]]
) -> list[Any]:
    """Return the tree for a rank's part: none if it equals rank 0's, else the tree with marks for
    members like rank 0's.
    """
    if list(mine) == list(first):
        return []
    members, known = top_members(tree), dict(first)
    if members is None:
        return [tree]
    marks = dict(mine)
    return [
        {
            "dict": {
                key: {AS_RANK_0: 0} if known.get(key) == marks[key] else node
                for key, node in members.items()
            }
        }
    ]


def _members(tree: Any) -> list[tuple[str | None, bytes]]:
    members = top_members(tree)
    nodes: Any = [(None, tree)] if members is None else members.items()
    return [(key, _digest(format.json_bytes(node))) for key, node in nodes]


def _comparison_digest(block: Block, digest: str = "") -> bytes:
    """Return a digest that is equal for equal leaves, and for pieces of the same whole leaf."""
    attrs = sorted((name, value) for name, value in block.attrs.items() if name not in _IGNORED)
    shape = () if "of" in block.attrs else tuple(block.shape)
    return _digest(format.json_bytes([block.kind, block.dtype, shape, attrs, digest]))


def _digest(data: bytes) -> bytes:
    return xxhash.xxh3_128_digest(data)


def _whole_item_count(block: Block) -> int:
    return math.prod(block.attrs["of"])
