"""Sender: brings a tracker up to date with a run's journals, so that each step stands there once.

A batch is sent, the tracker answers, and then the cursor is written. Where the last two did not
happen, the next sender asks the tracker what it holds.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Protocol

import msgspec

from .. import journal
from ..threads import nothing
from . import cursor as cursors
from .cursor import Cursor
from .ledger import Ledger, Row, came_again, differs, rows_of

BATCH_ROWS = 500


class Tracker(Protocol):
    """One tracker, as its own library reaches it. Every error of that library may leave it."""

    def begin(self, cursor: Cursor) -> int | None:
        """Open the run of this cursor, and create it if need be. Return the last step that it
        holds; None: it cannot tell.
        """
        ...

    def send(self, rows: Sequence[Row]) -> None:
        """Send rows, and return when the tracker has them. What it held at `begin` is skipped."""
        ...

    def end(self, *, finished: bool) -> None:
        """Close the run there; `finished`: nothing more will come."""
        ...


class Sender:
    """Sends the metrics of one attempt to one tracker.

    Args:
        root: the run's directory.
        attempt: the attempt, which has begun.
        path: of the cursor.
        title: of the run at the tracker.
        tell: gets a line when a run is begun there because values differ.
    """

    def __init__(
        self,
        tracker: Tracker,
        root: Path,
        attempt: int,
        path: Path,
        title: str,
        tell: Callable[[str], None],
    ) -> None:
        self._tracker, self._root, self._attempt = tracker, root, attempt
        self._path, self._title, self._tell = path, title, tell
        self.note_batch: Callable[[], object] = nothing  # is called when the tracker has a batch
        self._follower = journal.JournalFollower(root)
        self._waiting: list[journal.Event] = []  # read before it is known where the attempt resumes
        self._ledger: Ledger | None = None
        self._sent: dict[int, Row] | None = None  # to compare rows that come again with
        self._cut = cursors.NOTHING  # the step of which the tracker may hold a part only
        self.finished = False

    @property
    def begun(self) -> bool:
        """Whether the run is open at the tracker."""
        return self._ledger is not None

    @property
    def superseded(self) -> bool:
        """Whether a later attempt has begun, which has a sender of its own."""
        return self._follower.attempt > self._attempt

    def send_durable(self) -> bool:
        """Send what has become durable since the last call. Return whether there was anything."""
        found = self._follower.read_new()
        if self.superseded:
            return False
        self.finished = self.finished or any(event["event"] == "end" for event in found)
        if self._ledger is None:
            self._waiting += found
            log = journal.Log(self._attempt, self._follower.path, self._waiting)
            if log.restored is None:
                return False
            self._begin(log)
        else:
            self._ledger.add(found)
        rows = [] if self._ledger is None else self._ledger.take_durable()
        self._send(rows)
        return bool(rows)

    def _begin(self, log: journal.Log) -> None:
        """Open the run at the tracker, and find out what it holds."""
        logs = [*(each for each in journal.logs(self._root) if each.attempt < log.attempt), log]
        known = cursors.read(self._path)
        self.cursor = known or Cursor(cursors.new_key(), self._title, attempt=self._attempt)
        if known is None:
            cursors.write(self._path, self.cursor)  # a run that is killed now is found again
        held = self._tracker.begin(self.cursor)
        step = self.cursor.step if held is None else max(held, self.cursor.first - 1)
        self.cursor = msgspec.structs.replace(self.cursor, step=step)
        self._cut = cursors.NOTHING if held is None else step
        then = self.cursor.attempt
        if came_again(logs, then, step) and any(each.attempt == then for each in logs):
            self._sent = rows_of([each for each in logs if each.attempt <= then])
        self._ledger = Ledger([*logs[:-1], log._replace(events=[*log.newest("restored")])])
        self._ledger.add(self._waiting)
        self._waiting = []

    def _send(self, rows: Sequence[Row]) -> None:
        """Send the rows behind the cursor. From the first one that differs from what was sent, they
        go to another run.
        """
        batch = []
        for row in rows:
            if row.step <= self.cursor.step:
                if self._sent is not None and differs(row, self._sent.get(row.step)):
                    self._begin_another(row.step)
                elif row.step != self._cut:
                    continue
            batch.append(row)
        for first in range(0, len(batch), BATCH_ROWS):
            if self.cursor.attempt != self._attempt:
                self._note(self.cursor.step)
            part = batch[first : first + BATCH_ROWS]
            self._tracker.send(part)
            self._note(max(part[-1].step, self.cursor.step))
            self.note_batch()

    def _begin_another(self, step: int) -> None:
        """Begin another run at the tracker, for this step and those behind it."""
        title = f"{self._title}-from-step-{step}"
        before = f"{self.cursor.title} ({self.cursor.key})"
        note = f"goes on from {before} at step {step}, with other values"
        self._tracker.end(finished=True)
        self.cursor = Cursor(cursors.new_key(), title, note, step, self._attempt, step - 1)
        cursors.write(self._path, self.cursor)
        self._tell(
            f"step {step} came again with other values than {before} has; {title} begins there"
        )
        self._tracker.begin(self.cursor)

    def _note(self, step: int) -> None:
        self.cursor = msgspec.structs.replace(self.cursor, attempt=self._attempt, step=step)
        cursors.write(self._path, self.cursor)
