"""Witness: reads the journal of the command's run, because launchers change exit codes."""

from __future__ import annotations

import os
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from .. import disk, journal, scan
from ..cluster import job_leader
from ..errors import StoreError
from ..journal import CLOSING, Event
from ..store.format import CheckpointName, parse_name
from ..store.store import Store
from .causes import Error

# of each end of a journal, which grows with the run and is looked at twice a minute
LOOKED_AT_BYTES = 1 << 18


class Said(NamedTuple):
    """The results of one start of the command in its run."""

    # "stop", "end", "failed": the run's last event; "" if it died without one, or there is no run
    event: str = ""
    reason: str = ""
    unix_s: float = 0.0  # when that event was written
    refused: str = ""  # why the run did not begin, and will not the next time
    error: Error = Error("")  # of a run that failed
    behind: str = ""  # it failed behind a last batch: what its next start goes on from
    # the run's newest checkpoint is newer than any before; None: unknown
    progressed: bool | None = None


class ProgressWitness:
    """Called around each start of the command;
    remembers the run's progress, and how long its saves take.
    """

    def __init__(self, place: Path) -> None:
        self._place = place
        self._furthest: dict[Path, tuple[int, int]] = {}
        self._attempts: dict[Path, int] = {}
        self.save_s = 0.0  # the longest of the run's first and last saves

    @property
    def run(self) -> Path | None:
        """The run's directory, as the run has reported it; None before that."""
        return job_leader.run_of(self._place)

    def before(self) -> None:
        """Note the run's state before a start."""
        if (run := self.run) is not None:
            self._attempts[run], events = _last(run)
            self._furthest[run] = max(self._furthest.get(run, (-1, 0)), _newest(run))
            self._take_saves(events)

    def look(self) -> None:
        """Measure how long the run's saves take, while it runs."""
        if (run := self.run) is not None:
            with suppress(OSError):  # the command goes on; the next look may succeed
                self._take_saves(_last(run)[1])

    def after(self, began_unix_s: float) -> Said:
        """Return the results, in the run, of the start that began at `began_unix_s`."""
        if refused := job_leader.take_refused(self._place):
            return Said(refused=refused)
        if (run := self.run) is None:
            return Said()
        number, events = _last(run)
        known = self._attempts.get(run)
        ours = number > known if known is not None else _time(events[:1]) >= began_unix_s
        if not ours or not events:
            return Said()
        progressed = _newest(run) > self._furthest.get(run, (-1, 0))
        last = next((event for event in reversed(events) if event["event"] in CLOSING), None)
        if last is None:
            return Said(progressed=progressed)
        reason = str(last.get("reason") or last.get("error") or "")
        behind = str(last.get("next") or "") if last.get("behind") else ""
        return Said(str(last["event"]), reason, _time([last]), "", _error(last), behind, progressed)

    def _take_saves(self, events: Iterable[Event]) -> None:
        self.save_s = max(
            [
                self.save_s,
                *(event.get("save_s", 0.0) for event in events if event["event"] == "saved"),
            ]
        )


def _last(run: Path) -> tuple[int, list[Event]]:
    """Return the number of the run's last attempt, and its first and its last events."""
    found = [
        *scan.glob(run, "attempts/*/attempt-*.jsonl"),
        *scan.glob(run, "history/attempt-*.jsonl"),
    ]
    numbers = {
        int(text): path
        for path in found
        if (text := path.stem.removeprefix("attempt-")).isdecimal()
    }
    number = max(numbers, default=0)
    if not number:
        return 0, []
    with suppress(OSError), open(disk.open_plain(numbers[number], follow=True), "rb") as file:
        first = file.read(LOOKED_AT_BYTES)
        # lines that are read twice count once
        file.seek(max(0, file.seek(0, os.SEEK_END) - LOOKED_AT_BYTES))
        return number, journal.parse(first + b"\n" + file.read())
    # the journal was just moved by a later attempt
    return number, []


def _error(last: Event) -> Error:
    if last["event"] != "failed":
        return Error("")
    text = str(last.get("error", ""))
    step = last.get("step")
    sets_aside = bool(last.get("counts") and last.get("checkpoint"))
    kind = str(last.get("kind") or text.partition(":")[0])
    return Error(
        kind, str(last.get("place", "")), step if isinstance(step, int) else None, text, sets_aside
    )


def _newest(run: Path) -> tuple[int, int]:
    """Return the order of the run's newest checkpoint; a value before any other if it has none."""
    with suppress(StoreError, OSError):
        return (parse_name(Store(run).latest().path.name) or CheckpointName(0)).order
    return (-1, 0)


def _time(events: Iterable[Event]) -> float:
    return max((float(event.get("time") or 0.0) for event in events), default=0.0)
