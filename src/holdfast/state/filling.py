"""Filling: how much of a memory is copied, from its first byte. Copying threads report it; writing threads wait for it.

The last byte counts as copied only when `end` says that the copy is whole. So a copy that an exception has cut short
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
        self._reached = [0]  # for each thread: up to which place its share is copied
        self._ends: list[bool] = []  # whether the copy was complete, at each call of `end`: the first call counts

    def share(self, starts: Sequence[int]) -> list[Callable[[int], None]]:
        """Return for each copying thread the function by which it reports its progress; `starts`: where each begins."""
        self._reached = list(starts)
        return [self._reach(number) for number in range(len(starts))]

    def end(self, *, whole: bool) -> None:
        """Mark the copy as ended. Only the first call counts."""
        self._ends.append(whole)
        self._moved.ring()

    def wait(self, place: int) -> bool:
        """Wait until everything before `place` is copied; False: it never will be."""
        self._moved.wait_for(lambda: bool(self._ends) or self._there >= place)
        return not self._ends or self._ends[0]

    @property
    def _there(self) -> int:
        return min(*self._reached, self.size - 1)

    def _reach(self, number: int) -> Callable[[int], None]:
        def reach(place: int) -> None:
            self._reached[number] = place
            self._moved.ring()

        return reach
