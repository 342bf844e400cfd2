"""Passes: what run.epochs, run.steps, run.batches and run.enumerate return, and which loops are in
progress.

Their arguments are checked at once; an error shows what to write instead.
"""

from __future__ import annotations

import sys
import weakref
from collections.abc import Callable, Generator, Iterable, Iterator
from operator import index
from types import GeneratorType
from typing import Any, Generic, NamedTuple, TypeVar

import msgspec

from ..errors import UsageError

T = TypeVar("T")

ENDLESS = sys.maxsize  # the total of a run.steps() without one


class LoggedMetrics(NamedTuple):
    """The metrics logged since the last safe point."""

    values: dict[str, float | str]
    early: set[str]  # names of metrics logged before the step began


class ForLoop:
    """One `for` statement over a loop, from its first pass until it ends or is left.

    Only the `for` holds the generator. Python therefore closes it as soon as the `for` is left,
    which shows a `break`.
    """

    def __init__(self, kind: str) -> None:
        self.kind = kind  # "epochs", "steps" or "batches"
        self.closed = False  # the run closed it, because its epoch or its block ended
        self._generator: Callable[[], Generator[Any, None, None] | None] = lambda: None

    def start_iterator(self, generator: Generator[T, None, None]) -> Iterator[T]:
        self._generator = weakref.ref(generator)
        return _LoopIterator(self, generator)

    def close(self) -> None:
        """Close the generator as if its loop had been left;
        do nothing if the generator itself is the caller.
        """
        generator = self._generator()
        if isinstance(generator, GeneratorType) and not generator.gi_running:
            self.closed = True
            generator.close()


class _LoopIterator(Iterator[T]):
    """The iterator that the `for` statement holds. No other object holds it, so leaving the
    loop closes it.
    """

    def __init__(self, walk: ForLoop, generator: Generator[T, None, None]) -> None:
        self._walk, self._generator = walk, generator

    def __next__(self) -> T:
        try:
            return next(self._generator)
        except StopIteration:
            if self._walk.closed:
                raise UsageError(
                    f"this iterator of run.{self._walk.kind}() was left, "
                    "and its epoch or its block has ended since: "
                    "begin a new `for`"
                ) from None
            raise


class LoopIterable(Iterable[T], Generic[T]):
    """The remaining passes of a loop. Each `for` iterates over them; `len()` and `done` start
    nothing.

    `len()` counts the whole loop, including completed passes; `done` counts the completed ones. A
    progress bar takes both: `tqdm(batches, initial=batches.done)`.
    """

    def __init__(
        self,
        kind: str,
        walk: Callable[[ForLoop], Generator[T, None, None]],
        length: Callable[[], int],
        done: Callable[[], int],
    ) -> None:
        self._kind, self._walk, self._length, self._done = kind, walk, length, done

    def __iter__(self) -> Iterator[T]:
        walk = ForLoop(self._kind)
        return walk.start_iterator(self._walk(walk))

    def __len__(self) -> int:
        return self._length()

    @property
    def done(self) -> int:
        """Number of completed passes of the whole loop; inside run.epochs(), of this epoch."""
        return self._done()

    def __repr__(self) -> str:
        return f"<run.{self._kind}(): {self.done} done>"


class LoopStack(msgspec.Struct):
    """The loops of one attempt that are in progress, and those that were left early."""

    open: list[ForLoop] = []  # begun and not ended, outermost first
    # loaders that this attempt began: in this epoch, or outside run.epochs()
    named: set[str] = set()
    # kind of an outermost loop -> total up to which this attempt ran it
    totals: dict[str, int] = {}
    raised: BaseException | None = None  # the last error that left a loop
    _outer: tuple[str, int] | None = None  # the outermost loop in progress, and its total
    # metrics logged in the body of the outermost loop, which was left
    _outer_logged: LoggedMetrics | None = None
    # metrics logged in a pass that was left and is not counted yet
    _left_pass: LoggedMetrics | None = None

    @property
    def kinds(self) -> tuple[str, ...]:
        return tuple(walk.kind for walk in self.open)

    def close_inside(self, walk: ForLoop | None = None) -> None:
        """Close the walks inside `walk` (without it, all) that the script still holds after
        leaving their loops.
        """
        keep = 0 if walk is None else self.open.index(walk) + 1
        for inner in reversed(self.open[keep:]):
            inner.close()

    def begin_outermost(self, kind: str, total: int) -> None:
        self._outer, self._outer_logged = (kind, total), None

    def leave_outermost(self, logged: LoggedMetrics) -> None:
        """Note that the outermost loop was left;
        `take_left_outermost` returns it when the script continues.
        """
        self._outer_logged = logged

    def take_left_outermost(self) -> tuple[tuple[str, int] | None, LoggedMetrics | None]:
        """Return, once, the outermost loop that was left early, and the metrics logged in
        its body.
        """
        outer, self._outer = self._outer, None
        logged, self._outer_logged = self._outer_logged, None
        return outer, logged

    def leave_pass(self, logged: LoggedMetrics) -> None:
        """Note that the current pass was left, for example by `break`. It is counted when the
        script continues.
        """
        self._left_pass = logged

    def take_left_pass(self) -> LoggedMetrics | None:
        """Return, once, the metrics of a left pass that is to be counted now; None if there
        is none.
        """
        left, self._left_pass = self._left_pass, None
        return left

    def note_error(self, error: BaseException) -> None:
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


def parse_epochs(total: int | range) -> range:
    """Return the range of epochs of run.epochs(total).

    Raises:
        UsageError: `total` is neither a number of epochs nor a range of them with step 1.
    """
    if isinstance(total, range):
        if total.step != 1 or total.start < 0:
            raise UsageError(
                f"run.epochs({total!r}): give a range with "
                "step 1 and no negative start: range(1, 11)"
            )
        return range(total.start, max(total.start, total.stop))
    return range(
        _parse_whole_number(
            total,
            f"run.epochs({total!r}): give a number of epochs, "
            "as in run.epochs(10), or range(1, 11)",
        )
    )


def parse_steps(total: int) -> int:
    """Check the number of steps.

    Raises:
        UsageError: `total` is not a number of steps.
    """
    return _parse_whole_number(
        total,
        f"run.steps({total!r}): give a number of steps, "
        "as in run.steps(1000); run.steps() has no end",
    )


def parse_accumulate(accumulate: int) -> int:
    """Check the number of batches per group.

    Raises:
        UsageError: `accumulate` is not a whole number of at least 1.
    """
    asked = (
        f"accumulate={accumulate!r}: at least 1 is wanted, as in run.batches(loader, accumulate=4)"
    )
    found = _parse_whole_number(accumulate, asked)
    if found < 1:
        raise UsageError(asked)
    return found


def parse_consumed(batches: int, least: int) -> int:
    """Check the number of batches that a step consumed.

    Raises:
        UsageError: `batches` is not a whole number of at least `least`.
    """
    return _parse_whole_number(
        batches,
        f"batches={batches!r}: at least {least} is wanted, the batches that the step consumed",
        least,
    )


def parse_loader_name(name: str) -> str:
    """Check the name of a loader.

    Raises:
        UsageError: `name` cannot name a loader's position.
    """
    if not isinstance(name, str) or not name:
        raise UsageError(
            f"name={name!r}: give each loader a name of its own, "
            'as in run.batches(loader, name="train")'
        )
    return name


def parse_start(start: int) -> int:
    """Check the first number of an enumeration.

    Raises:
        UsageError: run.enumerate() cannot count from `start`.
    """
    asked = (
        f"start={start!r}: give a whole number; "
        'the loader\'s name is name=, as in run.enumerate(loader, name="a")'
    )
    return _parse_whole_number(start, asked, least=-ENDLESS)


def _parse_whole_number(value: Any, asked: str, least: int = 0) -> int:
    try:
        found = None if isinstance(value, bool) else index(value)
    except TypeError:  # a float, a string, None
        found = None
    if found is None or not least <= found <= ENDLESS:
        raise UsageError(asked)
    return found
