"""Pace: how often an attempt with `every=Auto()` saves. Rank 0 measures, chooses and journals; the
others follow it.

The first save comes soon, unless an earlier attempt has measured some. The interval is then chosen,
once a start.
"""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from itertools import islice
from statistics import median
from typing import NamedTuple

import msgspec

from .. import journal, owner, young_daly
from ..journal import AFTERWARDS, CLOSING, Event, Log
from ..rules import Auto
from ..young_daly import ChoiceWithInputs, IntervalLimits, PastStarts, SaveCosts
from .position import RunProgress
from .report import Reporter
from .stop import StopRequest

EVENT, BESIDE = "interval", "beside"
FIRST_S = 10.0  # from the beginning to the first save, when nothing is measured
PERIODIC = ("asked", "new best", "due")  # reasons for saves without a wait
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
        if reason not in PERIODIC:
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
        found_here = [event for event in events if event.get("reason") in PERIODIC]
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
