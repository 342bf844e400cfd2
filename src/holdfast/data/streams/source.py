"""Sources: where the samples of a stream lie, in shards of known lengths."""

from __future__ import annotations

import os
import sys
from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import xxhash

from ...errors import HoldfastError, UsageError
from .orders import Ids

# of a dataset that has no files: so many samples count as a shard
INDEXED_SHARD = 10_000
LEFT_OUT = object()  # stands for a damaged sample, which a stream leaves out of its batch


class SourceShard(NamedTuple):
    """One file, or one part of it, of which samples are read at any place."""

    name: str  # without its directory, which may be another one after a move
    samples: int
    size_bytes: int = 0


class DamagedSample(HoldfastError):
    """A sample cannot be read; the message names its file, and where in it."""


class Source:
    """Samples in shards. A subclass has `shards`, and reads rows of one of them."""

    shards: Sequence[SourceShard]
    # the size of each sample, of all shards, if it is known without reading: tokens, for one
    sizes: Ids | None = None
    leaves_out = False  # whether `read_rows` may return LEFT_OUT

    @abstractmethod
    def read_rows(self, shard: int, rows: Sequence[int]) -> list[Any]:
        """Return the samples at these rows of a shard, in the order of `rows`.

        Raises:
            DamagedSample: one of them cannot be read.
        """

    def __len__(self) -> int:
        return int(self.lengths.sum())

    def __getitem__(self, id_: int) -> Any:
        return self.read([range(len(self))[id_]])[0]

    def __iter__(self) -> Iterator[Any]:
        return (self[each] for each in range(len(self)))

    @cached_property
    def lengths(self) -> Ids:
        return np.array([each.samples for each in self.shards], np.int64)

    def read(self, ids: Sequence[int] | Ids) -> list[Any]:
        """Return the samples with these ids; each shard is read once."""
        wanted = np.asarray(ids, np.int64)
        ends = np.cumsum(self.lengths)
        shards = np.searchsorted(ends, wanted, "right")
        rows = wanted - (ends - self.lengths)[shards]
        found: list[Any] = [None] * len(wanted)
        for shard in np.unique(shards):
            at = np.flatnonzero(shards == shard)
            samples = self.read_rows(int(shard), rows[at].tolist())
            for place, sample in zip(at.tolist(), samples, strict=True):
                found[place] = sample
        return found

    def first_shards(self, number: int) -> Source:
        """Return the same source without the shards behind the first `number`."""
        return self if number == len(self.shards) else _FirstShards(self, number)

    def fingerprint(self) -> str:
        """Return a digest of what decides which sample an id means: the shards' names and sizes."""
        found = xxhash.xxh3_64()
        for each in self.shards:
            found.update(f"{each.name}\0{each.samples}\0{each.size_bytes}\0".encode())
        return str(found.hexdigest())


class _FirstShards(Source):
    def __init__(self, source: Source, number: int) -> None:
        self._source, self.shards = source, source.shards[:number]
        self.sizes = None if source.sizes is None else source.sizes[: len(self)]

    def read_rows(self, shard: int, rows: Sequence[int]) -> list[Any]:
        return self._source.read_rows(shard, rows)


class Indexed(Source):
    """Any dataset with a length, of which each sample can be had by its number."""

    def __init__(self, dataset: Any, name: str = "") -> None:
        indexed = hasattr(dataset, "__len__") and hasattr(dataset, "__getitem__")
        if not indexed or isinstance(dataset, str | bytes | Mapping):
            raise UsageError(
                f"a {type(dataset).__name__} cannot be a source: samples of a stream are read at "
                "any place, so it needs len() and [index]"
            )
        self._dataset, total = dataset, _length(dataset)
        self.shards = _EqualShards(name or type(dataset).__name__, total)
        self.lengths = np.minimum(INDEXED_SHARD, total - np.arange(0, total, INDEXED_SHARD))

    def read_rows(self, shard: int, rows: Sequence[int]) -> list[Any]:
        return self.read([shard * INDEXED_SHARD + row for row in rows])

    def read(self, ids: Sequence[int] | Ids) -> list[Any]:
        places = np.asarray(ids, np.int64).tolist()
        together = getattr(self._dataset, "__getitems__", None)
        return [self._dataset[each] for each in places] if together is None else [*together(places)]


def _length(dataset: Any) -> int:
    """Return the number of samples of all ranks.

    Raises:
        UsageError: the dataset tells only how many one of several ranks takes.

    Source: streaming 0.13, StreamingDataset.size; litdata 0.2.76, StreamingDataset.__len__.
    """
    takes_share = any(kind.__name__ == "IterableDataset" for kind in type(dataset).__mro__)
    size = getattr(dataset, "size", None) if takes_share else len(dataset)
    if isinstance(size, int):
        return size
    if rank_and_world()[1] > 1:
        raise UsageError(
            f"len() of a {type(dataset).__name__} is the share of one rank, so that its other "
            "samples would not come: give a Source that says how many there are"
        )
    return len(dataset)


def rank_and_world() -> tuple[int, int]:
    """Return rank and number of ranks, of torch's process group or of torchrun."""
    distributed = sys.modules.get("torch.distributed")
    if distributed is not None and distributed.is_available() and distributed.is_initialized():
        return distributed.get_rank(), distributed.get_world_size()
    return int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))


class _EqualShards(Sequence[SourceShard]):
    def __init__(self, name: str, total: int) -> None:
        self._name, self._total = name, total

    def __len__(self) -> int:
        return (self._total + INDEXED_SHARD - 1) // INDEXED_SHARD

    def __getitem__(self, number: Any) -> Any:
        if isinstance(number, slice):
            return [self[each] for each in range(len(self))[number]]
        first = range(len(self))[number] * INDEXED_SHARD
        return SourceShard(f"{self._name}-{number}", min(INDEXED_SHARD, self._total - first))


class Chain(Source):
    """Several sources, one behind the other."""

    def __init__(self, sources: Sequence[Source]) -> None:
        self._sources = sources
        self.leaves_out = any(each.leaves_out for each in sources)
        self.shards = [shard for each in sources for shard in each.shards]
        sizes = [each.sizes for each in sources if each.sizes is not None]
        self.sizes = np.concatenate(sizes) if sizes and len(sizes) == len(sources) else None

    def read_rows(self, shard: int, rows: Sequence[int]) -> list[Any]:
        for each in self._sources:
            if shard < len(each.shards):
                return each.read_rows(shard, rows)
            shard -= len(each.shards)
        raise IndexError(shard)


def as_source(value: Any) -> Source:
    """Return a source for what a user gives: a source, a dataset, or a list of them."""
    if isinstance(value, Source):
        return value
    if isinstance(value, list | tuple) and any(isinstance(each, Source) for each in value):
        return Chain([*map(as_source, value)])
    return Indexed(value)
