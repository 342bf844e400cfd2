"""Streaming: a leaf's bytes a chunk at a time, in memory that does not grow with the leaf."""

from __future__ import annotations

import heapq
import os
from collections.abc import Iterable, Iterator
from functools import lru_cache
from typing import Any

from ..errors import Damaged
from . import format, source
from .boxes import byte_ranges
from .stored import Stored, StoredLeaf, StoredPieces

CHUNK_BYTES = 1 << 20
_AHEAD_BYTES = 64 << 10  # bytes that are read at once from one of many pieces
_BLOCKS = 32  # the most chunks of a leaf that are kept for reads in any order


def chunks(stored: Any) -> Iterator[bytearray]:
    """Yield the leaf's bytes in C order; each chunk but the last has `CHUNK_BYTES`.

    Raises:
        Damaged: they differ from what was committed; that is known once a piece was read to its
            end.
    """
    return rechunk(
        _parts_in_order(stored)
        if isinstance(stored, StoredLeaf | StoredPieces)
        else stored.chunks()
    )


def rechunk(parts: Iterable[bytes | bytearray | memoryview]) -> Iterator[bytearray]:
    """Yield the bytes of the parts; each chunk but the last has `CHUNK_BYTES`."""
    waiting = bytearray()
    for part in parts:
        waiting += part
        while len(waiting) >= CHUNK_BYTES:
            yield waiting[:CHUNK_BYTES]
            del waiting[:CHUNK_BYTES]
    if waiting:
        yield waiting


def _parts_in_order(stored: Stored) -> Iterator[memoryview]:
    if isinstance(stored, StoredLeaf):
        yield from _PieceStream(stored, CHUNK_BYTES).read_next(stored.size_bytes)
        return
    readers = [_PieceStream(piece.leaf, _AHEAD_BYTES) for piece in stored.pieces]
    places = [_part_ranges(stored, number) for number in range(len(readers))]
    for _, number, size in heapq.merge(*places):
        yield from readers[number].read_next(size)


def _part_ranges(stored: StoredPieces, number: int) -> Iterator[tuple[int, int, int]]:
    """Yield the parts of one piece that are contiguous in the whole leaf: offset, number of the
    piece, number of bytes.
    """
    for place in byte_ranges(stored.shape, stored.pieces[number].box, stored.itemsize):
        yield place.start, number, place.size


class _PieceStream:
    """Reads one piece of a leaf from its beginning to its end. Its file is open only
    during a read.
    """

    def __init__(self, leaf: StoredLeaf, ahead: int) -> None:
        self._leaf, self._ahead = leaf, ahead
        self._read = 0
        self._buffer = memoryview(b"")
        self._hasher = format.hasher(format.kind_of(leaf.digest))()

    def read_next(self, size: int) -> Iterator[memoryview]:
        """Yield the next `size` bytes."""
        while size:
            if not self._buffer:
                self._buffer = memoryview(self._next_block())
            part, self._buffer = self._buffer[:size], self._buffer[size:]
            size -= part.nbytes
            yield part

    def _next_block(self) -> bytes:
        leaf = self._leaf
        data = read_unverified(leaf, self._read, min(self._ahead, leaf.size_bytes - self._read))
        self._hasher.update(data)
        self._read += len(data)
        if self._read == leaf.size_bytes and self._hasher.hexdigest() != leaf.digest:
            end = leaf.offset + leaf.size_bytes
            raise Damaged(
                f"{leaf.path}: bytes {leaf.offset}..{end}: leaf {leaf.key!r} changed since commit"
            )
        return data


def read_unverified(leaf: StoredLeaf, start: int, size: int) -> bytes:
    """Return bytes of a leaf without comparing them with its digest.

    Raises:
        Damaged: the file ends before them.
    """
    descriptor = source.open_plain(leaf.path)
    try:
        data = os.pread(descriptor, size, leaf.offset + start)
        while len(data) < size and (
            more := os.pread(descriptor, size - len(data), leaf.offset + start + len(data))
        ):
            data += more
    finally:
        os.close(descriptor)
    if len(data) < size:
        raise Damaged(f"{leaf.path}: ends before byte {leaf.offset + start + size}")
    return data


class RandomAccess:
    """Reads bytes of a leaf in any order. A few chunks of it are kept in memory."""

    def __init__(self, leaf: StoredLeaf) -> None:
        self._leaf = leaf
        self._chunk = lru_cache(_BLOCKS)(self._load_chunk)

    def _load_chunk(self, number: int) -> bytes:
        start = number * CHUNK_BYTES
        return read_unverified(self._leaf, start, min(CHUNK_BYTES, self._leaf.size_bytes - start))

    def __call__(self, start: int, size: int) -> Iterator[bytes]:
        """Yield `size` bytes from `start` on."""
        while size:
            number, at = divmod(start, CHUNK_BYTES)
            part = self._chunk(number)[at : at + size]
            yield part
            start, size = start + len(part), size - len(part)
