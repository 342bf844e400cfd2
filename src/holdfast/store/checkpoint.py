"""Checkpoint: one committed, immutable directory, as readers see it. Nothing here writes."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from .. import disk
from ..errors import Damaged, NotFound, StoreError
from ..retention import Facts
from ..state import codec, tree
from . import format
from .format import MANIFEST, Leaf, Manifest

READ_BYTES = 16 << 20


class Checkpoint:
    """A checkpoint at `path`. Reading it needs nothing else of its run: a copy will do."""

    def __init__(self, path: Path) -> None:
        self.path = Path(path)
        self._manifest: Manifest | None = None

    def __repr__(self) -> str:
        return f"Checkpoint({str(self.path)!r})"

    @property
    def manifest(self) -> Manifest:
        """What it holds; its own digest checked.

        Raises:
            NotFound: there is no checkpoint any more.
            Damaged: twice, the second time cold, the manifest was not what was written.
        """
        manifest, path = self._manifest, self.path / MANIFEST
        if manifest is None:
            manifest = self._manifest = _twice(path, lambda: format.decode(_whole(path), path))
        return manifest

    @property
    def name(self) -> str:
        return str(self.manifest.name)

    @property
    def step(self) -> int:
        return self.manifest.step

    @property
    def phase(self) -> str:
        return self.manifest.phase

    @property
    def metrics(self) -> dict[str, float]:
        """What was measured on exactly this state."""
        return format.unpack_metrics(self.manifest.metrics)

    @property
    def document(self) -> dict[str, Any]:
        """Who made it, with what: host, command, git commit, library versions, hyperparameters, model."""
        return self.manifest.document

    @property
    def size_bytes(self) -> int:
        return self.manifest.size_bytes

    def leaf(self, key: str) -> StoredLeaf:
        """A handle on one leaf; its bytes are read, and checked, when asked for."""
        try:
            return StoredLeaf(self.path, key, self.manifest.leaves[key])
        except KeyError:
            raise Damaged(f"{self.path / MANIFEST}: the tree names leaf {key!r}, which is not there") from None

    def parts(self) -> list[str]:
        """The state's top-level keys, when it is a mapping with string keys."""
        node = self.manifest.tree
        body = node.get("dict") if isinstance(node, dict) else None
        return list(body) if isinstance(body, dict) else []

    def handles(self, part: str | None = None, *, types: Iterable[type] = (), placeholders: bool = False) -> Any:
        """The state, or what lies under its top-level key `part`, with a `StoredLeaf` in every leaf's place.

        Nothing of the shards is read.
        """
        return tree.unflatten(self._node(part), self.leaf, types=types, placeholders=placeholders)

    def load(self, part: str | None = None, *, types: Iterable[type] = (), placeholders: bool = False) -> Any:
        """The state, or what lies under its top-level key `part`, in fresh memory, every byte checked on the way.

        Raises:
            NotFound: it was removed, perhaps while it was read.
            Damaged: a byte differs from what was committed, also when read again from the medium.
            UsageError: the state holds the user's own types and they are not among `types` or registered ones.
        """
        self.check_layout()

        def read(key: str) -> Any:
            return codec.decode_leaf(self.leaf(key))

        return tree.unflatten(self._node(part), read, types=types, placeholders=placeholders)

    def _node(self, part: str | None) -> Any:
        if part is None:
            return self.manifest.tree
        if part not in self.parts():
            raise NotFound(f"{self.path}: holds no {part!r}, only {', '.join(self.parts()) or 'files'}")
        return self.manifest.tree["dict"][part]

    def facts(self, *, pinned: bool = False) -> Facts:
        """What retention goes by."""
        m = self.manifest
        return Facts(self.name, m.step, m.phase, m.epoch, format.seconds(m.created), self.metrics, m.size_bytes, pinned)

    def check_layout(self) -> None:
        """Compare what the directory holds with the manifest: names and sizes, and every shard's header.

        Together with the leaves' own digests this covers every byte.
        """
        for problem in self._layout_problems():
            raise Damaged(str(problem))

    def problems(self, *, cold: bool = False) -> Iterator[Problem]:
        """Read every byte; tell which differ from what was committed. With `cold`, from the medium and not the cache.

        Raises:
            StoreError: this user may not read it, so that nothing can be told.
        """
        try:
            yield from self._problems(cold=cold)
        except PermissionError as error:
            raise StoreError(f"{error.filename}: cannot be read: {error.strerror}") from error

    def _problems(self, *, cold: bool) -> Iterator[Problem]:
        try:
            if cold:
                _forget(self.path / MANIFEST)
                self._manifest = None
            for name in self.manifest.files:
                if cold:
                    _forget(self.path / name)
        except Damaged as error:
            size = os.lstat(self.path / MANIFEST).st_size
            yield Problem(self.path / MANIFEST, 0, size, str(error).partition(": ")[2])
            return
        yield from self._layout_problems()
        for key, leaf in sorted(self.manifest.leaves.items(), key=lambda item: (item[1].shard, item[1].offset)):
            handle = self.leaf(key)
            if self._size(leaf.shard) == self.manifest.files[leaf.shard].size_bytes and not handle.sound():
                end = leaf.offset + leaf.size_bytes
                yield Problem(self.path / leaf.shard, leaf.offset, end, f"leaf {key!r} changed since commit")

    def _layout_problems(self) -> Iterator[Problem]:
        if format.parse_name(self.path.name) not in (None, self.manifest.name):
            yield Problem(self.path, 0, 0, f"the directory's name is not its checkpoint's, which is {self.name}")
        leaves: dict[str, list[Leaf]] = {name: [] for name in self.manifest.files}
        for leaf in self.manifest.leaves.values():
            leaves[leaf.shard].append(leaf)
        for name, file in self.manifest.files.items():
            path, size = self.path / name, self._size(name)
            if size is None and not (self.path / MANIFEST).exists():
                raise NotFound(f"{self.path}: no checkpoint is there any more")
            if size != file.size_bytes:
                had = "missing, or not a plain file" if size is None else f"{size} bytes long"
                start = min(size or 0, file.size_bytes)
                yield Problem(path, start, max(size or 0, file.size_bytes), f"{had}, was {file.size_bytes}")
            elif leaves[name]:
                yield from self._header_problems(path, file, sorted(leaves[name], key=lambda leaf: leaf.offset))
            elif not _is_file(path, file):
                yield Problem(path, 0, size, "changed since commit")

    def _header_problems(self, path: Path, file: format.File, leaves: list[Leaf]) -> Iterator[Problem]:
        """The header is right iff its digest and the leaves' recorded ones give the file's."""
        ends = [leaves[0].offset, *(leaf.offset + leaf.size_bytes for leaf in leaves)]
        starts = [*(leaf.offset for leaf in leaves), file.size_bytes]
        if ends != starts:
            yield Problem(path, 0, file.size_bytes, "the manifest leaves gaps between its leaves")
            return

        def sound() -> bool:
            head = format.digest(_part(path, 0, leaves[0].offset))
            return format.joined_digest([head, *(leaf.digest for leaf in leaves)]) == file.digest

        if not _twice(path, sound, bool):
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


def _is_file(path: Path, file: format.File) -> bool:
    return bool(_twice(path, lambda: _digest_blocks(path) == file.digest, bool))


class Problem(NamedTuple):
    """Bytes `start` to `end` of `path` are not what was committed."""

    path: Path
    start: int
    end: int
    what: str

    def __str__(self) -> str:
        return f"{self.path}: bytes {self.start}..{self.end}: {self.what}"


class StoredLeaf:
    """One leaf on the disk. Every read is checked against its digest, and once more cold before it counts as damage."""

    def __init__(self, directory: Path, key: str, entry: Leaf) -> None:
        self.key, self._entry = key, entry
        self._path = directory / entry.shard
        self.kind, self.dtype, self.shape, self.attrs = entry.kind, entry.dtype, entry.shape, entry.attrs
        self.size_bytes, self.digest = entry.size_bytes, entry.digest

    def read(self) -> bytearray:
        """Its bytes, in fresh memory.

        Raises:
            Damaged: they differ from what was committed.
        """
        data = bytearray(self.size_bytes)
        self.read_into(memoryview(data))
        return data

    def read_into(self, target: memoryview) -> None:
        """Fill `target`, writable memory of `size_bytes` bytes, straight from the file."""

        def fill() -> bool:
            _fill(self._path, self._entry.offset, target)
            return format.digest(target) == self.digest

        if not _twice(self._path, fill, bool):
            end = self._entry.offset + self.size_bytes
            raise Damaged(f"{self._path}: bytes {self._entry.offset}..{end}: leaf {self.key!r} changed since commit")

    def sound(self) -> bool:
        """Whether its bytes are what was committed."""
        try:
            self.read()
        except Damaged:
            return False
        return True


def _twice(path: Path, look: Callable[[], Any], accept: Callable[[Any], bool] = lambda _: True) -> Any:
    """What `look` finds; if that is damage, what it finds on the medium instead of in the page cache."""
    try:
        found = look()
        if accept(found):
            return found
    except Damaged:
        pass
    except FileNotFoundError as error:
        raise _absent(path) from error
    _forget(path)
    return look()


def _absent(path: Path) -> Exception:
    if path.name == MANIFEST or not (path.parent / MANIFEST).exists():
        return NotFound(f"{path.parent}: no checkpoint is there (any more)")
    return Damaged(f"{path}: the file is missing")


def _forget(path: Path) -> None:
    try:
        disk.forget_cached(path)
    except (FileNotFoundError, disk.NotPlain):
        return


def _open(path: Path) -> int:
    try:
        return disk.open_plain(path)
    except disk.NotPlain as error:
        raise Damaged(f"{path}: not a plain file, as was committed") from error


def _whole(path: Path) -> bytes:
    with open(_open(path), "rb") as file:
        return file.read()


def _part(path: Path, offset: int, size: int) -> bytearray:
    data = bytearray(size)
    _fill(path, offset, memoryview(data))
    return data


def _fill(path: Path, offset: int, target: memoryview) -> None:
    descriptor = _open(path)
    try:
        done = 0
        while done < len(target):
            got = os.preadv(descriptor, [target[done : done + READ_BYTES]], offset + done)
            if got == 0:
                raise Damaged(f"{path}: ends at byte {offset + done}, {len(target) - done} before its time")
            done += got
    finally:
        os.close(descriptor)


def blocks(path: Path) -> Iterator[bytes]:
    """The pieces of a file that is no shard."""
    with open(_open(path), "rb") as file:
        while block := file.read(format.BLOCK_BYTES):
            yield block


def _digest_blocks(path: Path) -> str:
    return format.joined_digest(format.digest(block) for block in blocks(path))


def digest_file(path: Path) -> format.File:
    """The manifest's entry for a file that is no shard."""
    return format.File(path.stat().st_size, _digest_blocks(path))
