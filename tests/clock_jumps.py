"""Clocks that jump or stand while a short run trains: nothing of it may change."""

import itertools
import shutil
import time
from collections.abc import Callable

import pytest

from disk_story import EVERY, STEPS, Bench, End, Story, due
from holdfast import Store
from toy import lines

DAY_S, HOUR_S, STANDS = 86400.0, 3600.0, 40
JUMPS: dict[str, tuple[str, Callable[[float, int], float]]] = {  # which clock, and what it shows so many looks later
    "the wall clock goes back ten days": ("time", lambda now_s, _: now_s - 10 * DAY_S),
    "the wall clock goes ten days forward": ("time", lambda now_s, _: now_s + 10 * DAY_S),
    "the steady clock leaps ten hours": ("monotonic", lambda now_s, _: now_s + 10 * HOUR_S),
    "the steady clock stands": ("monotonic", lambda now_s, looks: now_s if looks >= STANDS else -1.0),
}


class Clock:
    """A clock that jumps at its nth look, or stands for some."""

    def __init__(self, jump: str, nth: int) -> None:
        self.name, self._shown = JUMPS[jump]
        self.real, self._nth, self.looks = getattr(time, self.name), nth, 0
        self._last_s = 0.0

    @property
    def hit(self) -> bool:
        return self.looks > self._nth

    def __call__(self) -> float:
        self.looks += 1
        now_s = self.real()
        if not self.hit:
            self._last_s = now_s
            return now_s
        shown_s = self._shown(now_s, self.looks - self._nth)
        return self._last_s if shown_s < 0 else shown_s


def _trial(bench: Bench, jump: str, nth: int) -> bool:
    """Let a clock jump at its nth look. Return whether the run looked so often."""
    root, clock = bench.fresh(), Clock(jump, nth)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(time, clock.name, clock)
        told = Story(root).tell()
    assert told.error is None, f"look {nth}: {told.error}"
    assert bench.wanted == End(told.end.value, lines(root)), f"look {nth}"
    assert bench.wanted_saves == due(root), f"look {nth}"
    assert [STEPS - EVERY, STEPS] == [each.step for each in Store(root).checkpoints()], f"look {nth}"
    shutil.rmtree(root.parent)
    return clock.hit


def enumerate_jumps(bench: Bench, jump: str, *, stride: int = 1) -> int:
    """Let a clock jump at each `stride`-th look at it; return how often that was survived."""
    return next(number for number, nth in enumerate(itertools.count(0, stride)) if not _trial(bench, jump, nth))
