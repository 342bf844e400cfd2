"""A sampler that shuffles anew every epoch and resumes at any place of it at once."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sized
from typing import Any

from ..errors import Mismatch
from .advice import Advice
from .order import VERSION, Shuffle
from .seeded import Index, with_epoch


def require_same_order(mine: Mapping[str, Any], state: Mapping[str, Any]) -> None:
    """Raise Mismatch unless `state` has each fact of `mine`."""
    for name, value in mine.items():
        if state.get(name) != value:
            raise Mismatch(
                f"the sampler's {name} is {value!r}, in its saved state {state.get(name)!r}: "
                + str(Advice("a sampler as before", "make it the same again"))
            )


class Sampler:
    """For DataLoader(sampler=...): the indices of successive epochs, each in the order of (seed,
    epoch).

    An epoch that was handed out whole is followed by the next one; one that was left in the middle
    begins again. The state says what was *handed out*; a loader with workers is a few batches ahead
    of its loop. Inside `run.batches` the run counts what the loop consumed, and resumes from there.
    """

    world = 1  # each process that iterates it takes the whole order

    def __init__(self, length: int | Sized, seed: int, *, shuffle: bool = True) -> None:
        self.length = length if isinstance(length, int) else len(length)
        self.seed = seed
        self.shuffle = shuffle
        self.epoch = 0
        self.position = 0  # samples of this epoch handed out so far
        self._start = 0  # where the next iteration begins

    def __len__(self) -> int:
        return self.length

    def __iter__(self) -> Iterator[Index]:
        epoch = self.epoch
        start, self._start = self._start, 0
        for place, index in enumerate(self.indices(epoch, start), start + 1):
            self.position = place
            yield index
        self.seek(epoch + 1, 0)

    def indices(self, epoch: int, start: int = 0) -> Iterator[Index]:
        """Return the indices of `epoch` from place `start`;
        the sampler's own position does not change.
        """
        order = (
            Shuffle(self.length, self.seed, epoch).walk(start)
            if self.shuffle
            else range(start, self.length)
        )
        return with_epoch(order, epoch)

    def set_epoch(self, epoch: int) -> None:
        """Iterate `epoch` next; from its start, unless a restored state is in this epoch."""
        if epoch != self.epoch:
            self.seek(epoch, 0)

    def seek(self, epoch: int, position: int) -> None:
        """Iterate `epoch` next, from `position` samples into it."""
        self.epoch, self.position, self._start = epoch, position, position

    def describe(self) -> dict[str, Any]:
        """The facts that determine the order."""
        return {"length": self.length, "seed": self.seed, "shuffle": self.shuffle, "order": VERSION}

    def state_dict(self) -> dict[str, Any]:
        """Return epoch and position, with the facts of the order."""
        return {"epoch": self.epoch, "position": self.position, **self.describe()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Resume from `state`.

        Raises:
            Mismatch: the state belongs to another order.
        """
        require_same_order(self.describe(), state)
        self.seek(state["epoch"], state["position"])
