"""The base of the samplers: the order of an epoch, and a position in it that is the same on every
rank.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sized
from contextlib import contextmanager
from functools import lru_cache
from typing import Any

import torch

from ..data.order import derive_key
from ..data.sampler import require_same_order
from ..errors import Mismatch, UsageError

CHUNK = 16_384  # indices that are converted to Python integers at once


class ResumableOrder:
    """The order of each epoch, like that of torch's DistributedSampler: it depends on (length,
    seed, epoch).

    The last one is kept.
    """

    def __init__(self, dataset: Sized, seed: int, *, shuffle: bool) -> None:
        self.dataset, self.length = dataset, len(dataset)
        self.seed, self.shuffle = seed, shuffle
        self._last: dict[int, torch.Tensor] = {}

    def epoch_order(self, epoch: int) -> torch.Tensor:
        if epoch not in self._last:
            drawn = torch.Generator().manual_seed(self.seed + epoch)
            order = (
                torch.randperm(self.length, generator=drawn)
                if self.shuffle
                else torch.arange(self.length)
            )
            self._last = {epoch: order}
        return self._last[epoch]

    def walk(self, epoch: int, places: range) -> Iterator[int]:
        """Return the values at `places`; places beyond the end continue at the beginning."""
        order = self.epoch_order(epoch)
        for first in range(0, len(places), CHUNK):
            some = places[first : first + CHUNK]
            yield from order[torch.arange(some.start, some.stop, some.step) % self.length].tolist()

    def describe(self) -> dict[str, Any]:
        """The facts that determine the order."""
        name = _shuffle_name() if self.shuffle else "as it is"
        found = {"length": self.length, "seed": self.seed, "shuffle": self.shuffle, "order": name}
        # a DistributedShardedDataset: an index means another sample
        shards = getattr(self.dataset, "shards", None)
        return found if shards is None else found | {"shards": shards}


class Interruptible:
    """The base of samplers that resume: an epoch, a position in it, and a state_dict()."""

    epoch = 0

    def __init__(self, dataset: Sized, seed: int, *, shuffle: bool) -> None:
        self._order = ResumableOrder(dataset, seed, shuffle=shuffle)
        self._counted = False  # the caller of seek() counts
        self._advanced = False  # advance() has counted samples or batches

    @abstractmethod
    def _set_position(self, epoch: int, position: Any) -> None: ...

    @property
    @abstractmethod
    def remaining(self) -> int:
        """The number of samples or batches that this rank still takes in this epoch."""

    def set_epoch(self, epoch: int) -> None:
        """Set the epoch: at its start, unless the sampler is in this epoch already."""
        if epoch != self.epoch:
            self._begin(epoch)

    @contextmanager
    def in_epoch(self, epoch: int) -> Iterator[None]:
        """Like `set_epoch`; after the block the next epoch is due. An exception leaves the
        position unchanged.
        """
        self.set_epoch(epoch)
        yield
        self._begin(epoch + 1)

    def reset_progress(self) -> None:
        """Go back to the start of the epoch."""
        self._begin(self.epoch)

    def seek(self, epoch: int, position: Any) -> None:
        """Set the position; from now on the caller counts (`run.batches` does),
        and `advance` does nothing.
        """
        self._set_position(epoch, position)
        self._counted, self._advanced = True, False

    def describe(self) -> dict[str, Any]:
        """The facts of the order; a position is valid only within one order."""
        return self._order.describe()

    def state_dict(self) -> dict[str, Any]:
        """Return epoch and position over all ranks, with the facts of the order."""
        return {"epoch": self.epoch, "position": self._position(), **self.describe()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Resume from `state`, whatever number of ranks saved it.

        Raises:
            Mismatch: the state belongs to another order, or to no sampler.
        """
        if not {"epoch", "position", "length"} <= state.keys():
            raise Mismatch(
                f"this is no state of a sampler: it has {', '.join(map(str, state)) or 'nothing'}"
            )
        if type(state["position"]) is not type(self._position()):
            raise Mismatch(
                "this is the state of a sampler of another kind: "
                f"its position is {state['position']!r}"
            )
        epoch, position, mine = state["epoch"], state["position"], self.describe()
        dealt_anew = state.get("shards") != mine.get("shards")
        if dealt_anew and (
            0 < position < state["length"] if isinstance(position, int) else position
        ):
            raise Mismatch(
                f"epoch {epoch} was begun on the shards {state.get('shards')}, "
                f"and these are {mine.get('shards')}:"
                " continue with as many ranks as then, or from a state where an epoch begins"
            )
        changed = {"shards", "length"} if dealt_anew else set()
        require_same_order(
            {name: fact for name, fact in mine.items() if name not in changed}, state
        )
        if dealt_anew:
            self._begin(epoch + 1 if position else epoch)
        else:
            self._begin(epoch)
            self._set_position(epoch, position)

    @abstractmethod
    def _position(self) -> Any:
        """The position as in `state_dict`; false at the start of an epoch."""

    def _begin(self, epoch: int) -> None:
        self._set_position(epoch, type(self._position())())  # 0 samples, or no batches
        self._counted = self._advanced = False

    def _must_count(self, more: int, unit: str) -> bool:
        """Return whether advance() must count `more`; false if the caller of seek() counts.

        Raises:
            UsageError: fewer are left.
        """
        if self._counted:
            return False
        if not 0 <= more <= self.remaining:
            raise UsageError(
                f"advance({more}): {self.remaining} {unit} of "
                f"epoch {self.epoch} are left for this rank; "
                "count what was consumed, advance(len(batch)), "
                "and begin each epoch with in_epoch() or set_epoch()"
            )
        self._advanced = self._advanced or more > 0
        return True

    def _note_iteration(self) -> None:
        """Note that an iteration begins.

        Raises:
            UsageError: the epoch is over; the loop would silently get no batch.
        """
        if (self._advanced or self._counted) and not self.remaining:
            raise UsageError(
                f"epoch {self.epoch} is over: begin the next one with "
                f"set_epoch({self.epoch + 1}), or go through epochs"
                " with sampler.in_epoch(epoch)"
            )
        self._counted = False


@lru_cache(maxsize=1)
def _shuffle_name() -> str:
    """Identifies torch.randperm's algorithm:
    torch does not promise that a later version draws the same order.
    """
    drawn = torch.randperm(1000, generator=torch.Generator().manual_seed(1)).tolist()
    return f"torch.randperm {derive_key(*drawn):016x}"
