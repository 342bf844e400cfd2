"""Checkpoint: one committed, immutable directory, as readers see it. This module writes nothing."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable, Iterator, Mapping
from itertools import chain
from pathlib import Path
from typing import Any

from ..errors import Damaged, NotFound, Unreadable
from ..retention import CheckpointFacts
from ..state import codec, tree
from ..state.nodes import leaf_keys
from ..threads import Hook, nothing
from . import divided, format, html, problems, reading, source
from .format import MANIFEST, FileEntry, Head, Manifest
from .parts import CheckpointParts, check_bytes, top_members
from .problems import FileListing, Problem
from .signing import Key
from .stored import Piece, Stored, StoredLeaf, StoredPieces

NOT_EXACT_FROM = "not_exact_from"  # in a document

__all__ = ["Checkpoint", "Piece", "Problem", "StoredLeaf", "StoredPieces"]


class Checkpoint:
    """A checkpoint at `path`. Reading it needs no other file of its run, so a copy of the directory
    is enough.

    If several ranks wrote it, this is rank 0's view, with divided leaves whole. `as_rank` returns
    another rank's view.
    """

    assurance = "ok"  # the word to print if `problems` finds none: every digest is right

    def __init__(
        self, path: str | os.PathLike[str], *, rank: int | None = None, key: Key | None = None
    ) -> None:
        self.path, self._rank = Path(path), rank  # the view of this rank
        self.key = key  # the manifest must be signed by it
        self._root: Manifest | None = None
        self._manifest: Manifest | None = None
        self._head: Head | None = None
        self._parts: CheckpointParts | None = None
        self._divided: dict[str, dict[int, str]] | None = None

    def __repr__(self) -> str:
        return f"Checkpoint({str(self.path)!r})"

    def _repr_html_(self) -> str:
        return html.table(str(self), [self])

    @property
    def manifest(self) -> Manifest:
        """The manifest of the checkpoint, after a check of its own digest.

        If several ranks wrote it, it has the leaves and files of all parts, each under a key of its
        own. A rank's view has those of its own part.

        Raises:
            NotFound: the checkpoint was removed.
            Damaged: two reads, the second from the medium, returned other bytes than were written.
            Untrusted: it is not signed by the key that was given.
        """
        if self._manifest is None:
            parts = self._rank_parts()
            only = None if self._rank is None else [self._rank]
            self._manifest = self._root_manifest() if parts is None else parts.merged_manifest(only)
        return self._manifest

    @property
    def signer(self) -> str | None:
        """The key that signed the manifest, as its first line names it; None if it is not signed.
        Reads what a restore reads.
        """
        return self._root_manifest().signer

    def _root_manifest(self) -> Manifest:
        """The manifest file as it is, without the entries in the parts."""
        if self._root is None:
            self._root = source.decode_file(self.path / MANIFEST, self._decode)
        return self._root

    def _decode(self, data: bytes, where: object) -> Manifest:
        return format.decode(data, where, self.key)

    def _decode_head(self, data: bytes, where: object) -> Head:
        return format.decode_head(data, where, self.key)

    def _rank_parts(self) -> CheckpointParts | None:
        """The parts that several ranks wrote; None if one process wrote the checkpoint."""
        if self._parts is None and self._root_manifest().ranks is not None:
            self._parts = CheckpointParts(self.path, self._root_manifest())
        return self._parts

    def as_rank(self, rank: int) -> Checkpoint:
        """Return the checkpoint as that rank saved it: its own values where they differ, and rank
        0's elsewhere.

        A rank beyond those that wrote it gets rank 0's view. `check_layout` and `problems` then
        check only what this rank wrote. Other parts are read, and checked, only for the leaves that
        are read.
        """
        parts = self._rank_parts()
        if parts is None:
            return self
        view = Checkpoint(self.path, key=self.key)
        view._root, view._head, view._parts = self._root, self._head, parts
        view._rank = rank if 0 <= rank < len(parts) else 0
        return view

    def rank_views(self) -> list[Checkpoint]:
        """Return the checkpoint as each rank that wrote it saved it."""
        parts = self._rank_parts()
        return [self] if parts is None else [self.as_rank(rank) for rank in range(len(parts))]

    def signed_by(self, key: Key | None) -> Checkpoint:
        """Return this checkpoint with a required key: it cannot be read unless that key has signed
        it.
        """
        return self if key is None else Checkpoint(self.path, rank=self._rank, key=key)

    @property
    def rank(self) -> int | None:
        """The rank whose view this is: of its own part. None: of all parts."""
        return self._rank

    @property
    def world(self) -> int:
        """The number of ranks that wrote it."""
        return self.head.world

    @property
    def tree(self) -> Any:
        """The state's structure."""
        parts = self._rank_parts() if self._rank else None
        return self._root_manifest().tree if parts is None else parts.tree(self._rank or 0)

    @property
    def head(self) -> Head:
        """The manifest without its leaves. This is quick: the leaves are decoded and checked only
        by `manifest`.

        Raises:
            NotFound, Damaged: as `manifest`.
        """
        if self._head is None:
            self._head = self._root or source.decode_file(self.path / MANIFEST, self._decode_head)
        return self._head

    @property
    def name(self) -> str:
        """Its directory's name, for example `step-000000100`."""
        return str(self.head.name)

    @property
    def step(self) -> int:
        """The number of completed steps when it was saved."""
        return self.head.step

    @property
    def phase(self) -> str:
        """When it was saved: "step" after a step, "end" after an epoch's body."""
        return self.head.phase

    @property
    def metrics(self) -> dict[str, float]:
        """The metrics measured on exactly this state."""
        return format.unpack_metrics(self.head.metrics)

    @property
    def document(self) -> dict[str, Any]:
        """Who saved it, and with what: host, command, git commit, library versions,
        hyperparameters, model.
        """
        return self.head.document

    @property
    def not_exact_from(self) -> int | None:
        """The step from which on the run used other samples than an uninterrupted run; None if it
        used the same.
        """
        found = self.document.get(NOT_EXACT_FROM)
        return found if type(found) is int and found >= 0 else None

    @property
    def main_part(self) -> str | None:
        """The part of the state that holds the model's weights; None: the whole state does."""
        return "model"

    def models(self) -> list[str]:
        """Return the names of the models that a run tracked;
        of a state that was saved without a run, none.
        """
        found = self.document.get("model")
        return [*found] if isinstance(found, dict) else []

    @property
    def size_bytes(self) -> int:
        """The size of all its files in bytes, shared files and the manifest included."""
        return self.head.size_bytes

    def leaf(self, key: str) -> Stored:
        """Return a handle on one leaf; its bytes are read, and checked, on demand."""
        parts = self._rank_parts()
        if parts is not None:
            found = parts.leaf(key, self._rank or 0)
            if found is None:
                raise Damaged(
                    f"{self.path / MANIFEST}: the tree names leaf {key!r}, which is in no part"
                )
            return found
        if key in self._piece_keys():
            return divided.piece_handle(
                key, self._piece_keys()[key].values(), self.manifest.leaves, self.path
            )
        try:
            entry = self.manifest.leaves[key]
        except KeyError:
            raise Damaged(
                f"{self.path / MANIFEST}: the tree names leaf {key!r}, which is not there"
            ) from None
        return StoredLeaf(self.path, key, entry)

    def _piece_keys(self) -> dict[str, dict[int, str]]:
        """Map each leaf that one process divided to the keys of its pieces."""
        if self._divided is None:
            self._divided = divided.newest_pieces(self.manifest.leaves)
        return self._divided

    def leaves(self) -> dict[str, Stored]:
        """Return handles on all leaves of the state, by key. Leaves that several ranks hold in
        pieces are whole.
        """
        known = (
            divided.leaf_keys(self.manifest.leaves)
            if self._rank_parts() is None
            else sorted(leaf_keys(self.tree))
        )
        return {key: self.leaf(key) for key in known}

    def parts(self) -> list[str]:
        """The state's top-level keys if it is a mapping with string keys."""
        return list(top_members(self.tree) or ())

    @codec.without_garbage_collection()
    def handles(
        self, part: str | None = None, *, types: Iterable[type] = (), placeholders: bool = False
    ) -> Any:
        """Return the state, or its member `part`, with a `StoredLeaf` in the place of every leaf.

        This reads no shard.
        """
        return tree.unflatten(
            self._part_node(part), self.leaf, types=types, placeholders=placeholders
        )

    @codec.without_garbage_collection()
    def load(
        self,
        part: str | None = None,
        *,
        types: Iterable[type] = (),
        placeholders: bool = False,
        mmap: bool = False,
    ) -> Any:
        """Return the state, or its member `part`, in fresh memory. Every byte is checked.

        With `mmap`, leaves are private memory maps of the files. Bytes are read when they are used,
        and writing to a leaf changes no file. Only the layout and the headers are checked; `verify`
        checks the bytes.

        Raises:
            NotFound: it was removed, perhaps during the read.
            Damaged: a byte differs from what was committed, also after a second read from the
                medium.
            UsageError: the state holds the user's own types, and they are neither in `types` nor
                registered.
        """
        self.check_layout()
        if part is None and not mmap:
            self.check_unread()
        node = self._part_node(part)
        leaves: dict[str, Any] = {}

        def leaf(key: str) -> Any:
            if not leaves:  # only now is it certain that the tree's types are available
                leaves.update(self._read_leaves(self._leaf_keys(node, part), mmap=mmap))
            return leaves[key] if key in leaves else self.leaf(key)

        return tree.unflatten(node, leaf, types=types, placeholders=placeholders)

    def _leaf_keys(self, node: Any, part: str | None) -> Iterable[str]:
        if self._rank_parts() is not None:
            return leaf_keys(node)
        known = divided.leaf_keys(self.manifest.leaves)
        return known if part is None else leaf_keys(node) & known.keys()

    def _read_leaves(self, keys: Iterable[str], *, mmap: bool) -> dict[str, Any]:
        """Read the leaves with these `keys` together; with `mmap`, map those that can be mapped."""
        whole = {} if self._rank_parts() is not None or self._piece_keys() else self.manifest.leaves
        stored = {
            key: StoredLeaf(self.path, key, whole[key]) if key in whole else self.leaf(key)
            for key in keys
        }
        found = _map_leaves(stored.values()) if mmap else {}
        rest = [leaf for key, leaf in stored.items() if key not in found]
        return found | dict(
            zip((leaf.key for leaf in rest), codec.decode_leaves(rest), strict=True)
        )

    def _part_node(self, part: str | None) -> Any:
        if part is None:
            return self.tree
        if part not in self.parts():
            raise NotFound(
                f"{self.path}: holds no {part!r}, only {', '.join(self.parts()) or 'files'}"
            )
        return self.tree["dict"][part]

    def facts(self, *, pinned: bool = False) -> CheckpointFacts:
        """The facts that retention rules use."""
        head, at_s = self.head, format.created_s(self.head.created)
        return CheckpointFacts(
            self.name,
            head.step,
            head.phase,
            head.epoch,
            at_s,
            self.metrics,
            head.size_bytes,
            pinned,
            finite=not head.not_finite,
        )

    def check_layout(self) -> None:
        """Compare the directory with the manifest: file names, sizes, the kinds of leaves, and
        every shard's header.

        Together with the leaves' own digests this covers every byte.
        """
        manifest = self.manifest
        layout = problems.layout_problems(self.path, manifest, manifest.files)
        for problem in chain(problems.name_problems(self.path, manifest), layout):
            raise Damaged(str(problem))
        for key, leaf in manifest.leaves.items():
            codec.require_known(key, leaf.kind)

    def check_unread(self) -> None:
        """Check bytes that no leaf uses: old pieces in a file that have been replaced by newer
        ones.

        Raises:
            Damaged: they differ from what was committed.
        """
        entries = self.manifest.leaves if self._rank_parts() is None else {}
        for leaf in reading.find_damaged(divided.replaced_pieces(entries, self.path), cold=False):
            raise Damaged(
                f"{leaf.path}: "
                f"bytes {leaf.offset}..{leaf.offset + leaf.size_bytes} changed since commit"
            )

    def problems(
        self,
        *,
        cold: bool = False,
        only: Collection[str] | None = None,
        before_each: Hook = nothing,
        known: FileListing | None = None,
    ) -> Iterator[Problem]:
        """Read every byte; yield the places that differ from what was committed. With `cold`, read
        from the medium.

        `only`: names of the files to read. `before_each` is called before each piece of a shard;
        what it raises ends this. `known`: the manifest's content, which is then not read.

        Raises:
            Unreadable: this user may not read a file, so that nothing is known about it.
        """
        try:
            if known is None:
                yield from self._problems(only, before_each, cold=cold)
            else:
                yield from problems.file_problems(self.path, known, only, before_each, cold=cold)
        except PermissionError as error:
            raise Unreadable(
                f"{error.filename or self.path}: cannot be read: {error.strerror}"
            ) from error

    def _problems(
        self, only: Collection[str] | None, before_each: Hook, *, cold: bool
    ) -> Iterator[Problem]:
        seen = self
        if cold:
            source.drop_cache(self.path / MANIFEST)
            seen = Checkpoint(self.path, rank=self._rank, key=self.key)
        try:
            parts = seen._rank_parts()
        except Damaged as error:
            yield problems.whole_file_problem(self.path / MANIFEST, error)
            return
        manifest = seen._root_manifest()
        yield from problems.name_problems(self.path, manifest)
        if parts is not None:
            whole = []
            for rank in range(len(parts)) if self._rank is None else [self._rank]:
                path = parts.path_of(rank)
                try:
                    if cold:
                        source.drop_cache(path)
                    _ = parts[rank]
                    whole.append(rank)
                except Damaged as error:
                    yield problems.whole_file_problem(path, error)
            manifest = parts.merged_manifest(whole)
        yield from problems.file_problems(self.path, manifest, only, before_each, cold=cold)

    def manifest_problems(self, files: Mapping[str, FileEntry]) -> Iterator[Problem]:
        """Read the manifest from the medium, and this rank's part; check their digests, and decode
        no leaf.

        `files`: those that one process has committed.

        Raises:
            Unreadable: this user may not read them.
        """
        path = self.path / MANIFEST
        try:
            source.drop_cache(path)
            head = source.decode_file(path, self._decode_head)
            yield from problems.name_problems(self.path, head)
            if head.ranks is None and head.files != files:
                raise Damaged(f"{path}: not the manifest that was committed")
            if head.ranks is not None and self._rank is not None:
                path, rank = self.path / head.ranks[self._rank].part, self._rank
                source.drop_cache(path)
                said = head.files[head.ranks[rank].part].size_bytes
                source.decode_file(
                    path, lambda data, where: check_bytes(data, head, rank, where), said
                )
        except Damaged as error:
            yield problems.whole_file_problem(path, error)
        except PermissionError as error:
            raise Unreadable(
                f"{error.filename or self.path}: cannot be read: {error.strerror}"
            ) from error


def _map_leaves(stored: Iterable[Stored]) -> dict[str, Any]:
    """Map into memory those leaves whose bytes need no conversion; return them by key."""
    maps: dict[Path, memoryview | None] = {}
    found = {}
    for leaf in stored:
        if isinstance(leaf, StoredPieces):
            continue
        if leaf.path not in maps:
            maps[leaf.path] = source.map_file(leaf.path)
        data = maps[leaf.path]
        value = (
            None
            if data is None
            else codec.build_mapped_leaf(leaf, data[leaf.offset : leaf.offset + leaf.size_bytes])
        )
        if value is not None:
            found[leaf.key] = value
    return found
