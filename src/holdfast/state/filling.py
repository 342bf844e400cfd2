"""Filling: how far memory is copied, from its first byte on. Said by those who copy, waited for by those who write.

The last byte is there only when whoever had it copied says that all of it is: a copy that an exception has cut short
never looks whole, whatever its threads still do.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ..threads import Condition


class Filling:
    """Memory of `size` bytes, filled from its start on by several threads at a time."""

    def __init__(self, size: int) -> None:
        self.size = size
        self._moved = Condition()
        self._reached = [0]  # by each thread: all that it was given before this place is there
        self._words: list[bool] = []  # that nothing more comes, and whether it is whole: the first one counts

    def share(self, starts: Sequence[int]) -> list[Callable[[int], None]]:
        """One call for each thread that copies, which says how far it has come; `starts`: where each begins."""
        self._reached = list(starts)
        return [self._reach(number) for number in range(len(starts))]

    def end(self, *, whole: bool) -> None:
        """Nothing more comes. The first word counts."""
        self._words.append(whole)
        self._moved.ring()

    def wait(self, place: int) -> bool:
        """Return when what lies before `place` is there; False: it never will be."""
        self._moved.wait_for(lambda: bool(self._words) or self._there >= place)
        return not self._words or self._words[0]

    @property
    def _there(self) -> int:
        return min(*self._reached, self.size - 1)

    def _reach(self, number: int) -> Callable[[int], None]:
        def reach(place: int) -> None:
            self._reached[number] = place
            self._moved.ring()

        return reach
