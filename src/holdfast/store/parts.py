"""Parts: each part lists what one rank wrote of a checkpoint. This module finds which rank has
which leaf.

Common leaves, which are equal on all ranks, have their own key in the part of the rank that wrote
them. So have rank 0's own leaves. Another rank's own leaves, and all pieces of divided leaves, have
the key `@<rank>/<key>`.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec

from ..errors import Damaged
from . import format, source
from .format import FileEntry, Head, LeafEntry, Manifest
from .stored import Piece, Stored, StoredLeaf, StoredPieces, check_piece, is_piece

AS_RANK_0 = "rank"  # tag of a top-level member in another rank's tree that equals rank 0's

CUT = ".parts"  # key in a top-level member: it is a model that is cut over ranks


class Part(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What one rank wrote, and how its tree differs from rank 0's."""

    rank: int
    files: dict[str, FileEntry]
    leaves: dict[str, LeafEntry]
    tree: list[Any] = []  # empty, or one tree
    # leaves that another rank has, too: key -> the rank that wrote it
    spare: dict[str, int] = {}


_PART = msgspec.json.Decoder(Part)  # made here for the reason that `format` has


def shard_prefix(rank: int) -> str:
    """Return the prefix of the names of a rank's shards."""
    return format.part_file_name(rank).removesuffix(".json") + "-"


def own_key(rank: int, key: str) -> str:
    """Return the key of a rank's own leaf; no key of a state begins like this."""
    return f"@{rank}/{key}"


def nonfinite_leaves(part: Part) -> list[str]:
    """Keys in the state of the leaves that the rank wrote in which a number is not finite."""
    mine = own_key(part.rank, "")
    return [key.removeprefix(mine) for key, leaf in part.leaves.items() if leaf.finite is False]


def encode(part: Part) -> bytes:
    text = b"{\n" + format.field_lines(msgspec.structs.asdict(part)) + b"\n}\n"
    format.require_small_tree(text)
    return text


def file_entry(data: bytes, kind: str = format.XXH3) -> FileEntry:
    """Return the manifest's entry for a part's file."""
    starts = range(0, len(data), format.BLOCK_BYTES)
    pieces = (format.digest(data[start : start + format.BLOCK_BYTES], kind) for start in starts)
    return FileEntry(len(data), format.joined_digest(pieces, kind))


def decode(data: bytes, root: Manifest, rank: int, where: object) -> Part:
    """Decode a part, which may be damaged, foreign or hostile.

    Raises:
        Damaged: it is not the part that the manifest names, or it contradicts itself.
    """
    said = check_bytes(data, root, rank, where)
    try:
        part = _PART.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise Damaged(f"{where}: {error}") from error
    _check_part(part, said, rank, root.kind, where)
    return part


def check_bytes(data: bytes, root: Head, rank: int, where: object) -> format.PartEntry:
    """Raise Damaged unless `data` is the part of `rank` that the manifest names;
    return its entry there.
    """
    said = (root.ranks or [])[rank]
    if file_entry(data, root.kind) != root.files[said.part]:
        raise Damaged(f"{where}: bytes 0..{len(data)} changed since commit")
    return said


def _check_part(part: Part, said: format.PartEntry, rank: int, kind: str, where: object) -> None:
    format.check_files(part.files, where, kind)
    format.check_leaves(part.leaves, part.files, where, kind)
    begin, mine = shard_prefix(rank), own_key(rank, "")
    names = all(name.startswith(begin) and "/" not in name for name in part.files)
    keys = all(key.startswith(mine) or not key.startswith("@") for key in part.leaves)
    if part.rank != rank or len(part.tree) > 1 or not names or not keys:
        raise Damaged(
            f"{where}: it is not the part of rank {rank}, or speaks of what is not that rank's"
        )
    if sum(file.size_bytes for file in part.files.values()) != said.size_bytes:
        raise Damaged(f"{where}: its shards are not as long as the manifest says")
    for key, leaf in part.leaves.items():
        if is_piece(leaf):
            if not key.startswith(mine):
                raise Damaged(f"{where}: leaf {key!r} is a piece, and has the key of a whole one")
            check_piece(leaf, where)


class CheckpointParts:
    """The parts of the checkpoint at `path`; each is read on demand."""

    def __init__(self, path: Path, root: Manifest) -> None:
        self.path, self.root = path, root
        self._read: dict[int, Part] = {}
        self._entries = root.ranks or []
        firsts = sorted(
            (key, rank) for rank, said in enumerate(self._entries) for key in said.firsts
        )
        self._firsts = [key for key, _ in firsts]
        self._writers = [rank for _, rank in firsts]

    def __len__(self) -> int:
        return len(self._entries)

    def __getitem__(self, rank: int) -> Part:
        """Return the part that a rank wrote.

        Raises:
            NotFound: the checkpoint was removed.
            Damaged: two reads, the second from the medium, returned other bytes than were written.
        """
        found = self._read.get(rank)
        if found is None:
            most = min(self.root.files[self._entries[rank].part].size_bytes, format.MOST_BYTES)
            found = source.decode_file(
                self.path_of(rank), lambda data, path: decode(data, self.root, rank, path), most
            )
            self._read[rank] = found
        return found

    def __iter__(self) -> Iterator[Part]:
        return (self[rank] for rank in range(len(self)))

    def path_of(self, rank: int) -> Path:
        return self.path / self._entries[rank].part

    def merged_manifest(self, ranks: Iterable[int] | None = None) -> Manifest:
        """Return the manifest with the files and leaves of all parts,
        or of the parts of these ranks.
        """
        chosen = list(self) if ranks is None else [self[rank] for rank in ranks]
        files, leaves = dict[str, FileEntry](), dict[str, LeafEntry]()
        for part in chosen:
            files[self._entries[part.rank].part] = self.root.files[self._entries[part.rank].part]
            files.update(part.files)
            leaves.update(part.leaves)
        if len(leaves) != sum(len(part.leaves) for part in chosen):
            raise Damaged(f"{self.path}: two ranks say that they wrote the same leaf")
        return msgspec.structs.replace(self.root, files=files, leaves=leaves)

    def tree(self, rank: int) -> Any:
        """Return the state's structure as that rank saved it.

        Raises:
            Damaged: it refers to a member that rank 0's tree lacks.
        """
        own, first = self[rank].tree if rank else [], self.root.tree
        if not own:
            return first
        members = top_members(own[0])
        if members is None:
            return own[0]
        known = top_members(first) or {}
        try:
            return {
                "dict": {
                    name: known[name] if refers_to_rank_0(node) else node
                    for name, node in members.items()
                }
            }
        except KeyError as error:
            raise Damaged(
                f"{self.path}: the tree of rank {rank} refers to {error}, which rank 0's lacks"
            ) from None

    def leaf(self, key: str, rank: int) -> Stored | None:
        """Return a handle on that leaf as the rank saved it;
        None if there is none. This reads few parts.
        """
        own = self[rank].leaves.get(own_key(rank, key))
        if own is not None:
            return (
                self._pieces(key, own, rank) if is_piece(own) else StoredLeaf(self.path, key, own)
            )
        writer = self[rank].spare.get(key, -1)
        twin = self[writer].leaves.get(own_key(writer, key)) if 0 <= writer < len(self) else None
        if twin is not None:
            return (
                self._pieces(key, twin, writer)
                if is_piece(twin)
                else StoredLeaf(self.path, key, twin)
            )
        plain = self[0].leaves.get(key)
        if plain is None and (place := bisect_right(self._firsts, key)):
            plain = self[self._writers[place - 1]].leaves.get(key)
        if plain is not None:
            return StoredLeaf(self.path, key, plain)
        for other in range(len(self)):  # the part of a rank whose piece is empty may lack the leaf
            found = self[other].leaves.get(own_key(other, key))
            if found is not None and is_piece(found):
                return self._pieces(key, found, None)
        return None

    def _pieces(self, key: str, facts: LeafEntry, rank: int | None) -> StoredPieces:
        def find() -> list[Piece]:
            held = (
                (other, self[other].leaves.get(own_key(other, key))) for other in range(len(self))
            )
            return [
                self._piece(key, other, found)
                for other, found in held
                if found is not None and is_piece(found)
            ]

        return StoredPieces(
            key, facts, None if rank is None else self._piece(key, rank, facts), find
        )

    def _piece(self, key: str, rank: int, found: LeafEntry) -> Piece:
        return Piece(tuple(found.attrs["at"]), StoredLeaf(self.path, own_key(rank, key), found))


def top_members(tree: Any) -> Mapping[str, Any] | None:
    """Return the members of a tree that is a mapping with string keys; None for another tree."""
    body = tree.get("dict") if isinstance(tree, dict) else None
    return body if isinstance(body, dict) else None


def is_cut(node: Any) -> bool:
    """Return whether a top-level member is a model that is cut over ranks."""
    return CUT in (top_members(node) or {})


def refers_to_rank_0(node: Any) -> bool:
    return isinstance(node, dict) and AS_RANK_0 in node
