"""Samplers that can be interrupted and resumed anywhere, on any number of ranks.

InterruptibleDistributedSampler               sampler=        torch's DistributedSampler, with a
                                                              place in its epoch
InterruptibleSampler                          sampler=        the same for one process
InterruptibleDistributedGroupedBatchSampler   batch_sampler=  each batch from one group

The place is counted by `run.batches(loader)`, or by a loop of your own that calls `advance`:

    for epoch in range(sampler.epoch, 10):
        with sampler.in_epoch(epoch):
            for x, y in loader:
                ...
                sampler.advance(len(x))

It counts what all ranks together have consumed since the epoch began. It is therefore the same on
every rank, and resumes on any number of them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterator, Sequence, Sized
from typing import Any

from torch.utils.data import DistributedSampler, Sampler

from ..data import groups
from ..data.order import derive_key
from ..data.seeded import Index, with_epoch
from ..data.split import RankSplit
from ..errors import UsageError
from .interruptible import Interruptible
from .world import world


class InterruptibleDistributedSampler(Interruptible, DistributedSampler[int]):
    """torch's DistributedSampler with a position: the same indices in the same order for the same
    arguments.

    Resumed on another number of ranks, these divide the rest of the epoch among them, each sample
    once. With the same number of samples per step over all ranks, the steps are the same. If fewer
    samples are left than there are ranks, some of the order's first appear once more, or
    `drop_last` omits the remainder.
    """

    def __init__(
        self,
        dataset: Sized,
        num_replicas: int | None = None,
        rank: int | None = None,
        shuffle: bool = True,
        seed: int = 0,
        drop_last: bool = False,
    ) -> None:
        rank, size = world(rank, num_replicas)
        DistributedSampler.__init__(self, dataset, size, rank, shuffle, seed, drop_last)  # type: ignore[arg-type]
        Interruptible.__init__(self, dataset, seed, shuffle=shuffle)
        self._split = RankSplit(self._order.length, size, rank, drop_last)
        self.world = size
        self.position = 0  # samples of this epoch that all ranks together have consumed

    def __iter__(self) -> Iterator[int]:
        self._note_iteration()
        yield from self.indices(self.epoch, self.position)

    @property
    def remaining(self) -> int:
        return self._split.samples_left(self.position)

    @property
    def progress(self) -> int:
        """Number of samples this rank has consumed in this epoch,
        computed for the present number of ranks.
        """
        return self.position // self.world

    def advance(self, n: int) -> None:
        """Count `n` samples consumed by this rank, as by every other. Inside `run.batches` the run
        does it.

        Raises:
            UsageError: fewer are left.
        """
        if self._must_count(n, "samples"):
            self.position += n * self.world

    def indices(self, epoch: int, start: int = 0) -> Iterator[Index]:
        """Return this rank's part of `epoch` from position `start`;
        the sampler's own position does not change.
        """
        return with_epoch(self._order.walk(epoch, self._split.remaining_places(start)), epoch)

    def _set_position(self, epoch: int, position: int) -> None:
        self.epoch, self.position = epoch, position

    def _position(self) -> int:
        return self.position


class InterruptibleSampler(InterruptibleDistributedSampler):
    """For one process, or for a dataset of which each rank has its own part: all samples,
    reshuffled every epoch.
    """

    def __init__(self, dataset: Sized, shuffle: bool = True, seed: int = 0) -> None:
        super().__init__(dataset, 1, 0, shuffle, seed)


class InterruptibleDistributedGroupedBatchSampler(Interruptible, Sampler[list[int]]):
    """For DataLoader(batch_sampler=...): batches of `batch_size`, each from one group,
    `group_ids[index]`.

    All ranks have the same group in the same step. The rest of a group comes last as one short
    batch, unless `drop_last`; if the ranks cannot divide it, some samples appear twice. Resumed on
    another number of ranks, or with another batch size, each remaining sample appears once; if
    ranks times batch size is the same, in the same steps.
    """

    def __init__(
        self,
        dataset: Sized,
        group_ids: Sequence[Hashable],
        batch_size: int,
        num_replicas: int | None = None,
        rank: int | None = None,
        shuffle: bool = True,
        seed: int = 0,
        drop_last: bool = False,
    ) -> None:
        if batch_size < 1:
            raise UsageError(f"batch_size={batch_size}: at least 1")
        self.rank, self.world = world(rank, num_replicas)
        Sampler.__init__(self)
        Interruptible.__init__(self, dataset, seed, shuffle=shuffle)
        self.group_ids = group_ids.tolist() if hasattr(group_ids, "tolist") else list(group_ids)
        if len(self.group_ids) != self._order.length:
            raise UsageError(
                f"group_ids has {len(self.group_ids)} entries, "
                f"and the dataset {self._order.length} samples"
            )
        self.batch_size, self.drop_last = batch_size, drop_last
        self.together = batch_size * self.world  # samples that all ranks take in a step
        sizes = Counter(self.group_ids).values()
        self.num_batches = sum(
            size // self.together if drop_last else -(-size // self.together) for size in sizes
        )
        self._groups = f"{derive_key(*self.group_ids):016x}"
        self._last: dict[Any, list[list[int]]] = {}
        self.taken: groups.Taken = ()

    def __len__(self) -> int:
        return self.num_batches

    def __iter__(self) -> Iterator[list[int]]:
        self._note_iteration()
        yield from self.batches(self.epoch, self.taken)

    @property
    def remaining(self) -> int:
        made, done = self._batches(self.epoch, self.taken)
        return max(0, len(made) - done)

    @property
    def progress(self) -> int:
        """Number of batches consumed in this epoch."""
        return sum(number for _, number in self.taken)

    def advance(self, n: int = 1) -> None:
        """Count `n` batches consumed by this rank, as by every other. Inside `run.batches` the run
        does it.

        Raises:
            UsageError: fewer are left.
        """
        if self._must_count(n, "batches"):
            self.taken = groups.add_batches(self.taken, self.together, n)

    def batches(self, epoch: int, taken: groups.Taken = ()) -> Iterator[list[int]]:
        """Return this rank's batches of `epoch` after those `taken`;
        the sampler's own position does not change.
        """
        made, done = self._batches(epoch, taken)
        for batch in made[done:]:
            yield list(with_epoch(groups.part_of_rank(batch, self.world, self.rank), epoch))

    def describe(self) -> dict[str, Any]:
        return super().describe() | {"groups": self._groups}

    def _batches(self, epoch: int, taken: groups.Taken) -> tuple[list[list[int]], int]:
        """The batches over all ranks since they have this size, and how many of them were taken."""
        before, done = groups.split_by_size(taken, self.together)
        wanted = epoch, tuple(before)
        if wanted not in self._last:
            left = groups.remaining_samples(
                self._order.epoch_order(epoch).tolist(), self.group_ids, before
            )
            self._last = {
                wanted: groups.group_batches(
                    left, self.group_ids, self.together, drop_last=self.drop_last
                )
            }
        return self._last[wanted], done

    def _set_position(self, epoch: int, position: Sequence[Sequence[int]]) -> None:
        self.epoch, self.taken = epoch, [(size, number) for size, number in position]

    def _position(self) -> list[list[int]]:
        return [[size, number] for size, number in self.taken]
