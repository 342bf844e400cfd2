"""Iterables without a position: a resume reads the consumed batches again, and compares them.

The pass is read with the random numbers with which it began. Before the last of these batches, the
random numbers of that moment are restored. So a loader whose replay is certain (promise.py) yields
the same batches. When the digest of the first or of the last one differs, the resume is refused.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from typing import Any

from ..errors import Mismatch, UsageError
from ..state import rng
from . import promise
from .advice import Advice, other_samples
from .digest import digest, digest_on_call
from .facts import Feed, FeedPosition, batches_before
from .memory import PassMemory
from .stateful import drawn_when_made, require_same_draw

_NOTHING = object()
# keys of positions in loaders whose replay is unproven
_CARRIED, _OVER, _LIVES = "carried", "over", "lives"
_NOT_OF_A_PASS = {"epoch", "batches", "last", _CARRIED, _OVER, _LIVES}


class ReplayFeed(Feed):
    """The feed of any iterable: an epoch is one pass over it.

    A loader that counts its passes begins at 0 in a new process. Passes are begun until one has the
    same first batch: at most one more than there were epochs.
    """

    replays = True

    def __init__(self, batches: Iterable[Any]) -> None:
        super().__init__(batches)
        # whether a pass may depend on the passes before it; set_epoch() decides those of datasets
        self.remembers = not promise.is_of_datasets(batches)
        self._drawn = drawn_when_made(getattr(batches, "dataset", batches))
        self._once = isinstance(batches, Iterator)
        self._passes = False  # whether a pass has begun
        # the digest of the batch that was handed out last
        self._last: Callable[[], str | None] = lambda: None
        self._read = 0  # batches taken by a replay that reached none of its positions
        self._memory: dict[str, Any] = {}
        self.unknown = self._unproven_code()
        self._attributes = PassMemory(self._roots)
        self._over = False  # whether the pass in progress has ended

    def _unproven_code(self) -> Any:
        return promise.find_unproven(self._loader)

    def _roots(self) -> list[Any]:
        """Return the objects whose attributes passes may change."""
        return promise.roots_of(self._loader)

    @property
    def unrestorable_part(self) -> str:
        """Return the attribute of the loader with an iterator that continues from epoch to epoch;
        empty if there is none.
        """
        return (
            self._attributes.continuing_iterator(over=self._over)
            if self.unknown is not None and not self._once
            else ""
        )

    def open(self, epoch: int, position: FeedPosition | None) -> Iterator[Any]:
        require_same_draw(position or {}, self._drawn)
        if position is not None and _LIVES in position and (position["epoch"] != epoch or epoch):
            cause = f"its {position[_LIVES]} lives on from epoch to epoch"
            raise self._other_batches_error(position["epoch"], position["batches"], cause)
        if position is not None and _CARRIED in position:
            self._attributes.restore(position[_CARRIED])
        if position is not None and batches_before(position, epoch):
            batches = self._replayed(position)
        else:
            if position is not None and self.remembers and not self._once and _OVER not in position:
                self._catch_up(position)
            if self._once and self._passes:
                raise UsageError(
                    f"epoch {epoch} cannot begin: "
                    f"a {type(self._loader).__name__} can be iterated once only. "
                    + str(
                        Advice(
                            "made in each epoch",
                            "Make it in the body of run.epochs, or pass a list",
                        )
                    )
                )
            self._memory = {"rng": rng.capture(), **self._drawn, **self._facts_of_pass(position)}
            self._note_random_state()
            batches = self._begin_pass(epoch, self._memory, again=False)
        self._epoch, self._passes = epoch, True
        return self._note_batches(batches)

    def open_and_skip(self, epoch: int, skipped: int) -> Iterator[Any]:
        read, self._read = self._read if self._once else 0, 0
        return super().open_and_skip(epoch, max(0, skipped - read))

    def position(self, consumed: int) -> FeedPosition:
        found = {**super().position(consumed), **self._memory}
        if (last := self._last()) is not None:
            found["last"] = last
        if self.unknown is None:
            return found
        if lives := self.unrestorable_part:
            found[_LIVES] = lives
        carried = (
            self._attributes.current_values()
            if self._over
            else self._attributes.values_before_pass()
        )
        if carried:
            found |= {_CARRIED: carried, **({_OVER: True} if self._over else {})}
        return found

    def _note_random_state(self) -> None:
        self._over = False
        if self.unknown is not None:
            self._attributes.begin_pass()

    def _begin_pass(self, epoch: int, memory: FeedPosition, *, again: bool) -> Iterator[Any]:  # noqa: ARG002
        """Begin one pass. `memory`: facts noted about the pass; `again`: it replays an earlier
        pass.
        """
        return iter(self._loader)

    def _facts_of_pass(self, position: FeedPosition | None) -> dict[str, Any]:  # noqa: ARG002  likewise
        """Return facts that a replay of the pass that begins now also needs. `position`: the run's
        position before the pass.
        """
        return {}

    def _note_batches(self, batches: Iterator[Any]) -> Iterator[Any]:
        try:
            while True:
                before = rng.capture()
                batch = next(batches, _NOTHING)
                if batch is _NOTHING:
                    self._over = True
                    return
                self._last = digest_on_call(batch)  # the loop may change the batch in place
                if "first" not in self._memory:
                    self._memory["first"] = self._last()
                self._memory["last_rng"] = before
                yield batch
        finally:
            close_batches(batches)

    def _replayed(self, position: FeedPosition) -> Iterator[Any]:
        """Return the pass of `position`, after its consumed batches."""
        epoch, count = position["epoch"], position["batches"]
        self._memory = {name: position[name] for name in position if name not in _NOT_OF_A_PASS}
        self._last = lambda: position.get("last")
        self._note_random_state()
        batches, last = self._find_same_pass(position)
        if count > 1:
            next(islice(batches, count - 2, count - 2), None)  # skips those between
            rng.restore(position.get("last_rng", {}))
            last, self._read = next(batches, _NOTHING), count
        if last is _NOTHING or position.get("last") not in {None, digest(last)}:
            raise self._other_batches_error(epoch, count)
        return batches

    def _catch_up(self, position: FeedPosition) -> None:
        """Restore a loader that counts its passes to its state at the end of the epoch of
        `position`.
        """
        if position.get("first") is None:
            return
        now = rng.capture()
        batches, _ = self._find_same_pass(position)
        close_batches(batches)
        rng.restore(now)

    def _find_same_pass(self, position: FeedPosition) -> tuple[Iterator[Any], Any]:
        """Return a pass that begins like the pass of `position`, and its first batch."""
        epoch = position["epoch"]
        for _ in range(1 if self._once or not self.remembers else epoch + 1):
            rng.restore(position.get("rng", {}))
            batches = self._begin_pass(epoch, position, again=True)
            first, self._read = next(batches, _NOTHING), 1
            if first is not _NOTHING and position.get("first") in {None, digest(first)}:
                return batches, first
            close_batches(batches)
        raise self._other_batches_error(epoch, 1)

    def _other_batches_error(self, epoch: int, number: int, cause: str = "") -> Mismatch:
        return Mismatch(
            f"the {type(self._loader).__name__} in run.batches "
            f"cannot be resumed: read again, batch {number} of"
            f" epoch {epoch} is not the one of before: {cause or self._cause()}. {other_samples()}"
        )

    def _cause(self) -> str:
        return "it depends on more than the random numbers with which it began"


def close_batches(batches: Iterator[Any]) -> None:
    """Release what an iterator over batches holds, such as workers, if it can."""
    close = getattr(batches, "close", None)
    if close is not None:
        close()
