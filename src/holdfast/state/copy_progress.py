"""Copy progress: how much of a memory is copied, from its first byte. Copying threads report it;
writing threads wait for it.

The last byte counts as copied only when `end` says that the copy is whole. So a copy that an
exception has cut short never looks whole, whatever its threads still do.
"""

from __future__ import annotations

from collections.abc import Sequence

from ..threads import Condition


class CopyProgress:
    """The progress of a copy of `size` bytes, in portions that begin at `starts`, by several
    threads.
    """

    def __init__(self, size: int, starts: Sequence[int]) -> None:
        self.size = size
        self._moved = Condition()
        self._starts = [*starts, size]
        self._filled = [False] * len(starts)
        self._front = 0  # all portions before this one are filled; perhaps more
        # whether the copy was complete, at each call of `end`: the first call counts
        self._ends: list[bool] = []

    def report_copied(self, number: int) -> None:
        """Report that portion `number` is copied."""
        self._filled[number] = True
        self._moved.notify_all()

    def end(self, *, whole: bool) -> None:
        """Mark the copy as ended. Only the first call counts."""
        self._ends.append(whole)
        self._moved.notify_all()

    def wait_until(self, place: int) -> bool:
        """Wait until everything before `place` is copied; return False if it never will be."""
        self._moved.wait_for(
            lambda: bool(self._ends) or (place < self.size and place <= self._copied_bytes())
        )
        return not self._ends or self._ends[0]

    def _copied_bytes(self) -> int:
        front = self._front
        while front < len(self._filled) and self._filled[front]:
            front += 1
        self._front = front
        return self._starts[front]
