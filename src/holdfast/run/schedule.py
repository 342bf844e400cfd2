"""SaveSchedule: when the next save of an attempt is due, and why."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import msgspec

from .. import interval
from ..rules import Auto, Every
from ..state.snapshot import Arena
from .drilled import DrillHooks
from .failures import SaveFailures
from .last_batch import LastBatchPolicy
from .metrics import BestTracker, Measured
from .position import RunProgress
from .readback import ReadBack
from .unproven import EpochEndSaves
from .windows import RankOrder

if TYPE_CHECKING:
    from .pace import SaveInterval

NOTE_S = 10.0  # a line of the journal, while nothing else is written to it
PERIODIC = ("new best", "due")  # reasons for saves whose failure is no error


class SaveSchedule(msgspec.Struct):
    """Decides at each safe point whether to save: by the rule `every=`, a new best, a request, or
    to make up for a save that failed or was damaged.
    """

    _every: Every | Auto | None
    _progress: RunProgress
    _drill: DrillHooks
    _last_batch: LastBatchPolicy
    _readback: ReadBack
    _failures: SaveFailures
    _arena: Arena
    waiting: EpochEndSaves
    best: BestTracker
    pace: SaveInterval | None  # with `Auto()`, on rank 0
    _last: interval.SafePointMark  # the moment of the last save
    # why to save at the next safe point: run.save(), or to make up for a save
    _wanted: str | None = None

    def begin_interval(self, epoch: int | None) -> None:
        """Count the interval from here: a save begins, or the run goes on from a checkpoint."""
        self._last = self._progress.interval_mark(epoch)

    def clear_request(self) -> None:
        """A save begins: nothing more is wanted."""
        self._wanted = None

    def make_up(self, reason: str) -> None:
        """Save again at the next safe point, for this reason, if no other is known."""
        self._wanted = self._wanted or reason

    def request_save(self) -> None:
        """Save at the next safe point."""
        self._wanted = "asked"

    def reason_to_save(
        self, metrics: Measured, order: RankOrder | None, epoch: int | None, *, final: bool
    ) -> str | None:
        """Return why to save at this safe point, or None.
        `order`: what rank 0 orders all ranks to do.
        """
        found = self._reason_to_save(metrics, order, epoch, final=final)
        if self._drill.current_target is not None:
            return found
        if found in (None, *PERIODIC):
            now = self._progress.interval_mark(epoch)
            found = self.waiting.reason_to_save(found, now, at_end=now.at_end)
            # a save that waits for an epoch's end is remembered there
            self._wanted = self._wanted and found
        if found == "due" and self._last_batch.should_delay_save():
            self._wanted, found = found, None
        return found

    def _reason_to_save(
        self, metrics: Measured, order: RankOrder | None, epoch: int | None, *, final: bool
    ) -> str | None:
        if final:
            return "the end"
        problem = self._readback.take_damage()
        if (
            problem is not None
            and self._failures.record_damage(problem)
            and self._interval_rule() is not None
        ):
            self._wanted = self._wanted or "due"
        if self._wanted is not None:
            return self._wanted
        if self._drill.must_save_here:
            return "due"
        at_end = self._progress.position.phase == "end"
        if not self._drill.is_past_target and self.best.is_new_best(metrics, at_end=at_end):
            return "new best"
        every = self._interval_rule()
        # by the clock of rank 0
        due = (
            order.save
            if order is not None and _is_clock_rule(every)
            else self._is_due(every, epoch)
        )
        if due and self._failures.should_skip_save():
            self._last = self._progress.interval_mark(epoch)
            return None
        return "due" if due else None

    def is_due_by_clock(self) -> bool:
        """Whether a save is due by the clock."""
        every = self._interval_rule()
        return _is_clock_rule(every) and self._is_due(every)

    @property
    def alive_interval_s(self) -> float:
        """Return how often to journal that the run is alive. The last of these lines dates a
        kill.
        """
        return math.inf if self.pace is None else NOTE_S

    def _is_due(self, every: Every | Auto | None, epoch: int | None = None) -> bool:
        now, last = self._progress.interval_mark(epoch), self.waiting.since or self._last
        if isinstance(every, Auto):
            return self.pace is not None and self.pace.is_due(
                last.seconds, now.seconds, ready=not self._arena.is_warming
            )
        return interval.save_is_due(every, last=last, now=now)

    def _interval_rule(self) -> Every | Auto | None:
        drill = self._drill
        forced = drill.wanted.save_every_steps
        if drill.is_past_target or (drill.current_target is not None and forced is None):
            return None
        return self._every if forced is None else Every(steps=forced)


def _is_clock_rule(every: Every | Auto | None) -> bool:
    return isinstance(every, Auto) or (every is not None and every.minutes is not None)
