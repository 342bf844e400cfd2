"""cycling_utils' metrics and timer: Holdfast's, with their names, arguments and attributes."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any, Self

from .. import terminal
from ..torch import metrics, timing


class MetricsTracker(metrics.MetricsTracker):
    """Adds up numbers over all ranks and the steps of an epoch. It needs neither a GPU nor a
    process group.

        metrics.update({"seen": len(images), "loss": loss.item()})
        metrics.reduce()              # `local` is the sum over all ranks now, and part of `agg`
        metrics.reset_local()
        ...
        metrics.end_epoch()           # appends `agg` to `epoch_reports`

    Calling `reduce` again adds only what was not reduced yet.
    """

    def __init__(self) -> None:
        super().__init__()

    def end_epoch(self) -> Self:
        """Append what was reduced in this epoch to `epoch_reports`,
        without values that were not reduced.
        """
        self.reset_local()
        return super().end_epoch()

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> Self:
        """Restore what `state_dict` returned, here or in cycling_utils."""
        return super().load_state_dict(state_dict)


class TimestampedTimer(timing.TimestampedTimer):
    """Prints, on rank 0, the time since the last report and the total."""

    def __init__(
        self, report: str | None = None, start_time: float | None = None, running: float = 0
    ) -> None:
        super().__init__(report or "Start", start_time, running, tell=terminal.tell)

    @property
    def start_time(self) -> float:
        """The time at which the part that is not reported yet began,
        on the clock of time.time().
        """
        return time.time() - (time.monotonic() - self._last_s)

    @start_time.setter
    def start_time(self, start_time: float) -> None:
        self._last_s = time.monotonic() - (time.time() - start_time)

    def report(self, annot: str, ret: bool = False) -> float | None:  # type: ignore[override]
        """Print that `annot` is done, and how long it took. Return the seconds if `ret`."""
        took_s = super().report(annot)
        return took_s if ret else None

    def __getstate__(self) -> dict[str, Any]:
        return {"start_time": self.start_time, "running": self.running}

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Convert the clock: scripts put the timer into a checkpoint, and another process's
        monotonic clock differs.
        """
        self._tell = terminal.tell
        self.start_time, self.running = state["start_time"], state["running"]
