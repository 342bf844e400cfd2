"""SaveSchedule: when the next save of an attempt is due, and why. Pace: how often an attempt with
`every=Auto()` saves.

Rank 0 measures, chooses and journals; the others follow it. The first save comes soon, unless an
earlier attempt has measured some. The interval is then chosen, once a start.
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Sequence
from itertools import islice
from typing import NamedTuple

import msgspec

from .. import interval, journal, owner, young_daly
from ..journal import AFTERWARDS, CLOSING, Event, Log
from ..rules import Auto, Every
from ..state.snapshot import Arena
from ..young_daly import ChoiceWithInputs, IntervalLimits, PastStarts, SaveCosts
from .deferred_saves import EpochEndSaves, LastBatchPolicy
from .drilled import DrillHooks
from .failures import SaveFailures
from .metrics import BestTracker, Measured
from .position import RunProgress
from .ranks import RankOrder
from .report import Reporter
from .stop import StopRequest
from .writer import ReadBack

NOTE_S = 10.0  # a line of the journal, while nothing else is written to it
PERIODIC = ("new best", "due")  # reasons for saves whose failure is no error
BACKGROUND = ("asked", *PERIODIC)  # reasons for which the loop does not wait


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


EVENT, BESIDE = "interval", "beside"
FIRST_S = 10.0  # from the beginning to the first save, when nothing is measured
MOST_LOGS = 50  # journals that a start looks into
ENOUGH_SAVES, MOST_SAVES = 3, 20  # whose durations are compared
_BY_HAND = ("KeyboardInterrupt", "LoopLeft")

_began: set[int] = set()  # processes in which a run has been paced


class SaveTiming(NamedTuple):
    """How long one save took, in seconds."""

    stall_s: float
    save_s: float

    @property
    def was_in_background(self) -> bool:
        """Whether the loop continued before the save was durable."""
        return self.stall_s < self.save_s


class PastMeasurements(NamedTuple):
    """What the journals of earlier attempts say about saves and interruptions."""

    seen: PastStarts = PastStarts()
    saves: Sequence[SaveTiming] = ()
    slow_s: Sequence[float] = ()  # how much each of the last saves slowed the steps beside it


class SaveInterval(msgspec.Struct):
    """Measures saves and steps of one attempt, and chooses the interval between saves."""

    _rule: Auto
    _progress: RunProgress
    _reporter: Reporter
    _stop: StopRequest
    _background: bool
    chosen: ChoiceWithInputs | None = None
    _seen: PastStarts = PastStarts()
    _saves: list[SaveTiming] = []
    _slow_s: list[float] = []
    _begun: bool = False  # at the first safe point
    _first_s: float = 0.0
    _first_point: int = 0
    _restart_s: float = 0.0  # at the first safe point
    _since_s: float = 0.0
    _since_point: int = 0  # the safe point from which on no save was in flight
    _step_s: float | None = None  # a step's mean duration, before the save in flight
    _point: int = 0  # the safe point of the save in flight

    def use_past_measurements(self, logs: Sequence[Log]) -> None:
        """Use what earlier attempts have measured."""
        known = read_past_measurements(logs)
        self._seen, self._saves, self._slow_s = known.seen, [*known.saves], [*known.slow_s]

    def is_due(self, last_s: float, now_s: float, *, ready: bool) -> bool:
        """Whether to save at this safe point. The last save, or the beginning, was at `last_s`.

        The first save waits until its memory is `ready`.
        """
        if not self._begun:
            self._note_first_point(now_s)
        if self.chosen is None:
            hours = self._rule.interrupted_hours
            soon_s = FIRST_S if hours is None else min(FIRST_S, 360 * hours)
            if now_s - last_s < soon_s or not ready:
                return False
            if not self._saves:
                return True
            self._choose_interval(now_s)
        return self.chosen is None or now_s - last_s >= self.chosen.choice.interval_s

    def note_save_begun(self, began_s: float) -> None:
        """Note that a save begins."""
        points = self._progress.steps_here
        count = points - self._since_point
        self._step_s = (began_s - self._since_s) / count if count and self._begun else None
        self._point = points

    def note_save_done(self, reason: str, began_s: float, freed_s: float, durable_s: float) -> None:
        """Note a save that held the loop until `freed_s` and was durable at `durable_s`.

        Choose the interval if this is the first measurement.
        """
        now_s, points = time.monotonic(), self._progress.steps_here
        if reason not in BACKGROUND:
            return
        took = SaveTiming(min(freed_s, durable_s) - began_s, durable_s - began_s)
        count = points - self._point
        if took.was_in_background and count and self._step_s is not None:
            slow_s = max(0.0, now_s - freed_s - count * self._step_s)
            self._slow_s = [*self._slow_s, slow_s][-MOST_SAVES:]
            self._reporter.record(BESIDE, slow_s=round(slow_s, 6))
        self._since_s, self._since_point = now_s, points
        self._saves = [*self._saves, took][-MOST_SAVES:]
        first = self.chosen is None and self._begun
        if first and (took.was_in_background or len(self._saves) > 1 or not self._background):
            self._choose_interval(now_s)

    def _note_first_point(self, now_s: float) -> None:
        """Note the first safe point, and the time from the start of the process until then."""
        pid = os.getpid()
        fresh = pid not in _began
        _began.add(pid)
        self._begun, self._first_s = True, now_s
        self._first_point = self._since_point = self._progress.steps_here
        self._since_s = now_s
        here_s = now_s - self._reporter.began_s
        self._restart_s = max(here_s, owner.age_s()) if fresh else here_s

    def _choose_interval(self, now_s: float) -> None:
        """Choose the interval of this start from now on, and journal it with the measurements."""
        from statistics import median  # imported late: it takes a millisecond of each start

        deadline_s = self._stop.deadline_s
        beside = [took for took in self._saves if took.was_in_background]
        saves = beside or self._saves
        points = self._progress.steps_here - self._first_point
        step_s = (now_s - self._first_s) / points if points else self._progress.step_s
        costs = SaveCosts(
            stall_s=median(took.stall_s for took in saves),
            slow_s=median(self._slow_s) if self._slow_s and beside else 0.0,
            save_s=median(took.save_s for took in saves),
            restart_s=max(0.0, self._restart_s - step_s),
        )
        around = IntervalLimits(
            assumed_hours=self._rule.interrupted_hours,
            left_s=None if deadline_s is None else max(0.0, deadline_s - time.time()),
        )
        choice = young_daly.choose_interval(costs, self._seen, around)
        self.chosen = ChoiceWithInputs(choice, costs, self._seen, around)
        self._reporter.record(EVENT, **msgspec.to_builtins(self.chosen))


def read_past_measurements(logs: Sequence[Log]) -> PastMeasurements:
    """Read the newest journals (oldest first in `logs`);
    of a long one only the first and last lines.
    """
    since: list[Log] = []
    seen = PastStarts()
    for log in reversed(logs[-MOST_LOGS:]):
        since.insert(0, log)
        found = chosen_interval(log)
        if found is not None:  # it counts all starts before its own
            seen = found.seen
            break
    for log in since:
        seen = _add_ended_start(seen, log)
    saves: list[SaveTiming] = []
    slow_s: list[float] = []
    for log in reversed(logs[-MOST_LOGS:]):
        events = islice(log.newest("saved"), MOST_SAVES)
        found_here = [event for event in events if event.get("reason") in BACKGROUND]
        saves += [
            SaveTiming(event.get("stall_s", 0.0), event.get("save_s", 0.0)) for event in found_here
        ]
        slow_s += [
            float(event.get("slow_s", 0.0)) for event in islice(log.newest(BESIDE), MOST_SAVES)
        ]
        if len(saves) >= ENOUGH_SAVES:
            break
    return PastMeasurements(seen, saves[:MOST_SAVES], slow_s[:MOST_SAVES])


def chosen_interval(log: Log) -> ChoiceWithInputs | None:
    """Return the interval that an attempt chose, with its reasons; None if it chose none."""
    for event in log.newest(EVENT):
        try:
            return msgspec.convert(event, ChoiceWithInputs)
        except msgspec.ValidationError:  # not written by Holdfast
            continue
    return None


def _add_ended_start(seen: PastStarts, log: Log) -> PastStarts:
    """Add a start that has ended. It counts only if it made a step,
    because otherwise no work was lost.
    """
    first, last = next(iter(log.events), {}), log.last
    alive = next(
        (each for each in reversed(log.events) if each["event"] not in (*CLOSING, *AFTERWARDS)), {}
    )
    restored = log.restored
    error = last.get("error")
    if last.get("event") in CLOSING and not (last.get("event") == "failed" and error is None):
        alive = last  # otherwise another process has closed its journal, later
    if restored is None or journal.position(alive) <= restored:
        return seen
    announced = last.get("event") in ("stop", "end") or str(error).startswith(_BY_HAND)
    return seen.with_start(
        max(0.0, _event_time(alive) - _event_time(first)), interrupted=not announced
    )


def _event_time(event: Event) -> float:
    return float(event.get("time", 0.0))
