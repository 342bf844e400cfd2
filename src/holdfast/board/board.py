"""Board: keeps TensorBoard's files up to date with a run's metrics log."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path

from .. import disk, journal, modes, scan
from . import events

_NAME = "events.out.tfevents.{when:010d}.holdfast.{attempt:06d}"
_OURS = "events.out.tfevents.*.holdfast.*"


class Board:
    """Writes the metrics log of the run at `run` for TensorBoard; by default beside the run, in
    `<run>-board`.

        board = Board("runs/digits")
        board.update()  # as often as you like, in one process at a time

    Each attempt of the run gets its own file. The file begins by revoking what earlier files hold
    of steps that were repeated. It also repeats what a power loss removed from the last file. So
    TensorBoard shows each step once, and none is missing, whatever happened to the run or to the
    board.

    Args:
        run: the run's directory.
        directory: the directory for TensorBoard's --logdir.
        only: follow this attempt alone; write nothing once a later one has begun.
    """

    def __init__(
        self,
        run: str | os.PathLike[str],
        directory: str | os.PathLike[str] | None = None,
        *,
        only: int | None = None,
    ) -> None:
        self.run = Path(os.path.abspath(run))
        self.directory = Path(
            os.path.abspath(f"{self.run}-board" if directory is None else directory)
        )
        self._shared = directory is not None  # others may have files there
        self._only = only
        self._follower = journal.JournalFollower(self.run)
        self._begin_again()

    def _begin_again(self) -> None:
        self._attempt = self._follower.attempt
        self._waiting: list[journal.Event] = []  # read before it is known where the attempt resumes
        self._file: Path | None = None
        self._last: journal.Event = {}

    def make_private(self) -> None:
        """Keep other users out of the board's files, as they are kept out of its run."""
        if not self._shared:
            disk.make_private(self.directory)
        for file in scan.glob(self.directory, _OURS) if self._shared else ():
            # another user's; gone; a link
            with suppress(PermissionError, FileNotFoundError, disk.NotPlain):
                disk.restrict_to_owner(file)

    def update(self) -> None:
        """Bring the board up to date with the journals.

        Raises:
            OSError: the board's directory cannot be written.
        """
        if self._file is not None and not scan.exists(self._file):
            self._follower.forget()
            self._begin_again()
        found = self._follower.read_new()
        attempt = self._follower.attempt
        if self._only not in (None, attempt):
            return
        if attempt != self._attempt:
            self._begin_again()
        if self._file is not None:
            self._append_events(found)
            return
        self._waiting += found
        log = journal.Log(attempt, self._follower.path, self._waiting)
        if log.restored is not None:  # else it may still revoke what earlier attempts did
            self._begin_file(log)
            self._waiting = []

    def _begin_file(self, log: journal.Log) -> None:
        """Begin this attempt's file at the step up to which the other files are correct and
        complete.
        """
        logs = [*(each for each in journal.logs(self.run) if each.attempt < log.attempt), log]
        files = scan.glob(self.directory, _OURS)
        first = _first_step(logs, files)
        lines = [line for line in journal.merge_metrics(logs) if line["step"] >= first]
        now = time.time()
        # TensorBoard reads files in the order of their names, whatever the clocks show
        when = max(int(now), *(int(file.name.split(".")[3]) + 1 for file in files), 0)
        file = self.directory / _NAME.format(when=when, attempt=log.attempt)
        modes.inherit_mode(self.directory, of=self.run if self._shared else None)
        disk.make_dirs(self.directory)
        disk.write(file, [events.header(now), events.start(now, first), *map(_scalars, lines)])
        self._file = file
        self._last = next(
            (event for event in reversed(log.events) if event["event"] == "metrics"), {}
        )

    def _append_events(self, found: Iterable[journal.Event]) -> None:
        """Append what the attempt has logged, once;
        after a full disk its journal may hold lines twice.
        """
        written = []
        for event in found:
            again = journal.position(event) < journal.position(self._last) or event == self._last
            if event["event"] == "metrics" and not again:
                written.append(_scalars(event))
                self._last = event
        if written and self._file is not None:
            disk.append(self._file, b"".join(written), sync=False)


def _first_step(logs: Sequence[journal.Log], files: Sequence[Path]) -> int:
    """Return the step from which the board must be written again."""
    for file in reversed(files):
        reached = events.last_step(file.read_bytes())
        if reached is not None:  # lines of that step may be missing
            shown = int(file.name.split(".")[-1])
            later = [
                log.restored[0] for log in logs if log.attempt > shown and log.restored is not None
            ]
            return min([reached, *later])
    return 0


def _scalars(event: journal.Event) -> bytes:
    values = {tag: float(value) for tag, value in event["values"].items()}
    return events.scalars(event.get("time", 0.0), event["step"], values)
