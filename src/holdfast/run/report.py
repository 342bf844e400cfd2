"""Reporter: what an attempt says:
lines of its journal at the present position, lines for people, a board, and trackers.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from ..errors import DiskError
from ..store.attempt import Attempt
from ..terminal import say, warn
from .position import Position

if TYPE_CHECKING:
    from ..board import Board
    from ..track.client import Trackers
    from ..track.options import TrackerOptions

FLUSH_S = 1.0  # interval at which the journal is shown to readers of a running run


class Reporter:
    """Writes the journal, the terminal lines and the board of one attempt."""

    def __init__(self, attempt: Attempt, position: Position, *, private: bool) -> None:
        self.attempt, self._position, self._private = attempt, position, private
        self._board: Board | None = None
        self.trackers: Trackers | None = None
        # when readers were shown the journal
        self._flushed_s = self._noted_s = self.began_s = time.monotonic()

    def record(self, event: str, /, **facts: Any) -> None:
        """Journal an event with the current position."""
        self.attempt.record(event, **self._position.checkpoint_name._asdict(), **facts)

    def warn(self, line: str, **facts: str) -> None:
        """Write a warning to the terminal and to the journal."""
        self.attempt.record("told", what=line, **facts)
        warn(line)

    def warn_of_tracker(self, line: str) -> None:
        """Write a warning about a tracker, also after the attempt's closing line."""
        self.attempt.record("tracker_told", what=line)
        warn(line)

    def warn_changed(self, line: str, prefix: str = "changed since the checkpoint: ") -> None:
        """Warn and journal that a fact differs from its value in the checkpoint."""
        self.attempt.record("told", what=line)
        say(f"{prefix}{line}")

    def flush_journal_regularly(self, note_s: float) -> None:
        """Show the journal to readers of a running run, with a small delay.

        `note_s`: how often to journal that the run is alive.
        """
        now_s = time.monotonic()
        if now_s - self._flushed_s > FLUSH_S:
            # the journal then shows to a hundredth how much work a kill costs
            if now_s - self._noted_s > min((now_s - self.began_s) / 100, note_s):
                self.record("at")
                self._noted_s = now_s
            with suppress(DiskError):  # the lines are kept, and written the next time
                self.attempt.flush_unless_busy()
            self.update_board()
            if self.trackers is not None:
                self.trackers.look()
            self._flushed_s = time.monotonic()

    def begin_board(self, directory: str | os.PathLike[str] | None) -> None:
        """Keep a board until the attempt ends; None: beside the run's directory."""
        from ..board import Board

        self._board = Board(self.attempt.root, directory, only=self.attempt.number)
        self.update_board()

    def begin_trackers(
        self, trackers: Sequence[TrackerOptions], hyperparameters: Mapping[str, Any] | None
    ) -> Trackers:
        """Send metrics to trackers from now on."""
        from ..track.client import Trackers

        root, number = self.attempt.root, self.attempt.number
        self.trackers = Trackers(trackers, root, number, hyperparameters, self.warn_of_tracker)
        return self.trackers

    def update_board(self) -> None:
        """Update the board from the journal.
        A board that cannot be written does not stop the training.
        """
        try:
            if self._board is not None:
                if self._private:
                    self._board.make_private()
                self._board.update()
        except OSError as error:
            self._board, path = None, str(self.attempt.root)
            warn(
                f"the board is not kept up any more: {error}; "
                f"Board({path!r}).update() makes it whole"
            )
