"""cycling_utils' samplers: Holdfast's samplers with their names, arguments, attributes, errors and
states.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sized
from contextlib import contextmanager
from typing import Any

from .. import terminal
from ..errors import UsageError
from ..torch.interruptible import Interruptible
from ..torch.samplers import (
    InterruptibleDistributedGroupedBatchSampler,
    InterruptibleDistributedSampler,
)


class HasNotResetProgressError(UsageError):
    """Another epoch was begun although this one has progress.
    `in_epoch` and `reset_progress` end an epoch.
    """


class AdvancedTooFarError(UsageError):
    """`advance` passed the end of the epoch."""


class _Compatible(Interruptible):
    """The names, errors and states that scripts of cycling_utils expect of a sampler."""

    def set_epoch(self, epoch: int) -> None:
        """Go to the start of `epoch`, or to the position in it that a loaded state gave.

        Raises:
            HasNotResetProgressError: `advance` was called and this epoch was not ended.
        """
        if self._advanced:
            raise HasNotResetProgressError(
                f"epoch {self.epoch} has progress: "
                "sampler.reset_progress() ends it, or go through epochs with "
                "sampler.in_epoch(epoch)"
            )
        super().set_epoch(epoch)

    @contextmanager
    def in_epoch(self, epoch: int) -> Iterator[None]:
        """Go to `epoch`; after the block its progress is 0.
        An exception leaves the progress as it is.
        """
        self.set_epoch(epoch)
        yield
        self.reset_progress()

    def _reset_progress(self) -> None:
        """`reset_progress` under the name that many scripts use."""
        self.reset_progress()

    def state_dict(self) -> dict[str, Any]:
        sampler: Any = self
        return {**super().state_dict(), "progress": sampler.progress}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Continue where the state was taken, on any number of ranks; one of cycling_utils needs
        the same number.

        Raises:
            AdvancedTooFarError: an epoch has fewer samples.
            Mismatch: the state belongs to another order.
        """
        if "position" in state_dict or not {"progress", "epoch"} <= state_dict.keys():
            super().load_state_dict(state_dict)
            return
        sampler: Any = self
        self._begin(state_dict["epoch"])
        sampler.advance(state_dict["progress"])
        self._advanced = False
        if state_dict["progress"]:
            terminal.warn(
                "the sampler's state was saved by cycling_utils, which had another order in epoch "
                f"{state_dict['epoch']}: until that epoch ends "
                "some samples come twice, and some not at all"
            )

    def _must_count(self, more: int, unit: str) -> bool:
        try:
            return super()._must_count(more, unit)
        except UsageError as error:
            raise AdvancedTooFarError(str(error)) from None


class InterruptableDistributedSampler(_Compatible, InterruptibleDistributedSampler):
    """torch's DistributedSampler with a position in its epoch, in samples of this rank; reshuffled
    every epoch.

        for epoch in range(sampler.epoch, epochs):
            with sampler.in_epoch(epoch):
                for batch in loader:
                    ...
                    sampler.advance(len(batch))

    Save `sampler.state_dict()`. After a resume on another number of ranks, they share the rest of
    the epoch.
    """


class InterruptableDistributedGroupedBatchSampler(
    _Compatible, InterruptibleDistributedGroupedBatchSampler
):
    """Yields batches of one group each,
    for DataLoader's `batch_sampler`; `advance()` counts batches.
    """


class InterruptableSampler(_Compatible, InterruptibleDistributedSampler):
    """A sampler for a dataset of which each rank holds its own part, such as
    DistributedShardedDataset.

    `num_replicas`, `rank` and `drop_last` have no effect, as in cycling_utils.
    """

    def __init__(
        self,
        dataset: Sized,
        num_replicas: int | None = None,  # noqa: ARG002 -- scripts may give it
        rank: int | None = None,  # noqa: ARG002
        shuffle: bool = True,
        seed: int = 0,
        drop_last: bool = False,  # noqa: ARG002
    ) -> None:
        super().__init__(dataset, 1, 0, shuffle, seed)
