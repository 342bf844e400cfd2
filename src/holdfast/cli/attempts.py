"""Attempts: how each attempt of a run began and ended, according to its journal."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable
from typing import Any

from .. import owner
from ..journal import Event, Log
from ..mirror.records import Claim, PlaceState


def summarize_attempts(logs: Iterable[Log]) -> list[dict[str, Any]]:
    """Return one summary for each attempt, oldest first.

    Entries of a wrong type are ignored: any program may write the file.
    """
    return [_attempt_summary(log) for log in logs]


def summarize_claims(seen: PlaceState) -> list[dict[str, Any]]:
    """Return one summary for each attempt that claimed a place, oldest first. A fact that the place
    does not hold is None.
    """
    saved = Counter(copy.attempt for copy in seen.copies)
    return [_claim_summary(claim, saved[claim.attempt]) for claim in seen.claims]


def _claim_summary(claim: Claim, saved: int) -> dict[str, Any]:
    return {
        "attempt": claim.attempt,
        "owner": owner.describe(claim.owner),
        "job": owner.job_of(claim.owner)[0],
        "began": claim.claimed or None,
        "seconds": None,
        "restored": claim.origin.name if claim.origin else None,
        "restored_step": None,
        "last_step": None,
        "saved": saved,
        "pruned": 0,
        "quarantined": 0,
        "ended": "ended" if claim.ended else _describe_alive(claim.owner, lambda: claim.claimed),
    }


def _describe_alive(facts: owner.Facts, last_seen: Callable[[], float]) -> str:
    gone = isinstance(facts.get("pid"), int) and owner.proven_gone(facts, last_seen)
    return "killed" if gone else f"may be running: {owner.describe(facts)}"


def _attempt_summary(log: Log) -> dict[str, Any]:
    steps = [event["step"] for event in log.events if isinstance(event.get("step"), int)]
    times = [event["time"] for event in log.events if isinstance(event.get("time"), int | float)]
    counts = Counter(event["event"] for event in log.events)
    restored: Event = next(
        (event for event in reversed(log.events) if event["event"] == "restored"), {}
    )
    return {
        "attempt": log.attempt,
        "owner": owner.describe(log.owner),
        "job": owner.job_of(log.owner)[0],
        "began": times[0] if times else None,
        "seconds": round(times[-1] - times[0], 3) if len(times) > 1 else None,
        "restored": restored.get("checkpoint"),
        "restored_step": restored.get("step"),
        "last_step": max(steps, default=0) or None,
        "saved": counts["saved"],
        "pruned": sum(
            len(event["names"]) for event in log.events if isinstance(event.get("names"), list)
        ),
        "quarantined": counts["quarantined"],
        "ended": _describe_end(log, times),
    }


def _describe_end(log: Log, times: list[float]) -> str:
    last: Event = log.last
    if last.get("event") == "stop":
        return f"stopped: {last.get('reason', 'no reason given')}"
    if last.get("event") == "failed":
        return f"failed: {last.get('error', 'no error given')}"
    if last.get("event") == "end":
        return "ended"
    if log.path.parent.name == "history":
        return "killed"
    return _describe_alive(log.owner, lambda: max(times, default=time.time()))
