"""Tar files as WebDataset writes them: the files of one key, one behind the other, are a sample."""

from __future__ import annotations

import re
import tarfile
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any, NamedTuple

import msgspec
import numpy as np

from ...errors import UsageError
from .files import DataFile, Files, Paths, file_index, progress
from .orders import Ids
from .source import Source

_NAME = re.compile(r"((?:.*/)?[^./][^./]*)\.([^/]*)", re.DOTALL)


class _Members(NamedTuple):
    """The members of a tar file that belong to samples."""

    firsts: Ids  # the first member of each sample; one more
    begins: Ids  # where the bytes of each member are
    ends: Ids
    names: Ids  # where the name of each begins in `text`; one more
    text: bytes

    def name(self, member: int) -> str:
        name = self.text[self.names[member] : self.names[member + 1]]
        return name.decode("utf-8", "surrogateescape")


class Tar(Source):
    """Samples as dicts: `__key__`, and the bytes of each file by the rest of its name.

    The key is the name up to the first dot behind the last slash. Files without a dot, and those
    whose name begins with one, are no samples. A key that comes again later is another sample. The
    headers of each file are read once, and the index is kept for later runs.
    """

    def __init__(self, paths: Paths) -> None:
        files = self._files = Files(paths)
        self._indexes = [
            _unpacked(file_index("tar", file, partial(_build, file))) for file in files.all
        ]
        self.shards = files.shards([len(index.firsts) - 1 for index in self._indexes])

    def read_rows(self, shard: int, rows: Sequence[int]) -> list[Any]:
        index = self._indexes[shard]
        bounds = [(int(index.firsts[row]), int(index.firsts[row + 1])) for row in rows]
        members = np.concatenate([np.arange(*each) for each in bounds])
        raw = iter(self._files.read(shard, index.begins[members], index.ends[members]))
        return [self._sample(index, range(*each), raw) for each in bounds]

    @staticmethod
    def _sample(index: _Members, members: range, raw: Iterator[bytes]) -> dict[str, Any]:
        named = [_split(index.name(member)) for member in members]
        return {"__key__": named[0][0], **{kind: next(raw) for _, kind in named}}


def _split(name: str) -> tuple[str, str]:
    """Return the key and the rest of a name; both empty where it belongs to no sample."""
    found = _NAME.fullmatch(name)
    return (found[1], found[2].lower()) if found else ("", "")


def _build(file: DataFile) -> bytes:
    samples: list[set[str]] = []
    firsts, begins, ends = list[int](), list[int](), list[int]()
    names, key = list[bytes](), ""
    with progress(f"the headers of {file.name}", file.size) as done:
        for member in _members(file):
            this, kind = _split(member.name)
            if not this:
                continue
            if this != key:
                samples.append(set())
                firsts.append(len(begins))
            if kind in samples[-1]:
                raise UsageError(f"{file.path}: {member.name} is there twice")
            samples[-1].add(kind)
            key = this
            begins.append(member.offset_data)
            ends.append(member.offset_data + member.size)
            names.append(member.name.encode("utf-8", "surrogateescape"))
            done(member.offset_data)
    firsts.append(len(begins))
    numbers = (firsts, begins, ends, np.cumsum([0, *map(len, names)]))
    stored = [np.array(each, np.int64).tobytes() for each in numbers]
    return msgspec.msgpack.encode([*stored, b"".join(names)])


def _members(file: DataFile) -> Iterator[tarfile.TarInfo]:
    """Yield the members that are plain files.

    Raises:
        UsageError: the file is no tar file, or damaged.
    """
    if not file.size:
        return
    try:
        with tarfile.open(file.path, "r:") as archive:
            for member in iter(archive.next, None):
                vars(archive)["members"] = []  # else all of them stay in memory
                if member.issparse():
                    raise UsageError(f"{file.path}: {member.name} is stored as a sparse file")
                if member.isreg():
                    yield member
            _require_end(file, archive.offset)
    except tarfile.TarError as error:
        raise UsageError(f"{file.path}: {error}") from error


def _require_end(file: DataFile, offset: int) -> None:
    """Check that the headers end with a block of zeros, or with the file: `tarfile` ends silently
    where one is damaged.
    """
    with open(file.path, "rb") as raw:
        raw.seek(offset)
        if raw.read(tarfile.BLOCKSIZE).strip(b"\0") or offset > file.size:
            raise UsageError(f"{file.path}: byte {offset}: the header is damaged")


def _unpacked(stored: bytes) -> _Members:
    *numbers, text = msgspec.msgpack.decode(stored)
    firsts, begins, ends, names = (np.frombuffer(each, np.int64) for each in numbers)
    return _Members(firsts, begins, ends, names, text)
