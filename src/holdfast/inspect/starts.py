"""How each start of a run ended, and how much of its work was lost, from the journals. Pure."""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple

from .. import journal, owner
from ..journal import AFTERWARDS, CLOSING, Event, Log
from ..legible import counted, duration

DONE, KILLED, ERROR, NODE_LOST, HANG = "done", "killed", "error", "node lost", "hang"
_SAID = {
    "time limit": "time limit",
    "preempted": "preempted",
    "cancelled": "cancelled",
    "requeued": "requeued",
}
QUEUE, IMPORTS, RESTORE, STEP = "queue", "imports", "restore", "first step"
_REASONS = {"SIGINT": "Ctrl-C", "deadline": "deadline"}


class ProgramStart(NamedTuple):
    """One start of the program. Times are Unix seconds."""

    job: str | None  # of an array's task "120_3"
    restart: int  # how often the job had been started before
    host: str
    began_s: float
    seen_s: float  # its last sign of life
    first: int | None  # the step at which it began
    last: int | None  # the furthest that its journal shows
    cause: str  # why it ended; "" if its journal is not closed and no later start has begun
    why: str = ""  # an error's text
    lost_s: float = 0.0  # the part of its time whose work the next start did again
    lost_steps: int = 0
    spent: Mapping[str, float] = MappingProxyType({})  # seconds of each part of its beginning


def starts_of_run(logs: Sequence[Log], supervisor: Sequence[Event] = ()) -> list[ProgramStart]:
    """Return the starts of a run, oldest first, without those that never began to work."""
    begun = [log for log in logs if log.restored is not None]
    told = [
        event
        for log in logs
        for event in reversed(_last_events(log))
        if event["event"] in AFTERWARDS
    ]
    told += [event for event in supervisor if event["event"] in AFTERWARDS]
    hung = [_time(event) for event in supervisor if event["event"] == "exit" and event.get("hung")]
    found = []
    for log, after in itertools.zip_longest(begun, begun[1:]):
        job, restart = owner.job_of(log.owner)
        began_s, seen_s = _time(next(iter(log.events), {})), _time(log.last)
        first, last = (
            log.restored or (0, 0),
            max(map(journal.position, _last_events(log)), default=(0, 0)),
        )
        start = ProgramStart(
            job, restart, str(log.owner.get("host", "")), began_s, seen_s, first[0], last[0], ""
        )
        if after is not None:
            resumed = after.restored or (0, 0)
            if last > resumed:
                at_s = _time(
                    next(
                        (
                            event
                            for event in reversed(log.events)
                            if _is_before_move(event, resumed)
                        ),
                        {},
                    )
                )
                start = start._replace(
                    lost_s=max(0.0, seen_s - at_s), lost_steps=last[0] - resumed[0]
                )
        cause = _end_cause(log.last, start, told, over=after is not None)
        until_s = _time(next(iter(after.events), {})) if after is not None else math.inf
        if cause in {"", KILLED, ERROR}:
            cause = _supervisor_cause(supervisor, start, until_s) or cause
        if (
            cause == KILLED
            and after is not None
            and _is_node_lost(start, owner.job_of(after.owner), supervisor)
        ):
            cause = NODE_LOST
        # the supervisor ended it for its hang
        if cause != DONE and any(seen_s <= each <= until_s for each in hung):
            cause = HANG
        found.append(
            start._replace(
                cause=cause, why=_error_text(log.last), spent=seconds_spent(log, supervisor)
            )
        )
    return found


def starts_of_command(supervisor: Sequence[Event]) -> list[ProgramStart]:
    """Return the starts of a command that has no run, from its supervisor's journal alone."""
    found: list[ProgramStart] = []
    told = [event for event in supervisor if event["event"] in AFTERWARDS]
    begin: Event = {}
    open_ = ended = False  # the present supervisor's last start
    for event in supervisor:
        if event["event"] == "begin":
            begin, open_, ended = event, False, False
        elif event["event"] == "start":
            facts = _mapping(begin.get("owner"))
            job, restart = owner.job_of(facts)
            open_, ended = True, False
            found.append(
                ProgramStart(
                    job,
                    restart,
                    str(facts.get("host", "")),
                    _time(event),
                    _time(event),
                    None,
                    None,
                    "",
                )
            )
        elif event["event"] == "exit" and open_:
            last = found[-1]._replace(seen_s=_time(event), last=_step(event))
            found[-1], open_, ended = (
                last._replace(cause=_exit_cause(event, last, told)),
                False,
                True,
            )
        elif event["event"] in CLOSING and ended:
            found[-1] = found[-1]._replace(why=_error_text(event))
    return [
        start._replace(
            cause=NODE_LOST
            if _is_node_lost(start, (after.job, after.restart), supervisor)
            else KILLED
        )
        if not start.cause and after is not None
        else start
        for start, after in itertools.zip_longest(found, found[1:])
    ]


def summarize(starts: Sequence[ProgramStart]) -> str:
    """Return in words how many starts there were, why they ended, and how much was done again."""
    causes = Counter(start.cause for start in starts if start.cause not in ("", DONE))
    why = ", ".join(f"{count} {cause}" for cause, count in causes.most_common())
    line = counted(len(starts), "start") + (f" ({why})" if why else "")
    lost_s = sum(start.lost_s for start in starts)
    return f"{line}, {duration(lost_s)} redone" if lost_s >= 1 else line


def seconds_spent(log: Log, supervisor: Sequence[Event]) -> dict[str, float]:
    """Return the seconds of each part of a start; a part that the journals do not show is left out.

    queue: from the request for a requeue, or the end of the start before, until the program is
    started. imports: until the run is opened: the interpreter, and what the script does before.
    restore: claims, opens and restores the run.
    """
    begin_s = _time(next(iter(log.events), {}))
    restored = next(log.newest("restored"), {})
    first = next(log.newest("first_step"), {})
    if not begin_s or not restored:
        return {}
    found = _seconds_before(begin_s, supervisor)
    if IMPORTS not in found and isinstance(first.get("process_s"), int | float):
        found[IMPORTS] = begin_s - (_time(first) - float(first["process_s"]))
    found[RESTORE] = _time(restored) - begin_s
    if first:
        found[STEP] = _time(first) - _time(restored)
    return {name: round(max(0.0, seconds), 3) for name, seconds in found.items()}


def describe_seconds_spent(parts: Mapping[str, float]) -> str:
    """Return in words how long a start took:
    "5.3 s to its first step (imports 3.5 s, queue 1 s)".
    """
    told = sorted(
        ((seconds, name) for name, seconds in parts.items() if seconds >= 0.005), reverse=True
    )
    words = ", ".join(f"{name} {seconds:.3g} s" for seconds, name in told)
    return (
        f"{sum(parts.values()):.3g} s to its first step ({words})" if STEP in parts and told else ""
    )


def _seconds_before(begin_s: float, supervisor: Sequence[Event]) -> dict[str, float]:
    """Return what the supervisor's journal shows of the time before the run was opened."""
    before = itertools.dropwhile(
        lambda event: _time(event) > begin_s or event["event"] != "start", supervisor[::-1]
    )
    start = next(before, None)
    if start is None:
        return {}
    found, is_its_first = {IMPORTS: begin_s - _time(start)}, False
    for event in before:
        if event["event"] in {"requeued", "submitted"} or (
            event["event"] == "exit" and not is_its_first
        ):
            found[QUEUE] = _time(start) - _time(event)
        if event["event"] in {"requeued", "submitted", "exit"}:
            break
        # what ended before it ended under another supervisor
        is_its_first |= event["event"] == "begin"
    return found


def _end_cause(last: Event, start: ProgramStart, told: Iterable[Event], *, over: bool) -> str:
    kind = last.get("event")
    if kind == "end":
        return DONE
    if kind == "failed":
        return ERROR
    if kind == "stop":
        return _stop_cause(str(last.get("reason", "")), start, told)
    return KILLED if over else ""


def _exit_cause(event: Event, start: ProgramStart, told: Iterable[Event]) -> str:
    verdict, code = event.get("verdict"), event.get("code")
    if verdict == DONE:
        return DONE
    if event.get("hung"):
        return HANG
    if event.get("cause"):
        return str(event["cause"])
    if event.get("told") or verdict == "stopped":
        return _stop_cause(str(event.get("told") or event.get("reason") or ""), start, told)
    return KILLED if isinstance(code, int) and code < 0 else ERROR


def _supervisor_cause(supervisor: Iterable[Event], start: ProgramStart, until_s: float) -> str:
    """Return the cause that the supervisor recorded when the start ended; "" if it
    recorded none.
    """
    ends = (
        event
        for event in supervisor
        if event["event"] == "exit" and start.began_s <= _time(event) <= until_s
    )
    return str(next(ends, {}).get("cause", ""))


def _is_node_lost(
    start: ProgramStart, after: tuple[str | None, int], supervisor: Sequence[Event]
) -> bool:
    """Return whether the start's node was lost: the scheduler restarted the job, and the supervisor
    recorded no reason.

    Before any other end the scheduler signals the supervisor, which records that. Without a
    supervisor the cause stays unclear.
    """
    again = start.job is not None and after[0] == start.job and after[1] > start.restart
    begun = [event for event in supervisor if event["event"] == "begin"]
    ours = [
        owner.job_of(_mapping(event.get("owner"))) == (start.job, start.restart) for event in begun
    ]
    if not again or not any(ours):
        return False
    first = begun[ours.index(True)]
    later = supervisor[list(supervisor).index(first) + 1 :]
    while_it_ran = list(itertools.takewhile(lambda event: event["event"] != "begin", later))
    return not any(event["event"] in {"signal", *CLOSING, *AFTERWARDS} for event in while_it_ran)


def _stop_cause(reason: str, start: ProgramStart, told: Iterable[Event]) -> str:
    """Return the scheduler's cause of a stop if it is in a journal, else what caused the start to
    stop.
    """
    for event in told:
        ours = str(event.get("job")) == start.job and _time(event) >= start.began_s
        if (
            ours
            and event.get("restart_count", start.restart) == start.restart
            and event.get("cause") in _SAID
        ):
            return _SAID[str(event["cause"])]
    return _REASONS.get(reason, f"stopped by {reason}" if reason else "stopped")


def _last_events(log: Log) -> list[Event]:
    """Return the last events, the newest first, back to the one that shows the program's progress.

    A journal may have millions of lines. Those before are of earlier steps.
    """
    found = []
    for event in reversed(log.events):
        found.append(event)
        if event["event"] in {"metrics", "at", "restored"}:
            break
    return found


def _is_before_move(event: Event, place: tuple[int, int]) -> bool:
    """Return whether the event was written before the program moved on from `place`. A save's line
    may be written later.
    """
    return event["event"] not in {"saved", *AFTERWARDS} and journal.position(event) <= place


def _error_text(last: Event) -> str:
    return str(last.get("error", "")) if last.get("event") == "failed" else ""


def _mapping(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _step(event: Event) -> int | None:
    step = event.get("step")
    return step if isinstance(step, int) else None


def _time(event: Event) -> float:
    time = event.get("time")
    return float(time) if isinstance(time, int | float) else 0.0
