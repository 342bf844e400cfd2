"""Retrying: repeats the calls to a place that does not answer.
Whoever uses the place need not know of it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import tenacity

from .place import Pieces, Place, Silent

FIRST_WAIT_S, LONGEST_WAIT_S = 0.2, 30.0
SLOWEST = 4e6  # bytes per second at which a place verifies at least

# called with the size of each piece before it passes; an exception from it ends the call
Watch = Callable[[int], None]


def ignore_progress(_: int) -> None:
    """Ignore the progress."""


class RetryingPlace:
    """A place whose calls are repeated while it is silent, until `budget_s` seconds have passed
    without progress.

    `tell` gets each error before the pause that follows it.
    """

    def __init__(
        self,
        place: Place,
        tell: Callable[[BaseException], None],
        *,
        watch: Watch = ignore_progress,
        pause: Callable[[float], None] = time.sleep,
        budget_s: float = 120.0,
    ) -> None:
        self.watch, self.budget_s = watch, budget_s
        self._place, self._tell, self._pause = place, tell, pause
        self.shown = place.shown
        self._failing_s: float | None = None  # the time of the first error since there was progress
        self._passed, self._farthest = 0, 0  # bytes in this try, and in the best one
        # progress is expected after this time; infinity: nothing is under way
        self._allowed_s = float("inf")

    @property
    def atomic(self) -> bool:
        return self._place.atomic

    @contextmanager
    def watching_progress(self, watch: Watch) -> Iterator[None]:
        """Within this block, call `watch` with the size of each transferred piece."""
        before, self.watch = self.watch, watch
        try:
            yield
        finally:
            self.watch = before

    def close(self) -> None:
        self._place.close()

    def read(self, path: str) -> bytes:
        with self._retrying() as again:
            return again(self._place.read, path)

    def names(self, path: str) -> list[str]:
        with self._retrying() as again:
            return again(self._place.names, path)

    def get(self, path: str) -> Iterator[bytes]:
        """Yield the file. After an error it is read anew, and what has passed before is skipped."""
        done = 0
        with self._retrying() as again:
            for attempt in again:
                with attempt:
                    skipped = done
                    for piece in self._place.get(path):
                        fresh = piece[skipped:]
                        skipped = max(0, skipped - len(piece))
                        if fresh:
                            done += len(fresh)
                            self._note_progress(len(fresh))
                            yield fresh

    def check(self, path: str, size_bytes: int, pieces: Pieces) -> str:
        with self._retrying() as again:
            return again(self._place.check, path, size_bytes, self._watch_pieces(pieces))

    def create(self, path: str, data: bytes) -> None:
        with self._retrying() as again:
            again(self._place.create, path, data)

    def put(self, path: str, size_bytes: int, pieces: Pieces) -> str:
        with self._retrying() as again:
            return again(self._place.put, path, size_bytes, self._watch_pieces(pieces))

    def copy(self, source: str, path: str) -> bool:
        with self._retrying() as again:
            return again(self._place.copy, source, path)

    def remove(self, path: str) -> None:
        with self._retrying() as again:
            again(self._place.remove, path)

    def is_stuck(self, patience_s: float) -> bool:
        """Whether a call has made no progress for so long beyond the budget: the library hangs."""
        return time.monotonic() - self._allowed_s > self.budget_s + patience_s

    @contextmanager
    def _retrying(self) -> Iterator[tenacity.Retrying]:
        self._failing_s, self._allowed_s = None, time.monotonic()
        self._passed = self._farthest = 0
        try:
            yield tenacity.Retrying(
                retry=tenacity.retry_if_exception_type(Silent),
                wait=tenacity.wait_random_exponential(multiplier=FIRST_WAIT_S, max=LONGEST_WAIT_S),
                stop=self._is_budget_spent,
                before=lambda _: self.watch(0),
                before_sleep=self._note_failure,
                sleep=self._pause,
                reraise=True,
            )
        finally:
            self._allowed_s = float("inf")

    def _watch_pieces(self, pieces: Pieces) -> Pieces:
        def passing() -> Iterator[bytes]:
            self._passed = 0
            for piece in pieces():
                self._note_progress(len(piece))
                yield piece

        return passing

    def _note_progress(self, size: int) -> None:
        self.watch(size)
        self._allowed_s = max(self._allowed_s, time.monotonic()) + size / SLOWEST
        self._passed += size
        if self._passed > self._farthest:  # bytes that are sent once more are no progress
            self._farthest, self._failing_s = self._passed, None

    def _is_budget_spent(self, state: tenacity.RetryCallState) -> bool:
        """Whether the next try would come too late;
        counted from the first error since more than ever went through.
        """
        now_s = time.monotonic()
        self._failing_s = self._failing_s or now_s
        return now_s - self._failing_s + state.upcoming_sleep > self.budget_s

    def _note_failure(self, state: tenacity.RetryCallState) -> None:
        self._allowed_s = max(self._allowed_s, time.monotonic())
        if state.outcome is not None and (error := state.outcome.exception()) is not None:
            self._tell(error)
