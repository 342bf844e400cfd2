"""Measured: how long the saves of a run took, from its journals."""

from __future__ import annotations

from pathlib import Path

from .. import journal
from ..cluster import job_leader


def longest_save_s(directory: str | Path) -> float | None:
    """Return the seconds of the longest save in the last attempt that made any; None if there was
    none.

    `directory` is a run's, or that of a supervisor which has the run's path.
    """
    place = Path(directory)
    for log in reversed(journal.logs(job_leader.reported_run_path(place) or place)):
        took = [
            float(event["save_s"])
            for event in log.events
            if event.get("event") == "saved" and "save_s" in event
        ]
        if took:
            return max(took)
    return None
