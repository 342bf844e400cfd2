"""Sources without some of their samples: those that a filter drops, and those that are damaged."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

import msgspec
import numpy as np
import xxhash

from ... import disk, terminal
from .cache import cache_dir, kept, warn_unwritable
from .files import progress
from .orders import Ids
from .source import LEFT_OUT, DamagedSample, Source, as_source

_AT_ONCE = 1024


class Kept(Source):
    """The samples for which `keep(sample)` is true.

    All samples are read once, at the start, by each process that makes the source. With `name` the
    choice is kept for later runs, as long as the shards are the same: another filter needs another
    name.
    """

    def __init__(self, source: Any, keep: Callable[[Any], bool], name: str | None = None) -> None:
        self._source = as_source(source)
        self.leaves_out = self._source.leaves_out

        def build() -> bytes:
            return _choose(self._source, keep).tobytes()

        state = self._source.fingerprint()
        chosen = build() if name is None else kept("kept", name, state, build)
        ids = np.frombuffer(chosen, np.int64)
        if self._source.sizes is not None:
            self.sizes = self._source.sizes[ids]
        ends = np.cumsum(self._source.lengths)
        rows = np.split(ids, np.searchsorted(ids, ends))[:-1]
        self._rows = [
            each - end for each, end in zip(rows, ends - self._source.lengths, strict=True)
        ]
        self.shards = [
            # the digest of the choice is part of the stream's fingerprint
            shard._replace(name=f"{shard.name} {xxhash.xxh3_64_hexdigest(each)}", samples=len(each))
            for shard, each in zip(self._source.shards, self._rows, strict=True)
        ]

    def read_rows(self, shard: int, rows: Sequence[int]) -> list[Any]:
        return self._source.read_rows(shard, self._rows[shard][[*rows]].tolist())


def _choose(source: Source, keep: Callable[[Any], bool]) -> Ids:
    total, found = len(source), []
    with progress(f"all {total} samples", total) as done:
        for first in range(0, total, _AT_ONCE):
            stop = min(first + _AT_ONCE, total)
            samples = source.read(range(first, stop))
            found.append([each is not LEFT_OUT and bool(keep(each)) for each in samples])
            done(stop)
    return np.flatnonzero(np.concatenate([[], *found])).astype(np.int64)


class Skipping(Source):
    """The samples of `source` without those that are damaged: their batches have fewer samples.

    Each is told once, and noted in `skipped.jsonl` in the cache directory: a later run leaves out
    the same ones, also when the file was repaired. To have them back, remove their lines.
    """

    leaves_out = True

    def __init__(self, source: Any) -> None:
        self._source = as_source(source)
        self.shards, self.sizes = self._source.shards, self._source.sizes
        self._path = cache_dir() / "skipped.jsonl"
        self._known = self._noted()

    def fingerprint(self) -> str:
        return self._source.fingerprint()

    def read_rows(self, shard: int, rows: Sequence[int]) -> list[Any]:
        wanted = [row for row in rows if (*self.shards[shard], row) not in self._known]
        try:
            found = self._source.read_rows(shard, wanted) if wanted else []
        except DamagedSample:
            found = [self._read_or_note(shard, row) for row in wanted]
        samples = dict(zip(wanted, found, strict=True))
        return [samples.get(row, LEFT_OUT) for row in rows]

    def _read_or_note(self, shard: int, row: int) -> Any:
        try:
            return self._source.read_rows(shard, [row])[0]
        except DamagedSample as error:
            self._note((*self.shards[shard], row), str(error))
            return LEFT_OUT

    def _note(self, sample: tuple[Any, ...], why: str) -> None:
        there = self._noted()  # another process may have been quicker
        self._known |= {sample}
        if sample in there:
            return
        terminal.warn(f"{why}; the sample is left out of its batch")
        try:
            disk.make_dirs(self._path.parent)
            with suppress(FileExistsError):
                disk.write(self._path, [])
            disk.append(self._path, msgspec.json.encode([*sample, why]) + b"\n", sync=True)
        except OSError as error:
            warn_unwritable(str(error))

    def _noted(self) -> set[tuple[Any, ...]]:
        found: set[tuple[Any, ...]] = set()  # name, samples and size of a shard, and a row
        with suppress(FileNotFoundError, NotADirectoryError):
            for line in self._path.read_bytes().splitlines():
                with suppress(msgspec.MsgspecError):  # it was cut off
                    *sample, _ = msgspec.json.decode(line, type=tuple[str, int, int, int, str])
                    found.add(tuple(sample))
        return found
