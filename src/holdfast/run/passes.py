"""Passes: what run.epochs, run.steps, run.batches and run.enumerate return, and which loops are in progress."""

from __future__ import annotations

import inspect
import weakref
from collections.abc import Callable, Generator, Iterable, Iterator
from typing import Any, Generic, NamedTuple, TypeVar

from ..errors import UsageError

T = TypeVar("T")


class Logged(NamedTuple):
    """What was logged since the last safe point."""

    values: dict[str, float | str]
    early: set[str]  # names of what was measured before the step began


class Walk:
    """One `for` over a loop, from its first pass until it ends or is left.

    Only the `for` holds the generator. So Python closes it as soon as the `for` is left: that shows a `break`.
    """

    def __init__(self, kind: str) -> None:
        self.kind = kind  # "epochs", "steps" or "batches"
        self.closed = False  # the run closed it: its epoch or its block has ended
        self._generator: Callable[[], Generator[Any, None, None] | None] = lambda: None

    def begin(self, generator: Generator[T, None, None]) -> Iterator[T]:
        self._generator = weakref.ref(generator)
        return _Walking(self, generator)

    def close(self) -> None:
        """Close the generator as if its loop was left, unless it is the caller."""
        generator = self._generator()
        if generator is not None and inspect.getgeneratorstate(generator) != inspect.GEN_RUNNING:
            self.closed = True
            generator.close()


class _Walking(Iterator[T]):
    """The iterator that a `for` holds; nothing else holds it."""

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
    """The passes of a loop that are still to do. Each `for` walks them; `len()` and `done` begin nothing.

    `len()` counts the whole loop, passes done before included; `done` counts those. A progress bar
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
        """How many passes of the whole loop are complete; inside of run.epochs(), of this epoch."""
        return self._done()

    def __repr__(self) -> str:
        return f"<run.{self._kind}(): {self.done} done>"


class Walks:
    """The loops of one attempt: which are in progress, and which were left early."""

    def __init__(self) -> None:
        self.open: list[Walk] = []  # begun and not ended, outermost first
        self.named: set[str] = set()  # loaders begun by this attempt: in this epoch, or outside of run.epochs()
        self.totals: dict[str, int] = {}  # up to which this attempt has walked outermost loops, by their kind
        self.raised: BaseException | None = None  # the last error that came out of a loop
        self._outer: tuple[str, int] | None = None  # the outermost loop, begun and not ended, and its total
        self._outer_logged: Logged | None = None  # logged in the outermost loop's body, which was left
        self._left_pass: Logged | None = None  # logged in a pass that was left and is not counted yet

    @property
    def kinds(self) -> tuple[str, ...]:
        return tuple(walk.kind for walk in self.open)

    def close_inside(self, walk: Walk | None = None) -> None:
        """Close the walks inside of `walk` (without it, all) that are still held after their loops were left."""
        keep = 0 if walk is None else self.open.index(walk) + 1
        for inner in reversed(self.open[keep:]):
            inner.close()

    def begin_outer(self, kind: str, total: int) -> None:
        self._outer, self._outer_logged = (kind, total), None

    def leave_outer(self, logged: Logged) -> None:
        """The outermost loop was left: `take_outer` says so when the script goes on."""
        self._outer_logged = logged

    def take_outer(self) -> tuple[tuple[str, int] | None, Logged | None]:
        """The outermost loop that did not come to its end, if there is one, and what was logged in its body. Once."""
        outer, self._outer = self._outer, None
        logged, self._outer_logged = self._outer_logged, None
        return outer, logged

    def leave_pass(self, logged: Logged) -> None:
        """The pass in progress was left, by `break` for one: it is counted when the script goes on."""
        self._left_pass = logged

    def take_left_pass(self) -> Logged | None:
        """What was logged in the pass that was left and is to be counted now, once; None: there is none."""
        left, self._left_pass = self._left_pass, None
        return left

    def failed(self, error: BaseException) -> None:
        self.raised = error


def length_of(loader: Any, what: str) -> int:
    """len(loader).

    Raises:
        TypeError: the loader has no length; the message names `what`.
    """
    try:
        return len(loader)
    except (TypeError, NotImplementedError) as error:
        raise TypeError(f"{what} has no len(): {error}") from error
