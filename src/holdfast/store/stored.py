"""Stored leaves: handles on leaves in shards, in one piece or several. Their bytes are read and
checked on demand.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

from ..errors import Damaged
from ..pages import Data, copy_over
from ..state.codec import ITEMSIZE
from . import reading
from .boxes import Box, byte_ranges, is_tiled
from .format import LeafEntry


class _LeafHandle:
    """The methods that handles of whole and of divided leaves share."""

    __slots__ = ()

    def read(self: Any) -> bytearray:
        """Return the bytes of the whole leaf, in fresh memory.

        Raises:
            Damaged: they differ from what was committed, or its pieces do not cover it exactly.
        """
        data = bytearray(self.size_bytes)
        self.read_into(memoryview(data))
        return data

    def read_into(self: Any, target: memoryview) -> None:
        """Fill `target`, writable memory of `size_bytes` bytes.
        Each piece is read whole and checked.
        """
        self.read_all([(self, target)])

    @staticmethod
    def read_all(wanted: Sequence[tuple[Stored, Data]]) -> None:
        """Read many leaves at once, each into its target."""
        straight: list[tuple[StoredLeaf, Data]] = []
        scattered: list[tuple[StoredPieces, Data]] = []
        for stored, data in wanted:
            if isinstance(stored, StoredLeaf):
                straight.append((stored, data))
            elif (places := _contiguous_pieces(stored)) is not None:
                straight += [
                    (leaf, data[start : start + leaf.size_bytes]) for leaf, start in places
                ]
            else:
                scattered.append((stored, data))
        reading.read_leaves(straight)
        for stored, data in scattered:
            _copy_pieces(stored, data)


class StoredLeaf(_LeafHandle):
    """One leaf on disk. Every read is checked against its digest;
    on a difference it is read again from the medium.
    """

    __slots__ = ("attrs", "digest", "dtype", "key", "kind", "offset", "path", "shape", "size_bytes")

    def __init__(self, folder: Path, key: str, entry: LeafEntry) -> None:
        self.path, self.key, self.offset = _shard_path(folder, entry.shard), key, entry.offset
        self.kind, self.dtype, self.shape, self.attrs = (
            entry.kind,
            entry.dtype,
            entry.shape,
            entry.attrs,
        )
        self.size_bytes, self.digest = entry.size_bytes, entry.digest


@lru_cache
def _shard_path(folder: Path, name: str) -> Path:
    return folder / name  # return one object for the many leaves of a shard


class Piece(NamedTuple):
    """A rectangular part of a leaf, starting at item `at`, as one rank wrote it."""

    at: tuple[int, ...]
    leaf: StoredLeaf

    @property
    def box(self) -> Box:
        return Box(self.at, tuple(self.leaf.shape))


class StoredPieces(_LeafHandle):
    """A leaf that several ranks hold, and wrote, in pieces. It is read like a leaf that was never
    divided.

    `shape` is the whole leaf's. `own` is the piece of the rank as which the checkpoint is read, if
    that rank wrote one. The other pieces are looked up by `pieces`, on demand.
    """

    __slots__ = ("_find", "_pieces", "attrs", "dtype", "key", "kind", "own", "shape")

    def __init__(
        self, key: str, facts: LeafEntry, own: Piece | None, find: Callable[[], Sequence[Piece]]
    ) -> None:
        self.key, self.kind, self.dtype, self.own = key, facts.kind, facts.dtype, own
        self.shape: tuple[int, ...] = tuple(facts.attrs["of"])
        self.attrs: Mapping[str, Any] = {
            name: value for name, value in facts.attrs.items() if name not in ("of", "at")
        }
        self._find, self._pieces = find, tuple[Piece, ...]()

    @property
    def pieces(self) -> Sequence[Piece]:
        """All pieces: every item of the leaf is in exactly one.

        Raises:
            Damaged: the pieces overlap or leave a gap.
        """
        if not self._pieces:
            found = tuple(self._find())
            alike = {
                (piece.leaf.kind, piece.leaf.dtype, tuple(piece.leaf.attrs["of"]))
                for piece in found
            }
            item = ITEMSIZE.get(self.dtype, 0)
            fit = all(piece.leaf.size_bytes == item * piece.box.volume for piece in found)
            if alike != {(self.kind, self.dtype, self.shape)} or not fit or not item:
                raise Damaged(f"leaf {self.key!r}: its pieces are not of one leaf")
            if not is_tiled(self.shape, [piece.box for piece in found]):
                raise Damaged(f"leaf {self.key!r}: its pieces overlap, or leave holes")
            self._pieces = found
        return self._pieces

    @property
    def size_bytes(self) -> int:
        """The size of the whole leaf."""
        return sum(piece.leaf.size_bytes for piece in self.pieces)

    @property
    def itemsize(self) -> int:
        return ITEMSIZE[self.dtype]


Stored = StoredLeaf | StoredPieces


def files_of(stored: Any) -> set[str]:
    """Return the names of the files that have its bytes."""
    leaves = leaves_of(stored)
    return {leaf.path.name for leaf in leaves} if leaves else {stored.path.name}


def leaves_of(stored: Any) -> list[StoredLeaf]:
    """Return its pieces; of a leaf in one piece, the leaf.
    Another program's leaf has none with a digest.
    """
    if isinstance(stored, StoredPieces):
        return [piece.leaf for piece in stored.pieces]
    return [stored] if isinstance(stored, StoredLeaf) else []


def _contiguous_pieces(stored: StoredPieces) -> list[tuple[StoredLeaf, int]] | None:
    """Return the pieces with their offsets in the whole leaf if each is contiguous there; else
    None.
    """
    places = []
    for piece in stored.pieces:
        if piece.leaf.size_bytes == 0:
            continue
        found = byte_ranges(stored.shape, piece.box, stored.itemsize)
        first = next(found)
        if first.size != piece.leaf.size_bytes:
            return None
        places.append((piece.leaf, first.start))
    return places


def _copy_pieces(stored: StoredPieces, data: Data) -> None:
    """Copy the leaf into `data` piece by piece. This needs memory for one piece, and for the whole
    leaf if the target is distant (not host memory).
    """
    target = data if isinstance(data, memoryview) else memoryview(bytearray(stored.size_bytes))
    for piece in stored.pieces:
        source = memoryview(piece.leaf.read())
        for start, offset, size in byte_ranges(stored.shape, piece.box, stored.itemsize):
            target[start : start + size] = source[offset : offset + size]
    if target is not data:
        copy_over(data, target)


def is_piece(entry: LeafEntry) -> bool:
    """Whether the entry is one of several pieces of a leaf."""
    return "of" in entry.attrs


def check_piece(entry: LeafEntry, where: object) -> None:
    """Raise Damaged unless a piece has a place in its leaf and lies inside it."""
    of, at, shape = entry.attrs.get("of"), entry.attrs.get("at"), entry.shape
    plain = all(
        isinstance(each, list) and all(type(n) is int and n >= 0 for n in each) for each in (of, at)
    )
    if (
        not plain
        or not len(of or ()) == len(at or ()) == len(shape)
        or math.prod(of or ()) >= 2**62
    ):
        raise Damaged(f"{where}: a piece says that it lies at {at!r} of {of!r}")
    if any(
        start + extent > most for start, extent, most in zip(at or (), shape, of or (), strict=True)
    ):
        raise Damaged(f"{where}: a piece of {list(shape)} at {at!r} is not inside {of!r}")
