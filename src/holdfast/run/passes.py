"""Passes: what run.epochs, run.steps, run.batches and run.enumerate return, and which loops are in progress."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Generator, Iterable, Iterator
from types import GeneratorType
from typing import Any, Generic, NamedTuple, TypeVar

from ..errors import UsageError

T = TypeVar("T")


class Logged(NamedTuple):
    """The metrics logged since the last safe point."""

    values: dict[str, float | str]
    early: set[str]  # names of metrics logged before the step began


class Walk:
    """One `for` statement over a loop, from its first pass until it ends or is left.

    Only the `for` holds the generator. Python therefore closes it as soon as the `for` is left, which shows a `break`.
    """

    def __init__(self, kind: str) -> None:
        self.kind = kind  # "epochs", "steps" or "batches"
        self.closed = False  # the run closed it, because its epoch or its block ended
        self._generator: Callable[[], Generator[Any, None, None] | None] = lambda: None

    def begin(self, generator: Generator[T, None, None]) -> Iterator[T]:
        self._generator = weakref.ref(generator)
        return _Walking(self, generator)

    def close(self) -> None:
        """Close the generator as if its loop had been left; do nothing if the generator itself is the caller."""
        generator = self._generator()
        if isinstance(generator, GeneratorType) and not generator.gi_running:
            self.closed = True
            generator.close()


class _Walking(Iterator[T]):
    """The iterator that a `for` holds. No other object holds it."""

    def __init__(self, walk: Walk, generator: Generator[T, None, None]) -> None:
        self._walk, self._generator = walk, generator

    def __next__(self) -> T:
        try:
            return next(self._generator)
        except StopIteration:
            if self._walk.closed:
                raise UsageError(
                    f"this iterator of run.{self._walk.kind}() was left, and its epoch or its block has ended since: "
                    "begin a new `for`"
                ) from None
            raise


class Passes(Iterable[T], Generic[T]):
    """The remaining passes of a loop. Each `for` iterates over them; `len()` and `done` start nothing.

    `len()` counts the whole loop, including completed passes; `done` counts the completed ones. A progress bar takes
    both: `tqdm(batches, initial=batches.done)`.
    """

    def __init__(
        self,
        kind: str,
        walk: Callable[[Walk], Generator[T, None, None]],
        length: Callable[[], int],
        done: Callable[[], int],
    ) -> None:
        self._kind, self._walk, self._length, self._done = kind, walk, length, done

    def __iter__(self) -> Iterator[T]:
        walk = Walk(self._kind)
        return walk.begin(self._walk(walk))

    def __len__(self) -> int:
        return self._length()

    @property
    def done(self) -> int:
        """Number of completed passes of the whole loop; inside run.epochs(), of this epoch."""
        return self._done()

    def __repr__(self) -> str:
        return f"<run.{self._kind}(): {self.done} done>"


class Walks:
    """The loops of one attempt: those in progress, and those left early."""

    def __init__(self) -> None:
        self.open: list[Walk] = []  # begun and not ended, outermost first
        self.named: set[str] = set()  # loaders that this attempt began: in this epoch, or outside run.epochs()
        self.totals: dict[str, int] = {}  # kind of an outermost loop -> total up to which this attempt ran it
        self.raised: BaseException | None = None  # the last error that left a loop
        self._outer: tuple[str, int] | None = None  # the outermost loop in progress, and its total
        self._outer_logged: Logged | None = None  # metrics logged in the body of the outermost loop, which was left
        self._left_pass: Logged | None = None  # metrics logged in a pass that was left and is not counted yet

    @property
    def kinds(self) -> tuple[str, ...]:
        return tuple(walk.kind for walk in self.open)

    def close_inside(self, walk: Walk | None = None) -> None:
        """Close the walks inside `walk` (without it, all) that the script still holds after leaving their loops."""
        keep = 0 if walk is None else self.open.index(walk) + 1
        for inner in reversed(self.open[keep:]):
            inner.close()

    def begin_outer(self, kind: str, total: int) -> None:
        self._outer, self._outer_logged = (kind, total), None

    def leave_outer(self, logged: Logged) -> None:
        """Note that the outermost loop was left; `take_outer` returns it when the script continues."""
        self._outer_logged = logged

    def take_outer(self) -> tuple[tuple[str, int] | None, Logged | None]:
        """Return, once, the outermost loop that was left early, if there is one, and the metrics logged in its body."""
        outer, self._outer = self._outer, None
        logged, self._outer_logged = self._outer_logged, None
        return outer, logged

    def leave_pass(self, logged: Logged) -> None:
        """Note that the current pass was left, for example by `break`. It is counted when the script continues."""
        self._left_pass = logged

    def take_left_pass(self) -> Logged | None:
        """Return, once, the metrics logged in a left pass that is to be counted now; None when there is none."""
        left, self._left_pass = self._left_pass, None
        return left

    def failed(self, error: BaseException) -> None:
        self.raised = error


def length_of(loader: Any, what: str) -> int:
    """Return len(loader).

    Raises:
        TypeError: the loader has no length; the message names `what`.
    """
    try:
        return len(loader)
    except (TypeError, NotImplementedError) as error:
        raise TypeError(f"{what} has no len(): {error}") from error
