"""How long the parts of a script took, reported by rank 0."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

from ..terminal import say
from .world import rank_of_process


class TimestampedTimer:
    """Report the time since the last report, and the total.

        timer = TimestampedTimer()
        ...
        timer.report("loading the data")

    No clock that is set meanwhile changes a duration. Tracked by a `Run`, the total goes on after a
    resume.

    Args:
        report: what the first line says.
        start_time: when the first part began, as time.time() gives it; by default now.
        running: seconds that were spent before.
        tell: what is called with each line, on rank 0; by default it goes to stderr.
    """

    def __init__(
        self,
        report: str = "Start",
        start_time: float | None = None,
        running: float = 0.0,
        tell: Callable[[str], object] = say,
    ) -> None:
        ago_s = 0.0 if start_time is None else time.time() - start_time
        self._last_s = time.monotonic() - ago_s
        self._tell = tell
        self.running = running
        self._say(report, 0.0)

    def report(self, what: str) -> float:
        """Print that `what` is done, and how long it took; return the seconds."""
        now_s = time.monotonic()
        took_s, self._last_s = now_s - self._last_s, now_s
        self.running += took_s
        self._say(what, took_s)
        return took_s

    def state_dict(self) -> dict[str, Any]:
        """Return the seconds that were counted so far."""
        return {"running": self.running}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue to count from the seconds in `state`."""
        self.running = float(state["running"])

    def _say(self, what: str, took_s: float) -> None:
        if rank_of_process() == 0:
            when = time.strftime("%Y-%m-%d %H:%M:%S")
            self._tell(
                f"[ {when} ] {what:<70}{1000 * took_s:>12,.3f} ms, {self.running:>12,.2f} s total"
            )
