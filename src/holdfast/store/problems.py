"""Problems: the bytes of a checkpoint's files that differ from what was committed."""

from __future__ import annotations

import os
import stat
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple, Protocol

from .. import scan
from ..errors import Damaged, NotFound
from ..threads import Hook
from . import files, format, reading, source
from .format import MANIFEST, FileEntry, Head, LeafEntry
from .stored import StoredLeaf


class Problem(NamedTuple):
    """Bytes `start` to `end` of `path` differ from what was committed."""

    path: Path
    start: int
    end: int
    what: str

    def __str__(self) -> str:
        return f"{self.path}: bytes {self.start}..{self.end}: {self.what}"


def whole_file_problem(path: Path, error: Damaged) -> Problem:
    """Return the problem of a whole file, such as a damaged manifest."""
    try:
        size = os.lstat(path).st_size
    except FileNotFoundError:
        size = 0
    return Problem(path, 0, size, str(error).partition(": ")[2])


class FileListing(Protocol):
    """Files of a checkpoint and the leaves in them: a manifest, or a part of its content."""

    @property
    def files(self) -> Mapping[str, FileEntry]: ...
    @property
    def leaves(self) -> Mapping[str, LeafEntry]: ...


def name_problems(folder: Path, head: Head) -> Iterator[Problem]:
    """Yield a problem if the directory's name contradicts the manifest."""
    if format.parse_name(folder.name) not in (None, head.name):
        yield Problem(
            folder, 0, 0, f"the directory's name is not its checkpoint's, which is {head.name}"
        )


def file_problems(
    folder: Path,
    listed: FileListing,
    only: Collection[str] | None,
    before_each: Hook,
    *,
    cold: bool,
) -> Iterator[Problem]:
    """Read every byte of the files in `folder`, with `only` of the files with these names; yield
    the problems.
    """
    names = [name for name in listed.files if only is None or name in only]
    for name in names if cold else ():
        source.drop_cache(folder / name)
    yield from layout_problems(folder, listed, names, cold=cold)
    whole = {name for name in names if _file_size(folder, name) == listed.files[name].size_bytes}
    entries = sorted(
        ((key, entry) for key, entry in listed.leaves.items() if entry.shard in whole),
        key=lambda item: (item[1].shard, item[1].offset),
    )
    leaves = [StoredLeaf(folder, key, entry) for key, entry in entries]
    for leaf in reading.find_damaged(leaves, cold=cold, before_each=before_each):
        yield Problem(
            leaf.path,
            leaf.offset,
            leaf.offset + leaf.size_bytes,
            f"leaf {leaf.key!r} changed since commit",
        )


def layout_problems(
    folder: Path, listed: FileListing, names: Collection[str], *, cold: bool = False
) -> Iterator[Problem]:
    """Compare the sizes and headers of these files with the manifest; read files that are not
    shards whole. Yield the problems.
    """
    leaves: dict[str, list[LeafEntry]] = {name: [] for name in names}
    for leaf in listed.leaves.values():
        if leaf.shard in leaves:
            leaves[leaf.shard].append(leaf)
    for name in names:
        path, size, file = folder / name, _file_size(folder, name), listed.files[name]
        if size is None and not scan.exists(folder / MANIFEST):
            raise NotFound(f"{folder}: no checkpoint is there any more")
        if size != file.size_bytes:
            had = "missing, or not a plain file" if size is None else f"{size} bytes long"
            start = min(size or 0, file.size_bytes)
            yield Problem(
                path, start, max(size or 0, file.size_bytes), f"{had}, was {file.size_bytes}"
            )
        elif leaves[name]:
            yield from _header_problems(path, file, sorted(leaves[name], key=format.in_file))
        elif not files.is_unchanged(path, file, cold=cold):
            yield Problem(path, 0, size, "changed since commit")


def _header_problems(path: Path, file: FileEntry, leaves: list[LeafEntry]) -> Iterator[Problem]:
    """Yield a problem unless the header's digest and the leaves' recorded digests give the file's
    digest.
    """
    begin = leaves[0].offset
    ends = [begin, *(leaf.offset + leaf.size_bytes for leaf in leaves)]
    if ends != [*(leaf.offset for leaf in leaves), file.size_bytes]:
        yield Problem(path, 0, file.size_bytes, "the manifest leaves gaps between its leaves")
        return

    kind = format.kind_of(file.digest)

    def sound() -> bool:
        with source.name_file_in_errors(path), open(source.open_plain(path), "rb") as opened:
            head = format.digest(opened.read(begin), kind)
        return format.joined_digest([head, *(leaf.digest for leaf in leaves)], kind) == file.digest

    if not source.retry_from_medium(path, sound, bool):
        yield Problem(path, 0, begin, "the header changed since commit")


def _file_size(folder: Path, name: str) -> int | None:
    """Return the size of the plain file with that name; None if there is none."""
    if any(scan.is_symlink(folder / each) for each in Path(name).parents if each.name):
        return None  # a link to a directory may lead out of the checkpoint
    try:
        facts = os.lstat(folder / name)
    except (FileNotFoundError, NotADirectoryError):
        return None
    return facts.st_size if stat.S_ISREG(facts.st_mode) else None
