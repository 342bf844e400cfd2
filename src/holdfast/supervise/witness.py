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
from .causes import StartError

# of each end of a journal, which grows with the run and is looked at twice a minute
LOOKED_AT_BYTES = 1 << 18


class RunOutcome(NamedTuple):
    """What the run's journal says about one start of the command."""

    # "stop", "end", "failed": the run's last event; "" if it died without one, or there is no run
    event: str = ""
    reason: str = ""
    unix_s: float = 0.0  # when that event was written
    refused: str = ""  # why the run did not begin, and will not the next time
    error: StartError = StartError("")  # of a run that failed
    behind: str = ""  # it failed behind a last batch: what its next start goes on from
    # the run's newest checkpoint is newer than any before; None: unknown
    progressed: bool | None = None


class RunJournalReader:
    """Reads the run's journal around each start: its progress, its outcome, and how long its
    saves take.
    """

    def __init__(self, place: Path) -> None:
        self._place = place
        self._furthest: dict[Path, tuple[int, int]] = {}
        self._attempts: dict[Path, int] = {}
        self.save_s = 0.0  # the longest of the run's first and last saves

    @property
    def run(self) -> Path | None:
        """The run's directory, as the run has reported it; None before that."""
        return job_leader.reported_run_path(self._place)

    def note_state_before(self) -> None:
        """Note the run's state before a start."""
        if (run := self.run) is not None:
            self._attempts[run], events = _last_attempt_events(run)
            self._furthest[run] = max(self._furthest.get(run, (-1, 0)), _newest_order(run))
            self._note_saves(events)

    def measure_saves(self) -> None:
        """Measure how long the run's saves take, while it runs."""
        if (run := self.run) is not None:
            with suppress(OSError):  # the command goes on; the next look may succeed
                self._note_saves(_last_attempt_events(run)[1])

    def read_outcome(self, began_unix_s: float) -> RunOutcome:
        """Return the results, in the run, of the start that began at `began_unix_s`."""
        if refused := job_leader.take_refusal(self._place):
            return RunOutcome(refused=refused)
        if (run := self.run) is None:
            return RunOutcome()
        number, events = _last_attempt_events(run)
        known = self._attempts.get(run)
        ours = number > known if known is not None else _event_time(events[:1]) >= began_unix_s
        if not ours or not events:
            return RunOutcome()
        progressed = _newest_order(run) > self._furthest.get(run, (-1, 0))
        last = next((event for event in reversed(events) if event["event"] in CLOSING), None)
        if last is None:
            return RunOutcome(progressed=progressed)
        reason = str(last.get("reason") or last.get("error") or "")
        behind = str(last.get("next") or "") if last.get("behind") else ""
        return RunOutcome(
            str(last["event"]),
            reason,
            _event_time([last]),
            "",
            _parse_failure(last),
            behind,
            progressed,
        )

    def _note_saves(self, events: Iterable[Event]) -> None:
        self.save_s = max(
            [
                self.save_s,
                *(event.get("save_s", 0.0) for event in events if event["event"] == "saved"),
            ]
        )


def _last_attempt_events(run: Path) -> tuple[int, list[Event]]:
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


def _parse_failure(last: Event) -> StartError:
    if last["event"] != "failed":
        return StartError("")
    text = str(last.get("error", ""))
    step = last.get("step")
    sets_aside = bool(last.get("counts") and last.get("checkpoint"))
    kind = str(last.get("kind") or text.partition(":")[0])
    return StartError(
        kind, str(last.get("place", "")), step if isinstance(step, int) else None, text, sets_aside
    )


def _newest_order(run: Path) -> tuple[int, int]:
    """Return the order of the run's newest checkpoint; without one, a value that sorts
    before any other.
    """
    with suppress(StoreError, OSError):
        return (parse_name(Store(run).latest().path.name) or CheckpointName(0)).order
    return (-1, 0)


def _event_time(events: Iterable[Event]) -> float:
    return max((float(event.get("time") or 0.0) for event in events), default=0.0)
