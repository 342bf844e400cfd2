"""Witness: what the run that the command holds says of itself, for launchers that eat exit codes."""

from __future__ import annotations

import os
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from .. import journal
from ..cluster import outermost
from ..errors import StoreError
from ..store.format import Name, parse_name
from ..store.store import Store

LOOKED_AT_BYTES = 1 << 18  # of the end of a journal that grows


class Said(NamedTuple):
    """What one start of the command left in its run."""

    event: str = ""  # "stop", "end", "failed": the run's last word; "" when it died without one, or there is no run
    reason: str = ""
    progressed: bool | None = None  # the run's newest checkpoint is newer than ever; None: there is no run to tell


class Witness:
    """Asked around each start of the command; remembers how far the run had come."""

    def __init__(self, place: Path) -> None:
        self._place = place
        self._furthest: dict[Path, tuple[int, int]] = {}
        self._attempts: dict[Path, int] = {}
        self.run: Path | None = outermost.run_of(place)
        self.save_s = 0.0  # what the run's saves have taken, at most
        self.before()

    def _take_saves(self, events: Iterable[journal.Event]) -> None:
        self.save_s = max([self.save_s, *(event["save_s"] for event in events if event["event"] == "saved")])

    def before(self) -> None:
        """Look at the run as it is before a start."""
        if self.run is not None:
            logs = journal.logs(self.run)
            self._attempts[self.run] = max([0, *(log.attempt for log in logs)])
            self._take_saves([event for log in logs[-1:] for event in log.events])
            self._furthest[self.run] = max(self._furthest.get(self.run, (-1, 0)), _newest(self.run))

    def look(self) -> None:
        """While it runs: learn how long its saves take."""
        self.run = outermost.run_of(self._place)
        if self.run is not None:
            for log in sorted(self.run.glob("attempts/*/attempt-*.jsonl"), key=lambda path: path.stat().st_mtime)[-1:]:
                with suppress(OSError):
                    self._take_saves(_last_events(log))

    def after(self, began_unix_s: float) -> Said:
        """What that start, which began then, has left."""
        self.run = run = outermost.run_of(self._place)
        if run is None:
            return Said()
        known = self._attempts.get(run)
        ours = [
            log.events
            for log in journal.logs(run)
            if log.events and (log.attempt > known if known is not None else _time(log.events[0]) >= began_unix_s)
        ]
        if not ours:
            return Said(progressed=None if known is None else False)
        newest = _newest(run)
        progressed = newest > self._furthest.get(run, (-1, 0))
        last = ours[-1][-1]
        if last.get("event") not in journal.CLOSING:
            return Said(progressed=progressed)
        return Said(str(last["event"]), str(last.get("reason") or last.get("error") or ""), progressed)


def _last_events(path: Path) -> list[journal.Event]:
    with open(path, "rb") as file:
        file.seek(max(0, file.seek(0, os.SEEK_END) - LOOKED_AT_BYTES))
        return journal.parse(file.read())


def _newest(run: Path) -> tuple[int, int]:
    """Where the run's newest checkpoint lies; before any other when it has none."""
    with suppress(StoreError, OSError):
        return (parse_name(Store(run).latest().path.name) or Name(0)).order
    return (-1, 0)


def _time(event: dict[str, Any]) -> float:
    time = event.get("time")
    return float(time) if isinstance(time, int | float) else 0.0
