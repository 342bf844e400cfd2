"""cycling_utils' samplers: ours, by their names, with their arguments, attributes, errors and states."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sized
from contextlib import contextmanager
from typing import Any, Protocol, cast

from .. import terminal
from ..errors import UsageError
from ..torch.interruptible import Interruptible
from ..torch.samplers import (
    InterruptibleDistributedGroupedBatchSampler,
    InterruptibleDistributedSampler,
)


class HasNotResetProgressError(UsageError):
    """Another epoch was begun while this one has progress: `in_epoch` and `reset_progress` end one."""


class AdvancedTooFarError(UsageError):
    """More was advanced than an epoch has."""


class _Counted(Protocol):
    @property
    def progress(self) -> int: ...

    def advance(self, n: int, /) -> None: ...


class _AsEver(Interruptible):
    """What scripts of cycling_utils count on, over the samplers' own ways."""

    def set_epoch(self, epoch: int) -> None:
        """Be in `epoch`: at its start, or where a state of that very epoch said.

        Raises:
            HasNotResetProgressError: something was advanced since.
        """
        if self._advanced:
            raise HasNotResetProgressError(
                f"epoch {self.epoch} has progress: sampler.reset_progress() ends it, or go through epochs with "
                "sampler.in_epoch(epoch)"
            )
        super().set_epoch(epoch)

    @contextmanager
    def in_epoch(self, epoch: int) -> Iterator[None]:
        """Be in `epoch`, which has no progress any more after the block. An exception leaves it as it is."""
        self.set_epoch(epoch)
        yield
        self.reset_progress()

    def _reset_progress(self) -> None:
        """`reset_progress`, by the name that many scripts know."""
        self.reset_progress()

    def state_dict(self) -> dict[str, Any]:
        return {**super().state_dict(), "progress": cast("_Counted", self).progress}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on where `state` was taken, by however many ranks; one of cycling_utils itself, by as many as now.

        Raises:
            AdvancedTooFarError: an epoch has not as much.
            Mismatch: the state belongs to another order.
        """
        if "position" in state or not {"progress", "epoch"} <= state.keys():
            super().load_state_dict(state)
            return
        self._begin(state["epoch"])
        cast("_Counted", self).advance(state["progress"])
        self._advanced = False
        if state["progress"]:
            terminal.warn(
                f"the sampler's state is one of cycling_utils, which had another order in epoch {state['epoch']}: until "
                "that epoch ends some samples come twice, and some not at all"
            )

    def _require(self, more: int, unit: str) -> bool:
        try:
            return super()._require(more, unit)
        except UsageError as error:
            raise AdvancedTooFarError(str(error)) from None


class InterruptableDistributedSampler(_AsEver, InterruptibleDistributedSampler):
    """torch's DistributedSampler with a place in its epoch, counted in samples of this rank; reshuffled every epoch.

        for epoch in range(sampler.epoch, epochs):
            with sampler.in_epoch(epoch):
                for batch in loader:
                    ...
                    sampler.advance(len(batch))

    Save `sampler.state_dict()`. Resumed on another number of ranks, these take the rest of the epoch between them.
    """


class InterruptableDistributedGroupedBatchSampler(_AsEver, InterruptibleDistributedGroupedBatchSampler):
    """Batches of one group each, as DataLoader's `batch_sampler`; its place is counted in batches: `advance()`."""


class InterruptableSampler(_AsEver, InterruptibleDistributedSampler):
    """The same for a dataset that each rank has its own part of, such as DistributedShardedDataset: all of it.

    `num_replicas`, `rank` and `drop_last` say nothing, as ever.
    """

    def __init__(
        self,
        dataset: Sized,
        num_replicas: int | None = None,  # noqa: ARG002 -- scripts may say it
        rank: int | None = None,  # noqa: ARG002
        shuffle: bool = True,
        seed: int = 0,
        drop_last: bool = False,  # noqa: ARG002
    ) -> None:
        super().__init__(dataset, 1, 0, shuffle, seed)
