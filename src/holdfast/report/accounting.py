"""Where the time of a run went: each second from its first start on belongs to one category. Pure.

Where several claim a second, the first in CATEGORIES has it.
"""

from __future__ import annotations

import itertools
import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

import msgspec

from .times import StartTimes

# name -> (what it means, its name in Google's ml-goodput-measurement 0.2.4)
CATEGORIES = {
    "hang": ("stood still until it was ended", "CUSTOM_BADPUT_EVENTS"),
    "stop": ("last save, last copies, end of the process", "UNPRODUCTIVE_CHECKPOINT_SAVE_TIME"),
    "start": ("interpreter, imports, what the first step has to prepare", "PROGRAM_STARTUP"),
    "restore": ("claims the run and reads its checkpoint", "UNPRODUCTIVE_CHECKPOINT_RESTORE_TIME"),
    "redone": ("training that a later attempt did again", "WASTED_PROGRESS_FROM_DISRUPTION"),
    "save": ("the loop waits for a save", "UNPRODUCTIVE_CHECKPOINT_SAVE_TIME"),
    "evaluation": ("from an epoch's last step to its end", "CUSTOM_BADPUT_EVENTS"),
    "training": ("training that counts", "TOTAL_PRODUCTIVE"),
    "queue": ("waits for the scheduler", "INFRASTRUCTURE_RECOVERY_FROM_DISRUPTION"),
    "idle": ("nobody has started it again yet", "INFRASTRUCTURE_RECOVERY_FROM_DISRUPTION"),
    "unknown": ("the journals have no line about it", "OTHER"),
}
MOST_NAMED = 12
_RANK = {name: at for at, name in enumerate(CATEGORIES)}


class Span(NamedTuple):
    """A stretch of time of one category. Unix seconds."""

    category: str
    began_s: float
    ended_s: float


class Account(NamedTuple):
    """Where the time went."""

    began_s: float
    wall_s: float
    seconds: dict[str, float]  # of each category; their sum is wall_s
    spans: list[Span]  # without gaps or overlaps
    estimated: list[str]  # what is not known exactly, in words

    @property
    def goodput(self) -> float | None:
        """The part of the time in which training advanced that counts."""
        return self.seconds["training"] / self.wall_s if self.wall_s > 0 else None

    @property
    def parts(self) -> list[tuple[str, float, float]]:
        """Each category that has time, the greatest first: its name, seconds and part of all."""
        found = sorted(self.seconds.items(), key=lambda each: -each[1])
        return [(name, took_s, took_s / self.wall_s) for name, took_s in found if took_s > 0]


def account(starts: Sequence[StartTimes], until_s: float | None = None) -> Account:
    """Return where the time of these starts went, oldest first.

    Args:
        starts: their times, in order.
        until_s: now, if the last start is alive, in Unix seconds.
    """
    if not starts:
        return Account(0.0, 0.0, dict.fromkeys(CATEGORIES, 0.0), [], [])
    starts = list(starts)
    last = starts[-1]
    if until_s is not None and until_s > last.began_s + last.ended:
        starts[-1] = last = _alive(last, until_s)
    began_s, ended_s = starts[0].began_s, last.began_s + last.ended
    claims = [Span("unknown", began_s, ended_s)]
    for earlier, start in itertools.zip_longest([None, *starts[:-1]], starts):
        if earlier is not None:
            free_s = earlier.began_s + earlier.ended + earlier.unseen_s
            claims += [
                Span("idle", free_s, start.began_s - start.queued_s),
                Span("queue", start.began_s - start.queued_s, start.began_s),
            ]
        end_s = start.began_s + start.ended
        claims += (
            Span(name, max(at, start.began_s), min(until, end_s))
            for name, at, until in _claims(start)
        )
    within = (
        Span(name, max(at_s, began_s), min(until_s, ended_s)) for name, at_s, until_s in claims
    )
    spans = _settle([claim for claim in within if claim.ended_s > claim.began_s])
    took: dict[str, list[float]] = {name: [] for name in CATEGORIES}
    for span in spans:
        took[span.category].append(span.ended_s - span.began_s)
    seconds = {name: math.fsum(parts) for name, parts in took.items()}
    return Account(began_s, ended_s - began_s, seconds, spans, _estimated(starts))


def _estimated(starts: Sequence[StartTimes]) -> list[str]:
    """Return each reason once, with the attempts that it is about."""
    found: dict[str, list[StartTimes]] = {}
    for start in starts:
        for why in start.estimated:
            found.setdefault(why, []).append(start)
    return [f"{why} ({named(about)})" for why, about in found.items()]


def named(starts: Sequence[StartTimes]) -> str:
    """Return the numbers of attempts as text; of many, the first."""
    numbers = [str(start.attempt or "without a run") for start in starts]
    return (
        f"attempt{'s' if len(numbers) > 1 else ''} {', '.join(numbers[:MOST_NAMED])}"
        f"{' and others' if len(numbers) > MOST_NAMED else ''}"
    )


def spans_between(account: Account, from_s: float, until_s: float) -> list[Span]:
    """Return the stretches from one time to another, cut there."""
    return [
        span._replace(began_s=max(span.began_s, from_s), ended_s=min(span.ended_s, until_s))
        for span in account.spans
        if span.began_s < until_s and span.ended_s > from_s
    ]


def seconds_between(account: Account, from_s: float, until_s: float) -> dict[str, float]:
    """Return the seconds of each category from one time to another; of others it gives 0."""
    found: dict[str, float] = defaultdict(float)
    for category, began_s, ended_s in spans_between(account, from_s, until_s):
        found[category] += ended_s - began_s
    return found


def _alive(start: StartTimes, until_s: float) -> StartTimes:
    """Return a start that is at work until now."""
    now = until_s - start.began_s
    return msgspec.structs.replace(
        start, ended=now, estimated=[], moved=None if start.restored is None else now
    )


def _claims(start: StartTimes) -> Iterator[tuple[str, float, float]]:
    """Yield what each part of a start claims: (category, from, until), in Unix seconds."""
    at, end = start.began_s, start.ended
    opened = end if start.opened is None and start.attempt is not None else start.opened or 0.0
    yield "start", at, at + opened
    if start.restored is None:
        yield "start" if start.opened is None else "restore", at + opened, at + end
        return
    yield "restore", at + opened, at + start.restored
    ready = _ready(start)
    yield "start", at + start.restored, at + ready
    yield "training", at + ready, at + end
    if start.kept_until is not None:
        yield "redone", at + start.kept_until, at + end
    if start.stopping is not None:
        yield "stop", at + start.stopping, at + end
    if start.hung_from is not None:
        yield "hang", at + start.hung_from, at + end
    for category, parts in (("save", start.saves), ("evaluation", start.evaluations)):
        for began, took in parts:
            yield category, at + began, at + began + took


def _ready(start: StartTimes) -> float:
    """Return when the first step was prepared: its time beyond that of a usual step is no work."""
    if start.first_step is None or start.restored is None:
        return start.restored or 0.0
    steps = start.last[0] - start.first - 1
    moved = start.moved if start.moved is not None else start.first_step
    usual = (moved - start.first_step) / steps if steps > 0 else start.first_step - start.restored
    return max(start.restored, start.first_step - usual)


def _settle(claims: Iterable[Span]) -> list[Span]:
    """Return stretches without gaps or overlaps: each moment goes to the first category that
    claims it.
    """
    edges: dict[float, Counter[str]] = {}
    for category, began_s, ended_s in claims:
        edges.setdefault(began_s, Counter())[category] += 1
        edges.setdefault(ended_s, Counter())[category] -= 1
    found: list[Span] = []
    active: Counter[str] = Counter()
    times = sorted(edges)
    for time_s, next_s in itertools.pairwise(times):
        for category, change in edges[time_s].items():
            active[category] += change
        category = min((name for name, n in active.items() if n > 0), key=_RANK.__getitem__)
        if found and found[-1].category == category:
            found[-1] = found[-1]._replace(ended_s=next_s)
        else:
            found.append(Span(category, time_s, next_s))
    return found
