"""Beginnings: where the time between a start and its first step went, from the journals. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ..journal import Event, Log

QUEUE, WAIT, IMPORTS, OPEN, RESTORE, STEP = "queue", "wait", "imports", "open", "restore", "first step"


def spent(log: Log, supervisor: Sequence[Event]) -> dict[str, float]:
    """Return the seconds that each part of a start took; a part that the journals do not show is left out.

    queue: from the request for a requeue to the supervisor. wait: from the end of the start before. imports: from the
    process's start until the run is opened: the interpreter, and what the script does before. open: claims the run.
    """
    begin_s = _time(next(iter(log.events), {}))
    restored = next(log.newest("restored"), {})
    first = next(log.newest("first_step"), {})
    if not begin_s or not restored:
        return {}
    found = _before(begin_s, supervisor)
    if IMPORTS not in found and first and isinstance(first.get("process_s"), int | float):
        found[IMPORTS] = begin_s - (_time(first) - float(first["process_s"]))
    restore_s = float(restored.get("restore_s") or 0.0)
    found[OPEN] = _time(restored) - begin_s - restore_s
    found[RESTORE] = restore_s
    if first:
        found[STEP] = _time(first) - _time(restored)
    return {name: round(max(0.0, seconds), 3) for name, seconds in found.items()}


def shown(parts: Mapping[str, float]) -> str:
    """Return in words how long a start took: "5.3 s to its first step (imports 3.5 s, wait 1 s)"."""
    told = sorted(((seconds, name) for name, seconds in parts.items() if seconds >= 0.005), reverse=True)
    words = ", ".join(f"{name} {seconds:.3g} s" for seconds, name in told)
    return f"{sum(parts.values()):.3g} s to its first step ({words})" if STEP in parts and told else ""


def _before(begin_s: float, supervisor: Sequence[Event]) -> dict[str, float]:
    """Return what the supervisor's journal shows of the time before the run was opened."""
    earlier = [event for event in supervisor if _time(event) <= begin_s]
    place = next((at for at in reversed(range(len(earlier))) if earlier[at]["event"] == "start"), None)
    if place is None:
        return {}
    start_s, found = _time(earlier[place]), {}
    for event in reversed(earlier[:place]):
        if event["event"] == "exit":
            found[WAIT] = start_s - _time(event)
            break
        if event["event"] == "begin":
            asked = [_time(each) for each in earlier if each["event"] in {"requeued", "submitted"}]
            if asked:
                found[QUEUE] = _time(event) - asked[-1]
            break
    found[IMPORTS] = begin_s - start_s
    return found


def _time(event: Event) -> float:
    time = event.get("time")
    return float(time) if isinstance(time, int | float) else 0.0
