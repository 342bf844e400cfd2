"""Data files: found by their paths, and read at any place."""

from __future__ import annotations

import csv
import os
import time
from abc import abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import numpy as np

from ... import disk, scan, terminal
from ...errors import UsageError
from .cache import kept
from .orders import Ids, RecentValues
from .packed import is_compressed, unpacked
from .source import DamagedSample, Source, SourceShard

Paths = str | os.PathLike[str] | Sequence[str | os.PathLike[str]]

_OPEN = 64  # files at a time, of all sources
_GAP = 1 << 16  # bytes between two samples that are still read with one call
_ONE_READ = 1 << 24  # a call reads samples that begin in such a stretch of the file
_KEPT_FROM = 1 << 20  # a smaller file is read as fast as its index
_SILENT_S = 2.0


class DataFile(NamedTuple):
    """A file as it was when it was found."""

    path: Path
    size: int
    mtime_ns: int

    @property
    def name(self) -> str:
        """The name of the shard: without the directory, which may be another one after a move."""
        return os.fsencode(self.path.name).decode(errors="replace")


class Files:
    """Data files. The last few that a process has read stay open."""

    def __init__(self, paths: Paths) -> None:
        self.all = [_look_inside(path) for path in find(paths)]

    def shards(self, lengths: Sequence[int]) -> list[SourceShard]:
        """Return each file as a shard of so many samples."""
        return [
            SourceShard(file.name, samples, file.size)
            for file, samples in zip(self.all, lengths, strict=True)
        ]

    def read(self, number: int, begins: Ids, ends: Ids) -> list[bytes]:
        """Return these parts of a file; those that lie close together are read with one call.

        Raises:
            DamagedSample: the disk fails.
            UsageError: the file has changed.
        """
        found = [b""] * len(begins)
        firsts, lasts = begins.tolist(), ends.tolist()
        group: list[int] = []  # neighbours, which are read with one call
        first = stop = 0
        for at in sorted(range(len(firsts)), key=firsts.__getitem__):
            begin = firsts[at]
            if group and (begin > stop + _GAP or begin // _ONE_READ > first // _ONE_READ):
                self._read_group(number, group, firsts, lasts, found)
                group = []
            if not group:
                first = stop = begin
            group.append(at)
            stop = max(stop, lasts[at])
        if group:
            self._read_group(number, group, firsts, lasts, found)
        return found

    def _read_group(
        self, number: int, group: list[int], begins: list[int], ends: list[int], into: list[bytes]
    ) -> None:
        first = begins[group[0]]
        data = self._read_one(number, first, max(ends[at] for at in group))
        for at in group:
            into[at] = data[begins[at] - first : ends[at] - first]

    def _read_one(self, number: int, begin: int, end: int) -> bytes:
        opened = _opened((self, number))
        pieces, at = [], begin
        while at < end:
            try:
                piece = os.pread(opened.descriptor, end - at, at)
            except OSError as error:
                raise self.damaged(number, at, error.strerror or "it cannot be read") from error
            if not piece:
                raise self.damaged(number, at, "the file ends here")
            pieces.append(piece)
            at += len(piece)
        return b"".join(pieces)

    def damaged(self, number: int, offset: int, why: object) -> DamagedSample:
        """Return the error for a place in a file.

        Raises:
            UsageError: the file has changed, which is no damage of one sample.
        """
        require_unchanged(self.all[number])
        return DamagedSample(f"{self.all[number].path}: byte {offset}: {why}")


class FileSource(Source):
    """Samples that are stretches of files; each file is a shard."""

    def __init__(self, files: Files, lengths: Sequence[int]) -> None:
        self._files, self.shards = files, files.shards(lengths)

    def read_rows(self, shard: int, rows: Sequence[int]) -> list[Any]:
        begins, ends = self._stretches(shard, np.asarray(rows, np.int64))
        found = []
        for raw, begin in zip(self._files.read(shard, begins, ends), begins.tolist(), strict=True):
            try:
                found.append(self._parse(shard, raw))
            except (ValueError, csv.Error, msgspec.MsgspecError) as error:
                raise self._files.damaged(shard, begin, error) from error
        return found

    @abstractmethod
    def _stretches(self, shard: int, rows: Ids) -> tuple[Ids, Ids]:
        """Return where the bytes of each row begin and end."""

    @abstractmethod
    def _parse(self, shard: int, raw: bytes) -> Any: ...


class _Open:
    """A descriptor that is closed with its last user. Processes may share it: each read says
    where.
    """

    def __init__(self, path: Path) -> None:
        self.descriptor = disk.open_plain(path, follow=True)

    def __del__(self) -> None:
        if "descriptor" in vars(self):
            os.close(self.descriptor)


def _open_unchanged(at: tuple[Files, int]) -> _Open:
    file = at[0].all[at[1]]
    require_unchanged(file)
    return _Open(file.path)


_opened = RecentValues(_open_unchanged, _OPEN)


def find(paths: Paths) -> list[Path]:
    """Return the files that are meant: paths and globs in the order given, a glob's sorted.

    Raises:
        UsageError: one of them is no file.
    """
    found: list[Path] = []
    for each in [paths] if isinstance(paths, str | os.PathLike) else paths:
        name = os.fspath(each)
        matches = [Path(name)] if scan.is_file(name) else _matching(Path(name))
        if not matches:
            raise UsageError(f"no data file is {name!r} (in {Path.cwd()})")
        found += [Path(os.path.abspath(match)) for match in matches]
    if not found:
        raise UsageError("no data files were given")
    return found


def _matching(glob: Path) -> list[Path]:
    hidden = glob.name.startswith(".")
    return [
        path
        for path in scan.glob(Path(), str(glob))
        if scan.is_file(path) and (hidden or not path.name.startswith("."))
    ]


def look(path: Path) -> DataFile:
    try:
        facts = os.stat(path)
    except OSError as error:
        raise UsageError(f"{path}: {error.strerror}") from error
    return DataFile(path, facts.st_size, facts.st_mtime_ns)


def _look_inside(path: Path) -> DataFile:
    """Return the file, or the decompressed copy of a compressed one."""
    file = look(path)
    if not is_compressed(path):
        return file
    with progress(f"{file.name} to decompress it", file.size) as done:
        copy = unpacked(path, f"{file.size} {file.mtime_ns}", done)
    require_unchanged(file)
    return look(copy)


def require_unchanged(file: DataFile) -> None:
    """Raise UsageError unless size and time of a file are those of when it was found."""
    now = look(file.path)
    if now != file:
        raise UsageError(
            f"{file.path} has changed since this stream was made: it had {file.size} bytes and "
            f"has {now.size}. Make the stream again"
        )


def file_index(kind: str, file: DataFile, build: Callable[[], bytes]) -> bytes:
    """Return what `build` returns for a file, kept between runs until the file changes."""

    def build_checked() -> bytes:
        found = build()
        require_unchanged(file)
        return found

    if file.size < _KEPT_FROM:
        return build_checked()
    return kept(kind, str(file.path), f"{file.size} {file.mtime_ns}", build_checked)


@contextmanager
def progress(what: str, total: int) -> Iterator[Callable[[int], None]]:
    """Yield a function that is told how much of `total` is done; rank 0 shows it."""
    shown = os.environ.get("RANK", "0") == "0"
    began, told = time.monotonic(), False
    line = terminal.ProgressLine().begin(draws=shown)

    def done(count: int) -> None:
        nonlocal told
        if shown and not told and time.monotonic() - began > _SILENT_S:
            terminal.say(f"reading {what}, once")
            told = True
        line.update(batch=100 * count // total, batches=100)

    try:
        yield done
    finally:
        line.close()
