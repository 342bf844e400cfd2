"""Attempts: how each of a run's attempts began and ended, as its journal tells."""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import Any

from .. import owner
from ..journal import Event, Log


def attempts(logs: Iterable[Log]) -> list[dict[str, Any]]:
    """One summary for each attempt, oldest first. Journals are files: what is not of its type is passed over."""
    return [_summary(log) for log in logs]


def _summary(log: Log) -> dict[str, Any]:
    steps = [event["step"] for event in log.events if isinstance(event.get("step"), int)]
    times = [event["time"] for event in log.events if isinstance(event.get("time"), int | float)]
    restored = next((event for event in reversed(log.events) if event["event"] == "restored"), None)
    return {
        "attempt": log.attempt,
        "owner": owner.describe(log.owner),
        "began": times[0] if times else None,
        "seconds": round(times[-1] - times[0], 3) if len(times) > 1 else None,
        "restored": restored.get("checkpoint") if restored else None,
        "restored_step": restored.get("step") if restored else None,
        "last_step": max(steps, default=0) or None,
        "saved": _count(log, "saved"),
        "pruned": sum(len(event["names"]) for event in log.events if isinstance(event.get("names"), list)),
        "quarantined": _count(log, "quarantined"),
        "ended": _ended(log, times),
    }


def _count(log: Log, kind: str) -> int:
    return sum(event["event"] == kind for event in log.events)


def _ended(log: Log, times: list[float]) -> str:
    last: Event = log.last
    if last.get("event") == "stop":
        return f"stopped: {last.get('reason', 'no reason given')}"
    if last.get("event") == "failed":
        return f"failed: {last.get('error', 'no error given')}"
    if last.get("event") == "end":
        return "ended"
    if log.path.parent.name == "history":
        return "killed"
    who = log.owner if isinstance(log.owner.get("pid"), int) else {}
    if who and owner.proven_gone(who, max(times, default=time.time())):
        return "killed"
    return f"may be running: {owner.describe(log.owner)}"
