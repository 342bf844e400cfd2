"""Filling: how far memory is copied, from its first byte on. Said by those who copy, waited for by those who write.

And who copies: a thread that Ctrl-C has made the pool forget would write into memory that is somebody else's by then.

The last byte is there only when whoever had it copied says that all of it is: a copy that an exception has cut short
never looks whole, whatever its threads still do.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any


class Filling:
    """Memory of `size` bytes, filled from its start on by several threads at a time."""

    def __init__(self, size: int) -> None:
        self.size = size
        self._lock = threading.Lock()  # taken as it is: Ctrl-C in the midst of `with self._moved` would leave it locked
        self._moved = threading.Condition(self._lock)
        self._reached = [0]  # by each thread: all that it was given before this place is there
        self._over = self._whole = False

    def share(self, starts: Sequence[int]) -> list[Callable[[int], None]]:
        """One call for each thread that copies, which says how far it has come; `starts`: where each begins."""
        self._reached = list(starts)
        return [self._reach(number) for number in range(len(starts))]

    def end(self, *, whole: bool) -> None:
        """Nothing more comes. The first word counts."""
        with self._lock:
            self._whole = self._whole or (whole and not self._over)
            self._over = True
            self._moved.notify_all()

    def wait(self, place: int) -> bool:
        """Return when what lies before `place` is there; False: it never will be."""
        with self._lock:
            self._moved.wait_for(lambda: self._over or self._there >= place)
            return self._whole or not self._over

    @property
    def _there(self) -> int:
        return min(*self._reached, self.size - 1)

    def _reach(self, number: int) -> Callable[[int], None]:
        def reach(place: int) -> None:
            with self._lock:
                self._reached[number] = place
                self._moved.notify_all()

        return reach


class Crew:
    """Threads at work, whoever started them. `dismiss` waits for them, and lets nobody begin afterwards."""

    def __init__(self) -> None:
        self.dismissed = False
        self._lock = threading.Lock()
        self._at_work: list[threading.Lock] = []  # held by one each; a Condition would turn Ctrl-C into a RuntimeError

    def work(self, function: Callable[..., None], *given: Any) -> None:
        """Call `function`, unless it is too late for that."""
        mine = threading.Lock()
        with mine:
            with self._lock:
                if self.dismissed:
                    return
                self._at_work.append(mine)
            function(*given)

    def dismiss(self) -> None:
        """Return when nobody is at work any more. Who looks at `dismissed` ends early."""
        with self._lock:
            self.dismissed = True
        for each in self._at_work:
            each.acquire()
