"""Passes: what run.epochs, run.steps, run.batches and run.enumerate return: what a `for` goes through."""

from __future__ import annotations

import inspect
import weakref
from collections.abc import Callable, Generator, Iterable, Iterator
from typing import Any, Generic, TypeVar

from ..errors import UsageError

T = TypeVar("T")


class Walk:
    """One walk of a loop, from its first pass until it ends or is left.

    The generator is not kept alive: it closes as soon as the loop lets go of it, and that is how a `break` is noticed.
    """

    def __init__(self, kind: str) -> None:
        self.kind = kind  # "epochs", "steps" or "batches"
        self.closed = False  # by the run: its epoch or its block has ended
        self._generator: Callable[[], Generator[Any, None, None] | None] = lambda: None

    def begin(self, generator: Generator[T, None, None]) -> Iterator[T]:
        self._generator = weakref.ref(generator)
        return _Walking(self, generator)

    def close(self) -> None:
        """Close the generator as if its loop had let go of it, unless this is called from inside of it."""
        generator = self._generator()
        if generator is not None and inspect.getgeneratorstate(generator) != inspect.GEN_RUNNING:
            self.closed = True
            generator.close()


class _Walking(Iterator[T]):
    """What a loop holds, and nothing else does."""

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
    """What is still to do of a loop. Each `for` walks it; `len()` and `done` begin nothing.

    `len()` is the whole loop's count, what was done before included; `done` is how much of it is done. A progress bar
    takes both: `tqdm(batches, initial=batches.done)`.
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
        """How many passes of the whole loop are complete: of this epoch, inside of run.epochs()."""
        return self._done()

    def __repr__(self) -> str:
        return f"<run.{self._kind}(): {self.done} done>"


def length_of(loader: Any, what: str) -> int:
    """len(loader).

    Raises:
        TypeError: it does not know; the message says so of `what`.
    """
    try:
        return len(loader)
    except (TypeError, NotImplementedError) as error:
        raise TypeError(f"{what} has no len(): {error}") from error
