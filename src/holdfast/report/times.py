"""The times of each start of a program, from the journals of its run and of its supervisor. Pure.

Journals may be torn and clocks may jump. So all times of a start are seconds since its process
began, in the order of its lines; only where a start lies is taken from the clock.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import msgspec

from .. import journal
from ..journal import AFTERWARDS, CLOSING, Event, Log

Position = tuple[int, int]
Seen = Callable[[Log, bool, Position, Event], None]
DAY_S = 86400.0
LATEST_S = 1e11  # the year 5138
JITTER_S = 60.0  # lines may be written so much later than the event that they tell of
_START: Position = (0, 0)
LAST_LINE = "the end is not recorded: the last line of the journal stands for it"
UNREAD = "the journal of an attempt beside it holds nothing that can be read"
WENT_BACK, JUMPED = "the clock went back", "the clock jumped"
BEHIND = "the clock of the machine was behind that of the start before"
# a run shows its journal so often, or after so small a part of its time: `run/report.py`
UNSEEN_S, UNSEEN_PART = 1.0, 0.01
REGULAR = {"asked", "new best", "due"}  # reasons of saves after which the loop goes on
PROGRESS = {"first_step", "metrics", "at"}


class SupervisedStart(NamedTuple):
    """One start in a supervisor's journal. Times are Unix seconds."""

    began_s: float
    pid: int | None
    host: str
    asked_s: float | None  # when a requeue was asked for, or a job submitted, before it
    took_s: float | None  # until the process had ended, by a clock that does not jump
    ended_s: float | None  # the same by the clock on the wall
    hung: bool

    @property
    def jumped_s(self) -> float:
        """So much the clock on the wall went forward while it ran; less than 0: back."""
        if self.took_s is None or self.ended_s is None:
            return 0.0
        ahead_s = self.ended_s - self.began_s - self.took_s
        return ahead_s if abs(ahead_s) > max(2.0, 0.02 * self.took_s) else 0.0


class StartTimes(msgspec.Struct, kw_only=True):
    """When one start of a program did what: seconds since its process began; None: not known."""

    attempt: int | None = None  # None: the program has no run, or never opened it
    began_s: float = 0.0  # Unix seconds
    queued_s: float = 0.0  # from the request to the process
    asked_again: float | None = None  # when it asked for its own requeue
    opened: float | None = None  # the run
    restored: float | None = None
    first_step: float | None = None
    first: int = 0  # the step at which it began
    last: Position = _START  # how far it came
    done: bool = False  # it finished the run
    nothing_to_do: bool = False  # the run was finished before
    moved: float | None = None  # its last sign of progress
    kept_until: float | None = None  # what it did later was done again; None: nothing was
    stopping: float | None = None  # from here on it saved for the last time and ended
    ended: float = 0.0
    host: str = ""
    jumped_s: float = 0.0  # so much the clock went forward while it ran; less than 0: back
    unseen_s: float = 0.0  # so long after `ended` it may have worked, without a line that tells
    hung_from: float | None = None
    saves: list[tuple[float, float]] = []  # when each began, and how long the loop waited
    evaluations: list[tuple[float, float]] = []  # likewise: from an epoch's last step to its end
    estimated: list[str] = []  # why its times are not exact


class _Clock:
    """Turns the times of one journal into seconds since its first line that never go back.

    `leap_s`: so much the clock went forward somewhere, according to a steady clock.
    """

    def __init__(self, first_s: float, leap_s: float) -> None:
        self.first_s, self.now, self.went_back_s, self._leap_s = first_s, 0.0, 0.0, leap_s

    def __call__(self, time_s: float) -> float:
        time_s = min(max(time_s, 0.0), LATEST_S)
        shown = time_s - self.first_s + self.went_back_s
        if shown < self.now - JITTER_S:
            self.went_back_s += self.now - shown
        elif self._leap_s and shown - self.now >= self._leap_s:
            self.first_s, self._leap_s = self.first_s + self._leap_s, 0.0
            shown = time_s - self.first_s + self.went_back_s
        if shown > self.now:  # noqa: PLR1730  # for each line, and max() takes longer
            self.now = shown
        return self.now


def supervised_starts(events: Iterable[Event]) -> list[SupervisedStart]:
    """Return the starts in a supervisor's journal, oldest first."""
    found: list[SupervisedStart] = []
    host, asked_s, open_ = "", None, False
    for event in events:
        kind, time_s = event["event"], _time_s(event)
        if kind == "begin":
            host, open_ = str(_mapping(event.get("owner")).get("host", "")), False
        elif kind in {"requeued", "submitted"}:
            asked_s = time_s
        elif kind == "start":
            pid = event.get("pid")
            pid = pid if isinstance(pid, int) else None
            found.append(SupervisedStart(time_s, pid, host, asked_s, None, None, hung=False))
            asked_s, open_ = None, True
        elif kind == "exit" and open_:
            took_s = event.get("took_s")
            took_s = float(took_s) if isinstance(took_s, int | float) else None
            hung = bool(event.get("hung"))
            found[-1] = found[-1]._replace(took_s=took_s, ended_s=time_s, hung=hung)
            open_ = False
    return found


def start_times(
    logs: Sequence[Log],
    supervisor: Sequence[Event],
    *,
    over: bool,
    seen: Seen,
) -> list[StartTimes]:
    """Return the times of all starts, oldest first. Each line of a journal is parsed once and not
    kept.

    Args:
        logs: of all attempts of the run, oldest first; none for a program without a run.
        supervisor: the events of the supervisor's journal; none without a supervisor.
        over: no process of the run is alive, so that what its last start did not save is lost.
        seen: is called with each event of each attempt, newest attempt first: the attempt, whether
            no later start went on from before it, the event's position, and the event.
    """
    supervised = supervised_starts(supervisor)
    lone = dict(enumerate(supervised))  # those of no attempt
    read: list[tuple[int | None, StartTimes]] = []
    ceiling: Position | None = None
    unread = 0
    for log in reversed(logs):
        at = _index_of_start(log, lone)
        if log is logs[-1] and over:
            ceiling = _newest_saved(log)
        ours = None if at is None else lone.pop(at)
        times, restored = _read(log, ceiling, ours, seen)
        if times.began_s:
            read.append((at, times))
        else:  # nothing tells when it was
            unread += 1
        if restored is not None:
            ceiling = restored if ceiling is None else min(ceiling, restored)
    found: list[StartTimes] = []
    for at, times in reversed(read):
        # by their places in the journal: a clock may have gone back
        before = [
            each
            for each, start in lone.items()
            if (each < at if at is not None else start.began_s < times.began_s)
        ]
        found += [*(_without_run(lone.pop(each)) for each in before), times]
    found += map(_without_run, lone.values())
    if unread and found:
        found[-1].estimated.append(UNREAD)
    _put_in_order(found)
    return _without_idle_ends(found)


def _without_idle_ends(found: list[StartTimes]) -> list[StartTimes]:
    """Leave out the starts of a finished run that had nothing to do."""
    while len(found) > 1 and found[-1].nothing_to_do and found[-2].done:
        found.pop()
    return found


def _newest_saved(log: Log) -> Position | None:
    """Return from where the next start will go on; None: the journal does not tell, or the run is
    done.
    """
    if log.last.get("event") == "end":
        return None
    saved = next(log.newest("saved"), None)
    return journal.position(saved) if saved is not None else log.restored


def _index_of_start(log: Log, supervised: Mapping[int, SupervisedStart]) -> int | None:
    """Return which of the supervisor's starts has begun the attempt; None: not one of them."""
    first = next(iter(log.events), None)
    if first is None:
        return None
    began_s, pid, host = _time_s(first), log.owner.get("pid"), log.owner.get("host")
    for at, each in supervised.items():
        if each.pid == pid and each.host == host and abs(began_s - each.began_s) < DAY_S:
            return at
    for at, each in supervised.items():  # the command is a script that starts the program
        later = supervised.get(at + 1)
        ends_s = each.ended_s if each.ended_s is not None else later and later.began_s
        if each.began_s - 1 <= began_s and (ends_s is None or began_s <= ends_s):
            return at
    return None


def _read(
    log: Log,
    ceiling: Position | None,
    ours: SupervisedStart | None,
    seen: Seen,
) -> tuple[StartTimes, Position | None]:
    """Return the times of one attempt, and the position that it restored."""
    times = StartTimes(attempt=log.attempt)
    events = _walk(log)
    first = next(events, None)
    if first is None:
        return times, None
    first_s = _time_s(first)
    clock = _Clock(first_s, 0.0 if ours is None else max(0.0, ours.jumped_s))
    before = first_s - ours.began_s if ours is not None else 0.0
    restored: Position | None = None
    kept, last_save, closed = 0.0, None, False
    stepped: tuple[int, float] | None = None  # the newest line of a step, and when it was written
    for event in itertools.chain([first], events):
        now, kind, place = clock(event["time"]), event["event"], journal.position(event)
        counts = ceiling is None or place <= ceiling
        seen(log, counts, place, event)
        if kind in PROGRESS:
            if restored is None:
                continue
            if place[1] and stepped is not None and stepped[0] == place[0]:
                _note_evaluation(times, stepped[1], now)
            elif not place[1]:
                stepped = place[0], now
            times.moved = now
            if place > times.last:  # noqa: PLR1730
                times.last = place
            if counts:
                kept = now
            if kind == "first_step":
                times.first_step = now
                if ours is None and isinstance(event.get("process_s"), int | float):
                    before = max(0.0, float(event["process_s"]) - now)
        elif kind == "begin":
            times.opened = now
        elif kind == "restored":
            times.restored = times.moved = kept = now
            times.first, times.last, restored = place[0], place, place
        elif kind == "saved":
            waited = float(event.get("stall_s", 0.0))
            began = now - max(float(event.get("save_s", 0.0)), waited)
            times.saves.append((began, waited))
            if str(event.get("reason")) not in REGULAR:
                last_save = began
            if counts:
                kept = max(kept, began + waited)
        elif kind in AFTERWARDS:
            times.asked_again = now if kind in {"requeued", "submitted"} else times.asked_again
        elif kind in CLOSING:
            closed, times.last = True, max(times.last, place)
            times.stopping = now if last_save is None else last_save
            times.done = kind == "end"
    times.nothing_to_do = times.done and times.last == restored and not times.saves
    died = not closed and ours is not None and ours.ended_s is not None
    if restored is not None and ceiling is not None and (died or times.last > ceiling):
        times.kept_until = kept
    times.ended = clock.now
    if clock.went_back_s:
        times.estimated.append(WENT_BACK)
    times.began_s = first_s - before
    _shift(times, before)
    _end(times, ours, closed=closed)
    return times, restored


def _note_evaluation(times: StartTimes, began: float, ended: float) -> None:
    """Note what an epoch did from its last step to the lines of its end; there may be several."""
    if times.evaluations and times.evaluations[-1][0] == began:
        times.evaluations.pop()
    times.evaluations.append((began, ended - began))


def _walk(log: Log) -> Iterator[Event]:
    events = log.events
    return events.walk() if isinstance(events, journal.JournalLines) else iter(events)


def _shift(times: StartTimes, before: float) -> None:
    """Count from the process's beginning instead of the first line."""
    for name in (
        "opened",
        "restored",
        "first_step",
        "moved",
        "kept_until",
        "stopping",
        "asked_again",
    ):
        value = getattr(times, name)
        if value is not None:
            setattr(times, name, value + before)
    times.ended += before
    times.saves = [(at + before, took) for at, took in times.saves]
    times.evaluations = [(at + before, took) for at, took in times.evaluations]


def _end(times: StartTimes, ours: SupervisedStart | None, *, closed: bool) -> None:
    """Take the end of the process, and what comes before it, from the supervisor."""
    if ours is not None:
        times.host = ours.host
    if ours is None or (ours.took_s is None and ours.ended_s is None):
        if not closed:
            times.estimated.append(LAST_LINE)
            times.unseen_s = max(UNSEEN_S, UNSEEN_PART * times.ended)
    else:
        shown_s = (ours.ended_s or 0.0) - ours.began_s
        took_s = ours.took_s if ours.took_s is not None else shown_s
        if ours.jumped_s:
            times.estimated.append(JUMPED)
            times.jumped_s = ours.jumped_s
        times.ended = max(0.0, took_s)
        if ours.hung:
            times.hung_from = times.moved
    if ours is not None and ours.asked_s is not None:
        times.queued_s = max(0.0, ours.began_s - ours.asked_s)


def _without_run(ours: SupervisedStart) -> StartTimes:
    """Return the times of a start that no run knows."""
    times = StartTimes(began_s=ours.began_s, moved=0.0, restored=0.0)
    if ours.took_s is None and ours.ended_s is None:
        times.estimated.append(LAST_LINE)
    _end(times, ours, closed=True)
    if ours.hung:
        times.hung_from = None  # nothing tells when it stood still
    return times


def _put_in_order(found: Sequence[StartTimes]) -> None:
    """Let no start begin before the one before it has ended, whatever the clocks have shown."""
    shift_s = 0.0
    for earlier, later in itertools.pairwise(found):
        shift_s -= earlier.jumped_s if later.host == earlier.host else 0.0
        later.began_s += shift_s
        over_s = earlier.began_s + earlier.ended - later.began_s
        if over_s > 0 and (later.began_s <= earlier.began_s or earlier.estimated):
            shift_s += over_s
            later.began_s += over_s
            if over_s > JITTER_S:
                later.estimated.append(BEHIND)
        elif over_s > 0:  # it went on beside its successor until it noticed
            earlier.ended -= over_s
        if not later.queued_s and earlier.asked_again is not None:
            later.queued_s = later.began_s - earlier.began_s - earlier.asked_again
        gap_s = later.began_s - earlier.began_s - earlier.ended
        later.queued_s = min(max(0.0, later.queued_s), max(0.0, gap_s))


def _time_s(event: Event) -> float:
    """Return the time of an event; one that no clock shows is the nearest that one could."""
    return min(max(float(event["time"]), 0.0), LATEST_S)


def _mapping(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}
