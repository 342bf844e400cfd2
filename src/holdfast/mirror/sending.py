"""Sending: the bytes of a checkpoint's files, each compared with the manifest while it passes.

The same check serves both directions: to a place, and back. The last piece of a file is handed on
only when every digest of the file has held, so that no damaged file is ever complete.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

from .. import scan
from ..errors import Damaged, NotFound
from ..store import format, parts, source
from ..store.format import MANIFEST, FileEntry, LeafEntry, Manifest

PIECE_BYTES = 4 << 20  # the most that is read at once


class CheckpointContents(NamedTuple):
    """The files of a checkpoint, by its manifest, including all ranks' files."""

    raw: bytes  # manifest.json as it is
    root: Manifest
    files: Mapping[str, FileEntry]
    leaves: Mapping[str, list[LeafEntry]]  # by file

    @property
    def name(self) -> str:
        return str(self.root.name)

    @property
    def size_bytes(self) -> int:
        return sum(file.size_bytes for file in self.files.values())


def manifest_digest(manifest: bytes) -> str:
    """Return the checkpoint's identity: a digest of its manifest's bytes."""
    return format.digest(manifest)


def read_local_contents(path: Path) -> CheckpointContents:
    """Read the manifest of the committed checkpoint at `path`.

    Raises:
        NotFound: it was removed.
        Damaged: its manifest, or the part of a rank, differs from what was committed.
    """

    def read(name: str) -> bytes:
        source.drop_cache(path / name)
        return source.read_whole(path / name)

    return decode_contents(read(MANIFEST), read, path / MANIFEST)


def decode_contents(
    raw: bytes, read_part: Callable[[str], bytes], where: object
) -> CheckpointContents:
    """Decode a manifest. If several ranks wrote the checkpoint, decode their parts, too, which
    `read_part` returns.

    Raises:
        Damaged: bytes differ from what was committed.
    """
    root = format.decode(raw, where)
    files, leaves = dict(root.files), list(root.leaves.values())
    for rank, said in enumerate(root.ranks or ()):
        part = parts.decode(read_part(said.part), root, rank, f"{where}: part {said.part}")
        files.update(part.files)
        leaves += part.leaves.values()
    held: dict[str, list[LeafEntry]] = {name: [] for name in files}
    for leaf in leaves:
        held[leaf.shard].append(leaf)
    return CheckpointContents(raw, root, files, held)


def read_pieces(folder: Path, wanted: CheckpointContents, name: str) -> Iterator[bytes]:
    """Yield the bytes of one file of the checkpoint in `folder`, read from the medium, past the
    page cache.

    Raises:
        NotFound: the checkpoint was removed.
        Damaged: the file differs from what was committed. Its last piece was not yielded.
    """
    return verify_pieces(_read_file(folder, name), wanted, name, folder / name)


def _read_file(folder: Path, name: str) -> Iterator[bytes]:
    if any(scan.is_symlink(folder / each) for each in Path(name).parents if each.name):
        raise Damaged(f"{folder / name}: lies behind a link, which was not committed")
    try:
        for block in source.read_blocks(folder / name, PIECE_BYTES, cold=True):
            yield bytes(block)
    except NotFound:
        if scan.exists(folder / MANIFEST):
            raise Damaged(f"{folder / name}: the file is missing") from None
        raise


def verify_pieces(
    passing: Iterable[bytes], wanted: CheckpointContents, name: str, where: object
) -> Iterator[bytes]:
    """Yield the pieces of a file as they come.

    Raises:
        Damaged: they are not what was committed. The last piece was not yielded.
    """
    check, held = _DigestCheck(wanted.files[name], wanted.leaves[name], where), b""
    for piece in passing:
        check.add_piece(piece)
        if held:
            yield held
        held = piece
    check.verify_file()
    if held:
        yield held


class _DigestCheck:
    """Digests the bytes of one file in order, and compares each leaf's and the file's digest."""

    def __init__(self, file: FileEntry, leaves: list[LeafEntry], where: object) -> None:
        self._file, self._where = file, where
        self._kind = format.kind_of(file.digest)
        self._begun = format.hasher(self._kind)
        self._ranges = _digested_ranges(file, leaves, where)
        self._digests: list[str] = []
        self._offset = 0  # of the next byte
        self._hasher = self._begun()
        self._verify_ranges()

    def add_piece(self, piece: bytes) -> None:
        view = memoryview(piece)
        while view:
            if not self._ranges:
                raise Damaged(
                    f"{self._where}: longer than {self._file.size_bytes} bytes, as was committed"
                )
            part = view[: self._ranges[-1][0] - self._offset]
            self._hasher.update(part)
            self._offset += part.nbytes
            view = view[part.nbytes :]
            self._verify_ranges()

    def verify_file(self) -> None:
        if self._ranges:
            raise Damaged(f"{self._where}: {self._offset} bytes long, was {self._file.size_bytes}")
        if format.joined_digest(self._digests, self._kind) != self._file.digest:
            raise Damaged(f"{self._where}: changed since commit")

    def _verify_ranges(self) -> None:
        while self._ranges and self._ranges[-1][0] == self._offset:
            _, digest = self._ranges.pop()
            found = self._hasher.hexdigest()
            if digest not in ("", found):
                raise Damaged(f"{self._where}: bytes up to {self._offset} changed since commit")
            self._digests.append(found)
            self._hasher = self._begun()


def _digested_ranges(
    file: FileEntry, leaves: list[LeafEntry], where: object
) -> list[tuple[int, str]]:
    """Return where each digested range of a file ends, and its digest if the manifest has that;
    the last one first.
    """
    if not leaves:
        whole, rest = divmod(file.size_bytes, format.BLOCK_BYTES)
        ends = [format.BLOCK_BYTES * (number + 1) for number in range(whole)] + (
            [file.size_bytes] if rest else []
        )
        return [(end, "") for end in reversed(ends)]
    ordered = sorted(leaves, key=format.in_file)
    ends = [ordered[0].offset, *(leaf.offset + leaf.size_bytes for leaf in ordered)]
    if ends != [*(leaf.offset for leaf in ordered), file.size_bytes]:
        raise Damaged(f"{where}: the manifest leaves gaps between its leaves")
    return [*reversed([*zip(ends, ["", *(leaf.digest for leaf in ordered)], strict=True)])]
