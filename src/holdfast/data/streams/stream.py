"""Stream: batches of samples from files, the same ones in the same order for any number of workers
and ranks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import xxhash

from ...errors import Mismatch, UsageError
from ...state import rng
from ..advice import Advice
from ..facts import FeedPosition, LoaderFacts
from ..order import derive_key
from ..seeded import Index, restoring_generators
from ..seekable import STREAM_ORDER, GlobalBatch, SeekableBatches, Step
from .mixture import FIRST, Mix, Mixture, phases_of
from .orders import Ids, RecentValues, Window, check_shuffle
from .passes import Ordered, Pack, Packed, Passes
from .source import LEFT_OUT, DamagedSample, Source, rank_and_world
from .stacked import stack


class Stream(SeekableBatches):
    """Batches of the samples of `sources`: a source, a dataset, a Pack, or a Mix of them.

    The order depends on `seed`, the epoch and the sources, and not on who reads. Each batch is made
    from its place alone. So a resume goes on at once, with other numbers of workers and ranks, too.

        Stream(source, batch_size=32)           for a loop, or DataLoader(stream, batch_size=None)
        Stream(source, global_batch_size=512)   512 samples over all ranks
        Stream(source)                          single samples, for DataLoader(stream, batch_size=8)

    `map` is called with each sample; what it draws from the global generators depends on the sample
    only. `collate` makes a batch of a list of samples; without it arrays and numbers are stacked.
    """

    def __init__(
        self,
        sources: Any,
        batch_size: int | None = None,
        *,
        global_batch_size: int | None = None,
        seed: int = 0,
        shuffle: Window | bool = True,
        drop_last: bool = False,
        map: Callable[[Any], Any] | None = None,  # noqa: A002  the field's word
        collate: Callable[[list[Any]], Any] = stack,
        ranks: tuple[int, int] | None = None,
    ) -> None:
        check_shuffle(shuffle)
        if batch_size is not None and global_batch_size is not None:
            raise UsageError("batch_size is for one rank, global_batch_size for all: give one")
        self.rank, self.world = ranks or rank_and_world()
        if not 0 <= self.rank < self.world:
            raise UsageError(f"rank {self.rank} of {self.world}: ranks count from 0")
        self._batched = batch_size is not None or global_batch_size is not None
        each = (1 if batch_size is None else batch_size) * self.world
        each = each if global_batch_size is None else global_batch_size
        if each < self.world:
            raise UsageError(f"a step of {each} samples for {self.world} ranks: each needs one")
        self.batch_size, self.global_batch_size = batch_size, each
        self.seed, self.shuffle, self.drop_last = seed, shuffle, drop_last
        self.epoch = 0  # of an index without one
        self._mix = sources if isinstance(sources, Mix) else Mix({"": sources})
        self._map, self._collate = map, collate
        self._now = tuple(len(each.shards) for each in self._sources())
        self._layout = RecentValues(self._compute_layout, 2)

    @property
    def makes_batches(self) -> bool:
        return self._batched

    def set_epoch(self, epoch: int) -> None:
        """Take `epoch` where an index has none: in a loop without a run."""
        self.epoch = epoch

    def __len__(self) -> int:
        """Batches of an epoch, or samples where no batch size was given."""
        length, each = self._layout(self._now).length, self.global_batch_size
        if not self._batched:
            return length
        return length // each if self.drop_last else -(-length // each)

    def __iter__(self) -> Iterator[Any]:
        return (self[number] for number in range(len(self)))

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, GlobalBatch):
            return self._batch(index)
        number = range(len(self))[index]
        epoch = index.epoch if isinstance(index, Index) else self.epoch
        if not self._batched:
            return self._read(epoch, np.array([number]), self._now)[0]
        start = number * self.global_batch_size
        stop = min(start + self.global_batch_size, self._layout(self._now).length)
        return self._batch(GlobalBatch(epoch, start, stop, self._now))

    def __getitems__(self, indices: Sequence[Any]) -> list[Any]:
        if self._batched:
            raise UsageError(
                "this stream makes batches, and so does its loader: give the loader"
                " batch_size=None, or the stream no batch_size"
            )
        epochs = {each.epoch if isinstance(each, Index) else self.epoch for each in indices}
        if len(epochs) > 1:
            return [self[each] for each in indices]
        return self._read(epochs.pop(), np.array([*map(int, indices)]), self._now)

    def steps(self, epoch: int, position: FeedPosition | None) -> Iterator[Step]:
        shards, batches, start = self._now, 0, 0
        if position is not None:
            shards = tuple(position["shards"])
            self._require_same_sources(shards, position["sources"])
            batches, start = position["batches"], position["samples"]
        return self._steps(epoch, shards, batches, start)

    def describe(self) -> LoaderFacts:
        return {
            "order": STREAM_ORDER,
            "seed": self.seed,
            "shuffle": str(self.shuffle),
            "length": self._layout(self._now).length,
            "sources": self._fingerprint(self._now),
            "drop_last": self.drop_last,
            "batch_size": self.batch_size or self.global_batch_size,
            "world": self.world,
            "global_batch_size": self.global_batch_size,
        }

    def _steps(
        self, epoch: int, shards: tuple[int, ...], batches: int, start: int
    ) -> Iterator[Step]:
        length, sources = self._layout(shards).length, self._fingerprint(shards)
        while start < length:
            stop = min(start + self.global_batch_size, length)
            if self.drop_last and stop - start < self.global_batch_size:
                return
            batches += 1
            position = {"epoch": epoch, "batches": batches, "samples": stop}
            yield Step(
                GlobalBatch(epoch, start, stop, shards),
                {**position, "shards": [*shards], "sources": sources},
            )
            start = stop

    def _batch(self, batch: GlobalBatch) -> Any:
        epoch, start, stop, shards = batch
        places = np.arange(start + self.rank, stop, self.world)
        if not len(places):  # fewer samples are left than ranks
            places = np.array([start + self.rank % (stop - start)])
        samples = self._read(epoch, places, shards)
        return self._collate(samples) if self._batched else samples[0]

    def _read(self, epoch: int, places: Ids, shards: tuple[int, ...]) -> list[Any]:
        samples = self._layout(shards).read(epoch, places)
        placed = [*zip(places.tolist(), samples, strict=True)]
        placed = [(place, sample) for place, sample in placed if sample is not LEFT_OUT]
        if not placed:
            raise DamagedSample(f"every sample is damaged of the batch at place {places[0]}")
        if self._map is None:
            return [sample for _, sample in placed]
        with restoring_generators():
            return [self._mapped(sample, epoch, place) for place, sample in placed]

    def _mapped(self, sample: Any, epoch: int, place: int) -> Any:
        rng.seed(derive_key("sample", self.seed, epoch, place))
        return self._map(sample)  # type: ignore[misc]

    def _sources(self) -> list[Source]:
        return [
            each.source if isinstance(each, Pack) else each for each in self._mix.sources.values()
        ]

    def _compute_layout(self, shards: tuple[int, ...]) -> Passes:
        """Return what reads the samples of the first `shards` of each source."""
        parts: list[Passes] = []
        for number, (name, each) in enumerate(self._mix.sources.items()):
            source = each.source if isinstance(each, Pack) else each
            ordered = Ordered(
                source.first_shards(shards[number]), self.shuffle, derive_key(self.seed, name)
            )
            parts.append(Packed(ordered, each) if isinstance(each, Pack) else ordered)
        if any(not part.length for part in parts):
            raise UsageError("a source has no samples, or has fewer tokens than one sequence")
        if len(parts) == 1 and self._mix.until == FIRST:
            return parts[0]
        phases = phases_of(self._mix.weights, [*self._mix.sources], [part.length for part in parts])
        return Mixture(parts, phases, self.seed, self._mix.until)

    def _fingerprint(self, shards: tuple[int, ...]) -> str:
        found = xxhash.xxh3_64(repr(self._mix).encode())
        for each, number in zip(self._mix.sources.values(), shards, strict=True):
            source = (each.source if isinstance(each, Pack) else each).first_shards(number)
            found.update(source.fingerprint().encode() + b"\n")
            if isinstance(each, Pack):  # documents of other sizes make other sequences
                found.update(each.sizes()[: len(source)].tobytes())
        return str(found.hexdigest())

    def _require_same_sources(self, shards: tuple[int, ...], sources: str) -> None:
        """Check that the sources still begin with the shards of a position."""
        begins = len(shards) == len(self._now) and all(map(int.__le__, shards, self._now))
        if begins and self._fingerprint(shards) == sources:
            return
        raise Mismatch(
            "the sources of the stream have changed: their first shards, or a mixture's weights, "
            "are no longer those that this epoch began with. "
            + str(Advice("the same shards", "Put new shards behind the old ones"))
        )
