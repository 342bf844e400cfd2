"""What became of a run, read from its journals and checkpoints: the facts of `holdfast report`."""

from __future__ import annotations

import itertools
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from .. import journal, scan
from ..inspect.mirrors import MirrorFacts, mirrors_of_run
from ..inspect.starts import ProgramStart
from ..journal import Event, Log
from ..legible import counted, duration
from ..supervise import status
from ..supervise.place import JOURNAL
from ..supervise.status import RunDirectories, Status
from .accounting import CATEGORIES, Account, account, named, seconds_between
from .curves import Curve, MetricsReader, soundness, summarize
from .interruptions import COSTS, NOT_TOLD, NOTICES, Interruption, advice, interruptions
from .times import Position, StartTimes, start_times

ALIVE = {"running"}
ENVIRONMENT = ("command", "git", "python", "libraries", "host", "hyperparameters", "dataset")
FIRST_LINES = 30  # of an attempt, in which it journals what it runs in
MOST_TOLD = 200  # warnings that are kept
MOST_CAUSES = 6  # in a sentence


class Save(NamedTuple):
    """One save, according to the journal."""

    name: str
    step: int
    attempt: int
    at_s: float  # Unix seconds
    size_bytes: int
    stall_s: float  # the loop waited
    save_s: float  # until it was durable
    reason: str
    late_rank: int | None  # which rank came last; None: there is one, or the run is an older one
    late_s: float  # rank 0 waited for it


class BestValue(NamedTuple):
    """The best value of the metric that the run's keep= names."""

    metric: str
    value: float
    step: int
    largest: bool  # whether the largest is best

    @property
    def text(self) -> str:
        """The value, its step, and what decides."""
        which = "largest" if self.largest else "smallest"
        return (
            f"{self.metric} {self.value:.5g} at step {self.step:,}, the {which} by keep=Best(...)"
        )


class RunReport(NamedTuple):
    """What became of one run. Times are Unix seconds."""

    name: str
    status: Status
    account: Account
    starts: list[StartTimes]
    ends: Mapping[int, ProgramStart]  # by the attempt's number, or the start's if it has no run
    interruptions: list[Interruption]
    advice: list[str]
    saves: list[Save]
    environments: list[tuple[int, dict[str, Any]]]  # (attempt, facts), oldest first
    warnings: list[tuple[int, float, str]]  # (attempt, when, line)
    metrics: MetricsReader
    curves: list[Curve]
    best: BestValue | None
    mirrors: list[MirrorFacts]
    # when each checkpoint was read last, all its digests right, in Unix seconds
    verified: Mapping[str, float]

    @property
    def lost(self) -> dict[str, float]:
        """What interruptions cost by category, the greatest first. The first start is not in it."""
        sums = {name: sum(each.costs[name] for each in self.interruptions) for name in COSTS}
        return {name: sums[name] for name in sorted(sums, key=lambda name: -sums[name])}

    @property
    def lost_s(self) -> float:
        """All that interruptions cost."""
        return sum(self.lost.values())

    def end_of(self, start: StartTimes) -> ProgramStart:
        """Return why and where a start ended."""
        return self.ends.get(start.attempt or self.starts.index(start) + 1, NOT_TOLD)

    @property
    def soundness(self) -> str:
        """Whether the curves are sound, in sentences; empty: there are none."""
        told = soundness(self.curves)
        undone = {attempt for curve in self.curves for attempt, _, _ in curve.undone}
        joined = [
            after
            for start, after in itertools.pairwise(self.starts)
            if after.restored is not None and start.attempt not in undone
        ]
        changed = dict.fromkeys(each["what"] for each in changes(self.environments))
        if told and joined:
            told.append(f"{named(joined).capitalize()}: no step was logged twice")
        if told and changed:
            told.append(f"Changed between attempts: {', '.join(changed)} (see What it ran)")
        return " ".join(f"{each}." for each in told)

    @property
    def verdict(self) -> tuple[str, str]:
        """("done", "goes on" or "needs you", one sentence)."""
        state, reason = self.status.state, self.status.why and f" ({self.status.why})"
        step = "" if self.status.step is None else f" at step {self.status.step:,}"
        parts = [f"{duration(s)} {COSTS[name]}" for name, s in self.lost.items() if s >= 1]
        lost = f" lost {duration(self.lost_s)}, the first start not counted: {', '.join(parts)}"
        causes = Counter(each.cause for each in self.interruptions).most_common()
        told = [f"{count} {cause}" for cause, count in causes[:MOST_CAUSES]]
        if rest := sum(count for _, count in causes[MOST_CAUSES:]):
            told.append(f"{rest} of other causes")
        why_ended = f" ({', '.join(told)})" if told else ""
        times = counted(len(self.interruptions), "interruption")
        signals = "".join(NOTICES.get(cause, "") for cause, _ in causes)
        story = f"{times}{why_ended}{lost if parts else ''}.{signals}"
        if state == "done":
            return "done", f"It finished{step}: {story}"
        if state in {"running", "queued"}:
            at_work = "It is at work" if state == "running" else "It waits in the queue"
            return "goes on", f"{at_work}{step}{reason}: {story}"
        return "needs you", f"It is {state}{step}{reason}: {story}"


def read(place: RunDirectories, now_s: float | None = None) -> RunReport:
    """Read what became of a run. Memory grows with its metrics (16 bytes a value) and its saves.

    `now_s`: in Unix seconds; by default the present.
    """
    queued, _ = status.read_queue()
    logs = journal.logs(place.run) if place.run is not None else []
    place = _with_supervisor(place, logs)
    found, events = status.run_status(place, queued, logs), status.read_events(place)
    # an attempt of which nothing can be read is none of the starts
    alive = found.state in ALIVE and (not logs or any(True for _ in logs[-1].events))
    begun = [log.attempt for log in logs if log.restored is not None]
    causes = dict(zip(begun or range(1, len(found.starts) + 1), found.starts, strict=False))
    collector = _Collector()
    starts = start_times(logs, events, over=not alive, seen=collector)
    spent = account(starts, (time.time() if now_s is None else now_s) if alive else None)
    curves = collector.metrics.curves()
    ended = interruptions(spent, starts, causes, alive=alive)
    best_s = sum(save.stall_s for save in collector.saves if save.reason == "new best")
    return RunReport(
        found.name,
        found,
        spent,
        starts,
        causes,
        ended,
        advice(spent, starts, ended, supervised=place.directory is not None, best_s=best_s),
        sorted(collector.saves, key=lambda save: save.at_s),
        sorted(collector.environments, key=lambda each: each[0]),
        sorted(collector.warnings)[-MOST_TOLD:],
        collector.metrics,
        curves,
        _best(collector.keep, curves),
        mirrors_of_run(logs),
        collector.verified,
    )


def facts(report: RunReport) -> dict[str, Any]:
    """Return the report for `--json`."""
    spent = report.account
    return {
        "run": report.status.run,
        "name": report.name,
        "state": report.status.state,
        "verdict": report.verdict[0],
        "next": report.status.next,
        "step": report.status.step,
        "began": spent.began_s,
        "wall_s": spent.wall_s,
        "goodput": spent.goodput,
        "seconds": spent.seconds,
        "lost_s": report.lost_s,
        "lost": report.lost,
        "google": google_seconds(spent),
        "estimated": spent.estimated,
        "attempts": [_attempt_facts(report, start) for start in report.starts],
        "interruptions": [each._asdict() for each in report.interruptions],
        "advice": report.advice,
        "saves": {
            "count": len(report.saves),
            "waited_s": sum(save.stall_s for save in report.saves),
            "bytes": sum(save.size_bytes for save in report.saves),
        },
        "late_ranks": late_ranks(report.saves),
        "best": None if report.best is None else report.best._asdict(),
        "again": sum(curve.again for curve in report.curves),
        "different": {c.name: c.different for c in report.curves if c.different},
        "metrics": {curve.name: summarize(curve) for curve in report.curves},
        "changes": changes(report.environments),
        "warnings": [
            {"attempt": attempt, "time": at_s, "line": line}
            for attempt, at_s, line in report.warnings
        ],
    }


def google_seconds(spent: Account) -> dict[str, float]:
    """Return the seconds under the names of Google's ml-goodput-measurement."""
    found: dict[str, float] = {}
    for name, (_, theirs) in CATEGORIES.items():
        found[theirs] = found.get(theirs, 0.0) + spent.seconds[name]
    return found


def changes(environments: Sequence[tuple[int, dict[str, Any]]]) -> list[dict[str, Any]]:
    """Return what changed from one attempt to the next: attempt, what, from and to."""
    found = []
    for (_, before), (attempt, after) in itertools.pairwise(environments):
        old, new = dict(_flat(before)), dict(_flat(after))
        found += [
            {"attempt": attempt, "what": name, "from": old.get(name), "to": new.get(name)}
            for name in {**old, **new}
            if old.get(name) != new.get(name)
        ]
    return found


class _Collector:
    """Takes what a report shows from the events of all attempts; each is seen once."""

    def __init__(self) -> None:
        self.metrics = MetricsReader()
        self.saves: list[Save] = []
        self.environments: list[tuple[int, dict[str, Any]]] = []
        self.warnings: list[tuple[int, float, str]] = []
        self.verified: dict[str, float] = {}
        self.keep = ""  # the newest attempt's rule

    def __call__(self, log: Log, counts: bool, place: Position, event: Event) -> None:
        kind = event["event"]
        if kind == "metrics":  # most lines are
            self.metrics.add(log.attempt, place, event, counts=counts)
            return
        match kind:
            case "saved":
                self.saves.append(_save(log.attempt, place[0], event))
            case "restored" | "pruned":
                self.keep = self.keep or str(event.get("keep") or "")
                named = event.get("read_back") or [event.get("checkpoint")]
                for name in named if isinstance(named, list) else ():
                    before = self.verified.get(str(name), 0.0)
                    self.verified[str(name)] = max(before, float(event["time"]))
            case "environment":
                kept = {name: event[name] for name in ENVIRONMENT if event.get(name) is not None}
                self.environments.append((log.attempt, kept))
            case (
                "told"
                | "tracker_told"
                | "save_failed"
                | "unreadable"
                | "quarantined"
                | "mirror_failed"
            ):
                line = event.get("what") or event.get("why") or event.get("error") or event["event"]
                self.warnings.append((log.attempt, float(event["time"]), str(line)))


def _save(attempt: int, step: int, event: Event) -> Save:
    size = event.get("size_bytes")
    return Save(
        str(event.get("checkpoint", "")),
        step,
        attempt,
        float(event["time"]),
        size if isinstance(size, int) else 0,
        float(event.get("stall_s", 0.0)),
        float(event.get("save_s", 0.0)),
        str(event.get("reason", "")),
        event.get("late_rank"),
        float(event.get("late_s", 0.0)),
    )


def late_ranks(saves: Sequence[Save]) -> list[dict[str, Any]]:
    """Return each rank that came last to a save: how often, and how long rank 0 waited for it. The
    one that took most time comes first. Rank 0 is the last when it waits for no other.
    """
    found: dict[int, dict[str, Any]] = {}
    for save in saves:
        if save.late_rank is not None:
            facts = found.setdefault(
                save.late_rank, {"rank": save.late_rank, "saves": 0, "waited_s": 0.0}
            )
            facts["saves"] += 1
            facts["waited_s"] += save.late_s
    return sorted(found.values(), key=lambda facts: -facts["waited_s"])


def _attempt_facts(report: RunReport, start: StartTimes) -> dict[str, Any]:
    told = report.end_of(start)
    end_s = start.began_s + start.ended
    return {
        "attempt": start.attempt,
        "began": start.began_s,
        "wall_s": start.ended,
        "queued_s": start.queued_s,
        "first_step": start.first,
        "last_step": start.last[0],
        "cause": told.cause,
        "host": told.host,
        "job": told.job,
        "seconds": dict(seconds_between(report.account, start.began_s, end_s)),
    }


def _best(keep: str, curves: Sequence[Curve]) -> BestValue | None:
    """Return the best value by the rule `keep`, as it is journalled: `Best('val_acc', max, 1)`."""
    rules = {f"Best({curve.name!r}, ": curve for curve in curves}
    first = min((rule for rule in rules if rule in keep), key=keep.find, default=None)
    if first is None:
        return None
    word, facts = keep.partition(first)[2][:3], summarize(rules[first])
    value = facts.get(word)
    if value is None:
        return None
    return BestValue(rules[first].name, value, facts[f"{word}_step"], word == "max")


def _flat(value: Mapping[str, Any], under: str = "") -> Iterator[tuple[str, Any]]:
    for name, each in value.items():
        if isinstance(each, Mapping):
            yield from _flat(each, f"{under}{name}.")
        else:
            yield f"{under}{name}", each


def _with_supervisor(place: RunDirectories, logs: Sequence[Log]) -> RunDirectories:
    """Return it with the directory of its last supervisor, which the run has journalled."""
    if place.directory is None:
        for log in reversed(logs):
            for event in itertools.islice(log.events, FIRST_LINES):
                found = event.get("supervisor") if event["event"] == "environment" else None
                if isinstance(found, str) and scan.is_file(Path(found) / JOURNAL):
                    return place._replace(directory=Path(found))
    return place
