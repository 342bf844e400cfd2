"""Checkpoint: one committed, immutable directory, as readers see it. Nothing here writes."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Collection, Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from ..errors import Damaged, NotFound, StoreError
from ..retention import CheckpointFacts
from ..state import codec, tree
from ..state.references import leaf_keys
from . import divided, files, format, reading
from .format import MANIFEST, Head, Leaf, Manifest
from .parts import Parts, top
from .stored import Piece, Stored, StoredLeaf, StoredPieces

__all__ = ["Checkpoint", "Piece", "Problem", "StoredLeaf", "StoredPieces"]


class Checkpoint:
    """A checkpoint at `path`. Reading it needs nothing else of its run: a copy will do.

    One that several ranks wrote reads as rank 0 saved it, its divided leaves whole; `as_rank` gives another's view.
    """

    def __init__(self, path: str | os.PathLike[str], *, rank: int | None = None) -> None:
        self.path, self._rank = Path(path), rank  # as one that wrote it saw it
        self._root: Manifest | None = None
        self._manifest: Manifest | None = None
        self._head: Head | None = None
        self._parts: Parts | None = None
        self._divided: dict[str, dict[int, str]] | None = None

    def __repr__(self) -> str:
        return f"Checkpoint({str(self.path)!r})"

    @property
    def manifest(self) -> Manifest:
        """What it holds, its own digest checked: of several ranks, with the leaves and files of all parts, each under a
        key of its own; as a rank sees it, with those of its own part.

        Raises:
            NotFound: there is no checkpoint any more.
            Damaged: twice, the second time cold, the manifest was not what was written.
        """
        if self._manifest is None:
            parts = self._its_parts()
            only = None if self._rank is None else [self._rank]
            self._manifest = self._whole_root() if parts is None else parts.merged(only)
        return self._manifest

    def _whole_root(self) -> Manifest:
        """The manifest as it lies there, without what is in parts."""
        root = self._root
        if root is None:
            path = self.path / MANIFEST
            root = self._root = reading.twice(path, lambda: format.decode(reading.whole(path), path))
        return root

    def _its_parts(self) -> Parts | None:
        """None: one process wrote it."""
        if self._parts is None and self._whole_root().ranks is not None:
            self._parts = Parts(self.path, self._whole_root())
        return self._parts

    def as_rank(self, rank: int) -> Checkpoint:
        """The checkpoint as that rank saved it: what it had in its own way is its own, all else is as in rank 0's.

        A rank beyond those that wrote it gets rank 0's view. `check_layout` and `problems` then look at what this rank
        wrote, and no more; other parts are read, and checked, as far as leaves are asked for.
        """
        parts = self._its_parts()
        if parts is None:
            return self
        view = Checkpoint(self.path)
        view._root, view._head, view._parts = self._root, self._head, parts
        view._rank = rank if 0 <= rank < len(parts) else 0
        return view

    @property
    def world(self) -> int:
        """Ranks that wrote it."""
        return self.head.world

    @property
    def tree(self) -> Any:
        """The state's structure."""
        parts = self._its_parts() if self._rank else None
        return self._whole_root().tree if parts is None else parts.tree(self._rank or 0)

    @property
    def head(self) -> Head:
        """The manifest without its leaves, quickly; they are read, and looked at, when `manifest` is asked for.

        Raises:
            NotFound, Damaged: as `manifest`.
        """
        if self._head is None:
            path = self.path / MANIFEST
            self._head = self._root or reading.twice(path, lambda: format.decode_head(reading.whole(path), path))
        return self._head

    @property
    def name(self) -> str:
        """Its directory's name, as in `step-000000100`."""
        return str(self.head.name)

    @property
    def step(self) -> int:
        """Steps completed when it was saved."""
        return self.head.step

    @property
    def phase(self) -> str:
        """Where it was saved: "step" after a step, "end" after an epoch's body."""
        return self.head.phase

    @property
    def metrics(self) -> dict[str, float]:
        """What was measured on exactly this state."""
        return format.unpack_metrics(self.head.metrics)

    @property
    def document(self) -> dict[str, Any]:
        """Who made it, with what: host, command, git commit, library versions, hyperparameters, model."""
        return self.head.document

    @property
    def size_bytes(self) -> int:
        """Bytes of all its files but the manifest, shared ones included."""
        return self.head.size_bytes

    def leaf(self, key: str) -> Stored:
        """A handle on one leaf; its bytes are read, and checked, when asked for."""
        parts = self._its_parts()
        if parts is not None:
            found = parts.leaf(key, self._rank or 0)
            if found is None:
                raise Damaged(f"{self.path / MANIFEST}: the tree names leaf {key!r}, which is in no part")
            return found
        if key in self._pieces():
            return divided.stored(key, self._pieces()[key].values(), self.manifest.leaves, self.path)
        try:
            entry = self.manifest.leaves[key]
        except KeyError:
            raise Damaged(f"{self.path / MANIFEST}: the tree names leaf {key!r}, which is not there") from None
        return StoredLeaf(self.path, key, entry)

    def _pieces(self) -> dict[str, dict[int, str]]:
        """Keys of the pieces of each leaf that one process has divided."""
        if self._divided is None:
            self._divided = divided.current(self.manifest.leaves)
        return self._divided

    def leaves(self) -> dict[str, Stored]:
        """Handles on all leaves of the state, by their keys; those that several ranks hold in pieces are whole."""
        known = divided.leaves(self.manifest.leaves) if self._its_parts() is None else sorted(leaf_keys(self.tree))
        return {key: self.leaf(key) for key in known}

    def parts(self) -> list[str]:
        """The state's top-level keys, when it is a mapping with string keys."""
        return list(top(self.tree) or ())

    @codec.uncollected()
    def handles(self, part: str | None = None, *, types: Iterable[type] = (), placeholders: bool = False) -> Any:
        """The state, or what lies under its top-level key `part`, with a `StoredLeaf` in every leaf's place.

        Nothing of the shards is read.
        """
        return tree.unflatten(self._node(part), self.leaf, types=types, placeholders=placeholders)

    @codec.uncollected()
    def load(
        self,
        part: str | None = None,
        *,
        types: Iterable[type] = (),
        placeholders: bool = False,
        mmap: bool = False,
    ) -> Any:
        """The state, or what lies under its top-level key `part`, in fresh memory, every byte checked on the way.

        With `mmap`, leaves lie over private maps of the files: nothing is read before it is looked at, and what is
        written to them changes no file. Only the layout and the headers are checked then; the bytes, `verify` checks.

        Raises:
            NotFound: it was removed, perhaps while it was read.
            Damaged: a byte differs from what was committed, also when read again from the medium.
            UsageError: the state holds the user's own types and they are not among `types` or registered ones.
        """
        self.check_layout()
        if part is None and not mmap:
            self.check_unread()
        node = self._node(part)
        leaves: dict[str, Any] = {}

        def leaf(key: str) -> Any:
            if not leaves:  # now, when the tree's types are known to be at hand
                leaves.update(self._leaves(self._keys(node, part), mmap=mmap))
            return leaves[key] if key in leaves else self.leaf(key)

        return tree.unflatten(node, leaf, types=types, placeholders=placeholders)

    def _keys(self, node: Any, part: str | None) -> Iterable[str]:
        if self._its_parts() is not None:
            return leaf_keys(node)
        known = divided.leaves(self.manifest.leaves)
        return known if part is None else leaf_keys(node) & known.keys()

    def _leaves(self, keys: Iterable[str], *, mmap: bool) -> dict[str, Any]:
        """The leaves under `keys`, read all in one go, or mapped as far as that is possible."""
        stored = {key: self.leaf(key) for key in keys}
        found = _mapped(stored.values()) if mmap else {}
        rest = [leaf for key, leaf in stored.items() if key not in found]
        return found | dict(zip((leaf.key for leaf in rest), codec.decode_leaves(rest), strict=True))

    def _node(self, part: str | None) -> Any:
        if part is None:
            return self.tree
        if part not in self.parts():
            raise NotFound(f"{self.path}: holds no {part!r}, only {', '.join(self.parts()) or 'files'}")
        return self.tree["dict"][part]

    def facts(self, *, pinned: bool = False) -> CheckpointFacts:
        """What retention goes by."""
        head, at_s = self.head, format.seconds(self.head.created)
        return CheckpointFacts(
            self.name, head.step, head.phase, head.epoch, at_s, self.metrics, head.size_bytes, pinned
        )

    def check_layout(self) -> None:
        """Compare what the directory holds with the manifest: names and sizes, and every shard's header.

        Together with the leaves' own digests this covers every byte.
        """
        for problem in self._layout_problems(self.manifest.files):
            raise Damaged(str(problem))

    def check_unread(self) -> None:
        """Read what files hold of pieces that were written again since: no leaf is made of it.

        Raises:
            Damaged: it differs from what was committed.
        """
        entries = self.manifest.leaves if self._its_parts() is None else {}
        for leaf in reading.damaged(divided.older(entries, self.path), cold=False):
            raise Damaged(f"{leaf.path}: bytes {leaf.offset}..{leaf.offset + leaf.size_bytes} changed since commit")

    def problems(
        self,
        *,
        cold: bool = False,
        only: Collection[str] | None = None,
        before_each: Callable[[], None] = lambda: None,
    ) -> Iterator[Problem]:
        """Read every byte; tell which differ from what was committed. With `cold`, from the medium and not the cache.

        `only`: of the files with these names. What `before_each` piece of a shard raises ends it.

        Raises:
            StoreError: this user may not read it, so that nothing can be told.
        """
        try:
            yield from self._problems(only, before_each, cold=cold)
        except PermissionError as error:
            raise StoreError(f"{error.filename}: cannot be read: {error.strerror}") from error

    def _problems(
        self, only: Collection[str] | None, before_each: Callable[[], None], *, cold: bool
    ) -> Iterator[Problem]:
        try:
            if cold:
                reading.forget(self.path / MANIFEST)
                self._root = self._manifest = self._head = self._parts = self._divided = None
            parts = self._its_parts()
        except Damaged as error:
            yield _of_whole(self.path / MANIFEST, error)
            return
        broken = list(self._broken_parts(parts, cold=cold)) if parts is not None else []
        yield from broken
        try:
            yield from self._problems_of_files(only, before_each, cold=cold)
        finally:
            if broken:
                self._manifest = None  # it was that of the parts that are whole

    def _broken_parts(self, parts: Parts, *, cold: bool) -> Iterator[Problem]:
        """Parts that cannot be read; the manifest is that of the others until somebody asks anew."""
        whole = []
        for rank in range(len(parts)) if self._rank is None else [self._rank]:
            path = parts.path_of(rank)
            try:
                if cold:
                    reading.forget(path)
                _ = parts[rank]
                whole.append(rank)
            except Damaged as error:
                yield _of_whole(path, error)
        self._manifest = parts.merged(whole)

    def _problems_of_files(
        self, only: Collection[str] | None, before_each: Callable[[], None], *, cold: bool
    ) -> Iterator[Problem]:
        names = [name for name in self.manifest.files if only is None or name in only]
        for name in names if cold else ():
            reading.forget(self.path / name)
        yield from self._layout_problems(names, cold=cold)
        whole = {name for name in names if self._size(name) == self.manifest.files[name].size_bytes}
        entries = sorted(self.manifest.leaves.items(), key=lambda item: (item[1].shard, item[1].offset))
        leaves = [StoredLeaf(self.path, key, entry) for key, entry in entries if entry.shard in whole]
        for leaf in reading.damaged(leaves, cold=cold, before_each=before_each):
            end = leaf.offset + leaf.size_bytes
            yield Problem(leaf.path, leaf.offset, end, f"leaf {leaf.key!r} changed since commit")

    def _layout_problems(self, names: Iterable[str], *, cold: bool = False) -> Iterator[Problem]:
        if format.parse_name(self.path.name) not in (None, self.manifest.name):
            yield Problem(self.path, 0, 0, f"the directory's name is not its checkpoint's, which is {self.name}")
        leaves: dict[str, list[Leaf]] = {name: [] for name in self.manifest.files}
        for leaf in self.manifest.leaves.values():
            leaves[leaf.shard].append(leaf)
        for name in names:
            path, size, file = self.path / name, self._size(name), self.manifest.files[name]
            if size is None and not (self.path / MANIFEST).exists():
                raise NotFound(f"{self.path}: no checkpoint is there any more")
            if size != file.size_bytes:
                had = "missing, or not a plain file" if size is None else f"{size} bytes long"
                start = min(size or 0, file.size_bytes)
                yield Problem(path, start, max(size or 0, file.size_bytes), f"{had}, was {file.size_bytes}")
            elif leaves[name]:
                yield from self._header_problems(path, file, sorted(leaves[name], key=lambda leaf: leaf.order))
            elif not files.sound(path, file, cold=cold):
                yield Problem(path, 0, size, "changed since commit")

    def _header_problems(self, path: Path, file: format.File, leaves: list[Leaf]) -> Iterator[Problem]:
        """The header is right iff its digest and the leaves' recorded ones give the file's."""
        ends = [leaves[0].offset, *(leaf.offset + leaf.size_bytes for leaf in leaves)]
        starts = [*(leaf.offset for leaf in leaves), file.size_bytes]
        if ends != starts:
            yield Problem(path, 0, file.size_bytes, "the manifest leaves gaps between its leaves")
            return

        def sound() -> bool:
            head = format.digest(_start(path, leaves[0].offset))
            return format.joined_digest([head, *(leaf.digest for leaf in leaves)]) == file.digest

        if not reading.twice(path, sound, bool):
            yield Problem(path, 0, leaves[0].offset, "the header changed since commit")

    def _size(self, name: str) -> int | None:
        """How long the plain file of that name is; None when there is none."""
        if any((self.path / folder).is_symlink() for folder in Path(name).parents if folder.name):
            return None  # a link to a folder may lead out of the checkpoint
        try:
            facts = os.lstat(self.path / name)
        except (FileNotFoundError, NotADirectoryError):
            return None
        return facts.st_size if stat.S_ISREG(facts.st_mode) else None


class Problem(NamedTuple):
    """Bytes `start` to `end` of `path` are not what was committed."""

    path: Path
    start: int
    end: int
    what: str

    def __str__(self) -> str:
        return f"{self.path}: bytes {self.start}..{self.end}: {self.what}"


def _of_whole(path: Path, error: Damaged) -> Problem:
    """What is wrong with a file that says what others are."""
    try:
        size = os.lstat(path).st_size
    except FileNotFoundError:
        size = 0
    return Problem(path, 0, size, str(error).partition(": ")[2])


def _mapped(stored: Iterable[Stored]) -> dict[str, Any]:
    """Those that can lie over their file's bytes as these are."""
    maps: dict[Path, memoryview | None] = {}
    found = {}
    for leaf in stored:
        if isinstance(leaf, StoredPieces):
            continue
        if leaf.path not in maps:
            maps[leaf.path] = reading.mapped(leaf.path)
        data = maps[leaf.path]
        value = None if data is None else codec.mapped_leaf(leaf, data[leaf.offset : leaf.offset + leaf.size_bytes])
        if value is not None:
            found[leaf.key] = value
    return found


def _start(path: Path, size: int) -> bytes:
    with open(reading.open_plain(path), "rb") as file:
        return file.read(size)
