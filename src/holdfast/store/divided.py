"""Dividing big leaves: a leaf that changes only in part is saved in pieces, so that unchanged
pieces keep their files.

A leaf is divided once a save finds that most of its bytes did not change. From then on each piece
is digested before a save. Changed pieces go into a new file; the other files are linked. A linked
file may also hold old versions of pieces that were written again later. They stay in the manifest,
because a digest covers every byte of the file.
"""

from __future__ import annotations

import math
import re
import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from ..pages import Data, sample_bytes
from ..rules import Whole
from ..state.codec import ITEMSIZE, Block
from .boxes import Box, byte_ranges
from .format import MANIFEST, LeafEntry, shard_stem
from .lineage import Lineage, LinkedShard, digest_all, has_same_description
from .shards import SHARD_BYTES, Shard, header
from .stored import Piece, StoredLeaf, StoredPieces, check_piece

LEAST_BYTES = 64 << 20  # the smallest leaf that is divided
PIECE_BYTES = 64 << 10  # the smallest piece; pieces are about a thousandth of a leaf
MOST_PIECES = 1024  # approximate limit for one leaf
MOST_LEAVES = 8  # the most leaves that are divided
MOST_FILES = 48  # for all divided leaves; from half of that on, each save merges a few files
_PATIENCE = 256  # the most saves to wait before another try to divide a leaf
# at most this share of a leaf is rewritten in one save to reduce the number of files
_REWRITTEN = 0.0075
_SPOTS, _SPOT_BYTES = 64, 32

_KEY = re.compile(r"@(\d{1,18})\.(\d{1,18})/(.*)", re.DOTALL)


class PieceKey(NamedTuple):
    """A parsed key of a piece: the write that it comes from, its index, and its leaf."""

    number: int
    piece: int
    leaf: str

    def __str__(self) -> str:
        return f"@{self.number}.{self.piece}/{self.leaf}"


def parse_key(key: str) -> PieceKey | None:
    found = _KEY.fullmatch(key) if key.startswith("@") else None
    return PieceKey(int(found[1]), int(found[2]), found[3]) if found else None


def newest_pieces(leaves: Iterable[str]) -> dict[str, dict[int, str]]:
    """Map each divided leaf to the keys of its pieces, by index. If a piece was written again, only
    the newest counts.
    """
    found: dict[str, dict[int, PieceKey]] = {}
    for place in filter(None, map(parse_key, [key for key in leaves if key[:1] == "@"])):
        pieces = found.setdefault(place.leaf, {})
        if place.piece not in pieces or pieces[place.piece].number < place.number:
            pieces[place.piece] = place
    return {
        leaf: {index: str(place) for index, place in pieces.items()}
        for leaf, pieces in found.items()
    }


def leaf_keys(entries: Iterable[str]) -> dict[str, None]:
    """Keys of the leaves in a manifest; a divided leaf has the one key that the tree uses."""
    keys = [*entries]
    return dict.fromkeys(
        [*(key for key in keys if key[:1] != "@" or parse_key(key) is None), *newest_pieces(keys)]
    )


def replaced_pieces(entries: Mapping[str, LeafEntry], folder: Path) -> list[StoredLeaf]:
    """Return old versions of pieces that were written again later, in the files of the directory
    `folder`.
    """
    keys = [key for key in entries if key[:1] == "@" and parse_key(key) is not None]
    held = {key for pieces in newest_pieces(keys).values() for key in pieces.values()}
    return [StoredLeaf(folder, key, entries[key]) for key in keys if key not in held]


def nonfinite_leaves(entries: Mapping[str, LeafEntry]) -> list[str]:
    """Return the keys of one process's leaves in which a number is not finite. Old versions of
    pieces do not count.
    """
    found = [key for key, leaf in entries.items() if leaf.finite is False]
    pieces = newest_pieces(entries) if any(key[:1] == "@" for key in found) else {}
    names = {key: leaf for leaf, keys in pieces.items() for key in keys.values()}
    return list(
        dict.fromkeys(
            names.get(key, key) for key in found if key in names or parse_key(key) is None
        )
    )


def large_leaves(leaves: Mapping[str, Block]) -> list[str]:
    """Keys of the leaves of at least LEAST_BYTES (64 MiB), which a save may divide into pieces."""
    return [key for key, block in leaves.items() if block.data.nbytes >= LEAST_BYTES]


def piece_grid(shape: Sequence[int], itemsize: int) -> list[Box]:
    """Return the pieces of a leaf in memory order, each contiguous; none if the leaf cannot be
    divided in this way.
    """
    target = max(PIECE_BYTES, -(-math.prod(shape) * itemsize // MOST_PIECES))
    axis = 0
    while axis < len(shape) and itemsize * math.prod(shape[axis + 1 :]) > target:
        axis += 1
    if axis == len(shape) or math.prod(shape[:axis]) > MOST_PIECES:
        return []
    rows = max(1, target // (itemsize * math.prod(shape[axis + 1 :])))
    boxes = []
    for outer in range(math.prod(shape[:axis])):
        lead: list[int] = []
        for extent in reversed(shape[:axis]):
            outer, at = divmod(outer, extent)  # noqa: PLW2901  the digits of a number
            lead.insert(0, at)
        for start in range(0, shape[axis], rows):
            tail = tuple(shape[axis + 1 :])
            extents = (*(1 for _ in lead), min(rows, shape[axis] - start), *tail)
            boxes.append(Box((*lead, start, *(0 for _ in tail)), extents))
    return boxes


def split_block(block: Block) -> list[Block]:
    """Return views of the leaf's pieces in the same memory; none if the leaf is not divided."""
    itemsize = ITEMSIZE.get(block.dtype)
    if (
        not isinstance(block.data, memoryview)
        or block.data.nbytes < LEAST_BYTES
        or not itemsize
        or "of" in block.attrs
    ):
        return []
    found = []
    for box in piece_grid(block.shape, itemsize):
        (stretch,) = byte_ranges(block.shape, box, itemsize)
        attrs = {**block.attrs, "of": list(block.shape), "at": list(box.at)}
        data = block.data[stretch.start : stretch.start + stretch.size]
        found.append(msgspec.structs.replace(block, shape=box.shape, data=data, attrs=attrs))
    return found


def piece_handle(
    key: str, pieces: Iterable[str], entries: Mapping[str, LeafEntry], folder: Path
) -> StoredPieces:
    """Return a handle on a divided leaf in the directory `folder`.

    Raises:
        Damaged: a piece has no place in the leaf.
    """
    found = []
    for name in pieces:
        check_piece(entries[name], folder / MANIFEST)
        place = tuple(entries[name].attrs["at"])
        found.append(Piece(place, StoredLeaf(folder, name, entries[name])))
    return StoredPieces(key, entries[found[0].leaf.key], None, lambda: found)


class Division(NamedTuple):
    """How one leaf of a save is divided."""

    kept: dict[str, Block]  # unchanged pieces by key; their files are linked
    fresh: dict[str, Block]  # pieces to write, by key
    shards: list[Shard]
    links: list[LinkedShard]


class _DivisionPause(NamedTuple):
    """How many saves a leaf stays whole before the next try to divide it; each pause is twice as
    long.
    """

    saves: int
    all_of_them: int

    @classmethod
    def longer_than(cls, before: _DivisionPause | None) -> _DivisionPause:
        count = min(_PATIENCE, 2 * before.all_of_them) if before is not None else 4
        return cls(count, count)


class LeafDivider:
    """Decides which leaves of a run are divided, and which pieces a save writes. After a restart
    it has no history.
    """

    def __init__(self) -> None:
        # samples of a few bytes from each big leaf that was written whole
        self._spots: dict[str, bytes] = {}
        # leaves that changed too much for dividing to be useful
        self._dense: dict[str, _DivisionPause] = {}

    def divide(
        self,
        leaves: Mapping[str, Block],
        lineage: Lineage,
        whole: Whole,
        taken: Collection[str] = (),
    ) -> dict[str, Division]:
        """Decide which of `leaves` are divided because that saves writing. No new file gets a name
        in `taken`.
        """
        known = newest_pieces(lineage.leaves)
        partly = [
            key
            for key, block in leaves.items()
            if self._is_worth_dividing(key, block, known, lineage)
        ]
        partly.sort(key=lambda key: (key not in known, -leaves[key].data.nbytes))
        parted = {key: found for key in partly[:MOST_LEAVES] if (found := split_block(leaves[key]))}
        number = max(
            (place.number for place in filter(None, map(parse_key, lineage.leaves))), default=0
        )
        divisions = {}
        for key, parts in parted.items():
            number += 1
            while any(f"-pieces-{number}-" in name for name in taken):
                number += 1
            first, files = PieceKey(number, 0, key), MOST_FILES // len(parted)
            division = _plan_division(first, parts, known.get(key, {}), lineage, whole, files)
            if division is None:
                self._dense[key] = _DivisionPause.longer_than(self._dense.get(key))
            else:
                divisions[key] = division
        return divisions

    def _is_worth_dividing(
        self, key: str, block: Block, known: Mapping[str, Any], lineage: Lineage
    ) -> bool:
        """Whether the leaf is divided already,
        or most of it is unchanged since it was last written whole.
        """
        if key in known:
            return True
        if key in self._dense and self._dense[key].saves > 0:
            self._dense[key] = self._dense[key]._replace(saves=self._dense[key].saves - 1)
            return False
        old, leaf = self._spots.get(key), lineage.leaves.get(key)
        if (
            old is None
            or leaf is None
            or (leaf.size_bytes, leaf.shape, leaf.dtype)
            != (block.data.nbytes, tuple(block.shape), block.dtype)
        ):
            return False
        new = _sample_bytes(block.data)
        same = sum(
            old[at : at + _SPOT_BYTES] == new[at : at + _SPOT_BYTES]
            for at in range(0, len(new), _SPOT_BYTES)
        )
        return 2 * same >= _SPOTS

    def note_written(self, leaves: Mapping[str, Block], written: Iterable[str]) -> None:
        """Keep samples of the big leaves that a save has written whole."""
        whole = [key for key in large_leaves(leaves) if parse_key(key) is None]
        self._spots |= {
            key: _sample_bytes(leaves[key].data) for key in {*whole}.intersection(written)
        }


def _sample_bytes(data: Data) -> bytes:
    step = data.nbytes // _SPOTS
    return b"".join(bytes(data[at * step : at * step + _SPOT_BYTES]) for at in range(_SPOTS))


def _plan_division(
    first: PieceKey,
    parts: Sequence[Block],
    known: Mapping[int, str],
    lineage: Lineage,
    whole: Whole,
    most_files: int,
) -> Division | None:
    """Return which pieces of one leaf are written and linked; None if so much changed that writing
    it whole is better.
    """
    fits = len(known) == len(parts) and all(
        has_same_description(parts[index], lineage.leaves[key]) for index, key in known.items()
    )
    same = _unchanged_pieces(parts, known, lineage) if fits else set()
    size = sum(part.data.nbytes for part in parts)
    if fits and 2 * sum(parts[index].data.nbytes for index in same) < size:
        return None
    links = lineage.links_named(
        (lineage.leaves[known[index]].shard for index in sorted(same)), whole, time.time()
    )
    # the files hold mostly old versions that are never read
    if sum(link.file.size_bytes for link in links) > 3 * size:
        links = []
    kept = {index for link in links for index in same if known[index] in link.leaves}
    for index in _pieces_to_rewrite(
        [[i for i in kept if known[i] in link.leaves] for link in links], parts, size, most_files
    ):
        kept.discard(index)
    links = [link for link in links if any(known[index] in link.leaves for index in kept)]
    fresh = {
        str(first._replace(piece=index)): part
        for index, part in enumerate(parts)
        if index not in kept
    }
    return Division(
        {known[index]: parts[index] for index in sorted(kept)},
        fresh,
        list(_piece_shards(first, fresh, size)),
        links,
    )


def _unchanged_pieces(
    parts: Sequence[Block], known: Mapping[int, str], lineage: Lineage
) -> set[int]:
    """Return the indexes of pieces that are the same as in the last checkpoint."""
    samples = lineage.samples
    asked = [
        i
        for i, key in known.items()
        if key not in samples or samples[key] == sample_bytes(parts[i].data)
    ]
    found = digest_all([parts[index].data for index in asked], lineage.kind)
    return {
        index
        for index, digest in zip(asked, found, strict=True)
        if digest == lineage.leaves[known[index]].digest
    }


def _pieces_to_rewrite(
    held: Sequence[Sequence[int]], parts: Sequence[Block], size: int, most_files: int
) -> list[int]:
    """Return indexes of unchanged pieces to write again, so that files can go: at most a share of
    the leaf in each save.
    """
    sizes = sorted(
        (sum(parts[index].data.nbytes for index in indices), list(indices)) for indices in held
    )
    count, budget, found = len(held) + 1, size * _REWRITTEN, list[int]()
    for live, indices in sizes:
        if count <= most_files // 2:
            break
        if count > most_files:
            budget = max(budget, live)
        for index in indices:
            if budget >= parts[index].data.nbytes:
                budget -= parts[index].data.nbytes
                live -= parts[index].data.nbytes  # noqa: PLW2901
                found.append(index)
        if live:
            break
        count -= 1
    return found


def _piece_shards(first: PieceKey, fresh: Mapping[str, Block], size: int) -> Iterable[Shard]:
    """Return the files for the pieces to write: one file, unless there are many bytes."""
    most = max(SHARD_BYTES, size // 16)
    packs: list[list[str]] = []
    room = 0
    for key, part in fresh.items():
        if part.data.nbytes > room:
            packs.append([])
            room = most
        packs[-1].append(key)
        room -= part.data.nbytes
    for index, keys in enumerate(packs, 1):
        names = [f"{first.leaf}@{','.join(map(str, fresh[key].attrs['at']))}" for key in keys]
        yield Shard(
            f"{shard_stem(first.leaf)}-pieces-{first.number}-{index}.safetensors",
            keys,
            header(keys, names, fresh),
        )
