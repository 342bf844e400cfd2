"""Retention: which checkpoints a rule keeps. Pure: `store/` does the deleting."""

from __future__ import annotations

import builtins
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from .rules import AnyOf, Best, Every, Last, Rule, Within

# a step's own checkpoint sorts before the one after the epoch's body
PHASES = {"step": 0, "end": 1}


class CheckpointFacts(NamedTuple):
    """What retention needs to know about one committed checkpoint."""

    name: str
    step: int
    phase: str  # "step" | "end"
    epoch: int | None  # counted from 0
    created: float  # Unix seconds
    metrics: Mapping[str, float]
    size_bytes: int
    pinned: bool
    finite: bool = True  # no weight is known to be infinite or NaN


def keep(checkpoints: Sequence[CheckpointFacts], rule: Rule) -> set[str]:
    """Return the names of `checkpoints` to keep.

    They are those of the rule, the pinned, and always the newest, and the newest whose weights are
    finite.
    """
    ordered = sorted(checkpoints, key=_age)
    finite = newest_finite(ordered)
    pinned = (facts for facts in ordered if facts.pinned)
    kept = [*ordered[-1:], *([finite] if finite else []), *pinned, *_kept_by_rule(rule, ordered)]
    return {facts.name for facts in kept}


def newest_finite(checkpoints: Iterable[CheckpointFacts]) -> CheckpointFacts | None:
    """Return the newest checkpoint whose weights are finite; None if there is none."""
    return max((facts for facts in checkpoints if facts.finite), key=_age, default=None)


def beats(value: float, rule: Best, checkpoints: Iterable[CheckpointFacts]) -> bool:
    """Return whether a checkpoint with this `rule.metric` would be among the `rule.n` best.

    A checkpoint that ties with the worst of them would not, nor one whose value is not finite.
    """
    if not math.isfinite(value):
        return False
    others = rank_by_metric(rule, checkpoints)
    return len(others) < rule.n or _sort_value(rule, value) < _sort_value(
        rule, others[rule.n - 1].metrics[rule.metric]
    )


def _age(facts: CheckpointFacts) -> tuple[int, int]:
    return facts.step, PHASES[facts.phase]


def _kept_by_rule(rule: Rule, ordered: Sequence[CheckpointFacts]) -> Iterable[CheckpointFacts]:
    match rule:
        case Last(n):
            return ordered[-n:]
        case Best():
            return rank_by_metric(rule, ordered)[: rule.n]
        case Every():
            return _first_of_each_group(rule, ordered)
        case Within():
            return _newest_within(rule.bytes, ordered)
        case AnyOf(rules):
            return [facts for each in rules for facts in _kept_by_rule(each, ordered)]


def rank_by_metric(rule: Best, checkpoints: Iterable[CheckpointFacts]) -> list[CheckpointFacts]:
    """Return the checkpoints with a finite `rule.metric`,
    best first; of equals the older one is first.
    """
    measured = [
        facts for facts in checkpoints if math.isfinite(facts.metrics.get(rule.metric, math.nan))
    ]
    return sorted(
        measured, key=lambda facts: (_sort_value(rule, facts.metrics[rule.metric]), _age(facts))
    )


def _sort_value(rule: Best, value: float) -> float:
    """Return a number that is smaller for a better value."""
    return -value if rule.direction is builtins.max else value


def _first_of_each_group(
    rule: Every, ordered: Sequence[CheckpointFacts]
) -> Iterable[CheckpointFacts]:
    """The first of each group. Pruning the others does not change it, so the rule may be applied
    after every save.
    """
    firsts: dict[int, CheckpointFacts] = {}
    for facts in ordered:
        group = _group(rule, facts)
        if group is not None:
            firsts.setdefault(group, facts)
    return firsts.values()


def _group(rule: Every, facts: CheckpointFacts) -> int | None:
    """Return the number of boundaries of `rule` before `facts`; None if the epoch is unknown."""
    if rule.steps is not None:
        return facts.step // rule.steps
    if rule.minutes is not None:
        return int(facts.created // (60 * rule.minutes))
    if rule.epochs is None or facts.epoch is None:
        return None
    # completed epochs: its own one counts after its end
    return (facts.epoch + PHASES[facts.phase]) // rule.epochs


def _newest_within(
    size_bytes: float, ordered: Sequence[CheckpointFacts]
) -> Iterable[CheckpointFacts]:
    total = 0
    for facts in reversed(ordered):
        total += facts.size_bytes
        if total > size_bytes:
            return
        yield facts
