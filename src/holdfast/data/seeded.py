"""Randomness per sample: random numbers in `__getitem__` depend on the sample,
not on its loader or predecessors.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Self

from ..errors import UsageError
from ..state import rng
from .order import derive_key


class Index(int):
    """A sample's index with its epoch,
    so that the epoch reaches workers which outlive many epochs.
    """

    epoch: int

    def __new__(cls, value: int, epoch: int) -> Self:
        index = super().__new__(cls, value)
        index.epoch = epoch
        return index

    def __reduce__(self) -> tuple[type[Self], tuple[int, int]]:
        return type(self), (int(self), self.epoch)


def with_epoch(indices: Iterable[int], epoch: int) -> Iterator[Index]:
    """Yield the same indices, each with its epoch."""
    return (Index(value, epoch) for value in indices)


class Seeded:
    """Return `dataset`, with the random numbers of its `__getitem__` made a pure function of (seed,
    epoch, index).

    Covered are the global generators that `random`, NumPy and torch (on the CPU) draw from: each is
    seeded for the sample and put back afterwards, so that the training's own stream is as if no
    sample had been loaded. A generator that the dataset keeps for itself is not covered.

    It has to be the outermost wrapper: Seeded(Subset(dataset, ...)). `run.batches` and
    `holdfast.data.Sampler` send the epoch along with each index; an index without one counts as
    epoch 0, and a warning says so.

    A worker of `run.batches` has no training stream to protect. There the generators stay as the
    batch's last sample left them, so that `collate_fn` draws repeatable numbers, too. It costs 10
    microseconds a sample, and 80 a batch where the generators are put back.
    """

    def __init__(self, dataset: Any, seed: int) -> None:
        self.dataset = dataset
        self.seed = seed
        self._told = False

    def __len__(self) -> int:
        return len(self.dataset)

    def __getitem__(self, index: Any) -> Any:
        with restoring_generators():
            return self._sample(index)

    def __getitems__(self, indices: Iterable[Any]) -> list[Any]:
        with (
            restoring_generators()
        ):  # the dataset's own batched read would not get each sample's seed
            return [self._sample(index) for index in indices]

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or name == "dataset":
            # copying and unpickling look up attributes before there is a dataset
            raise AttributeError(name)
        return getattr(self.dataset, name)

    def __setattr__(self, name: str, value: Any) -> None:
        """Set it where it is read: `loader.dataset.transform = crop` reaches the dataset."""
        if name in {"dataset", "seed", "_told"} or not hasattr(self.dataset, name):
            super().__setattr__(name, value)
        else:
            setattr(self.dataset, name, value)

    def _sample(self, index: Any) -> Any:
        epoch = _epoch_of(index)
        if epoch is None and not self._told:
            self._told = True
            warnings.warn(
                f"Seeded got a plain {type(index).__name__} as index, "
                "without an epoch: every epoch repeats the"
                " randomness of epoch 0. Load through run.batches(loader) "
                "or sampler=holdfast.data.Sampler(...), which"
                " carry the epoch. Make Seeded the outermost wrapper: "
                "Seeded(Subset(...)), not Subset(Seeded(...)).",
                UserWarning,
                stacklevel=3,
            )
        rng.seed(derive_key("sample", self.seed, epoch or 0, _seed_text(index)))
        return self.dataset[index]


class SeededBatches(Seeded):
    """Like `Seeded` for a whole batch: its samples and its `collate_fn` draw from one seed in a
    worker.

    The dataset's own batched read is used. It costs 10 microseconds a batch.
    """

    def __getitems__(self, indices: Iterable[Any]) -> list[Any]:
        indices = list(indices)
        with restoring_generators():
            rng.seed(
                derive_key("batch", self.seed, _epoch_of(indices) or 0, *map(_seed_text, indices))
            )
            read = getattr(self.dataset, "__getitems__", None)
            return (
                [self.dataset[index] for index in indices] if read is None else list(read(indices))
            )


_training_here = True  # the generators must be restored; in a worker only samples use them


def mark_as_worker() -> None:
    """Mark this process as a loader's worker:
    samples seed its generators and do not restore them.
    """
    global _training_here  # noqa: PLW0603  a process becomes a worker once, for its whole life
    _training_here = False


def restoring_generators() -> AbstractContextManager[None]:
    """Put the global generators back afterwards, except in a worker, which has no use for that."""
    return rng.seeded_scope(0) if _training_here else nullcontext()


def _epoch_of(index: Any) -> int | None:
    if isinstance(index, Index):
        return index.epoch
    if isinstance(index, tuple | list):
        return next((part.epoch for part in index if isinstance(part, Index)), None)
    return None


def _seed_text(index: Any) -> str:
    """Return the representation of `index` in its seed:
    equal numbers are equal, whatever their type.
    """
    if isinstance(index, str | bytes | tuple | list):
        return repr(index)
    try:
        return str(index.__index__())
    except (AttributeError, TypeError):
        raise UsageError(
            "Seeded cannot tell samples apart by an index of "
            f"type {type(index).__name__}: use int, str or tuples"
        ) from None
