"""Waiting: which local checkpoints are still to be copied to a place, and which of its copies may
go. Pure.

At a place one copy runs and the newest checkpoint waits; a newer one takes its turn. Others wait
only if a rule of the place names them (`Best`, `Every`), if they are pinned, or if they are the
newest with finite weights.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from .. import retention
from ..retention import PHASES, CheckpointFacts
from ..rules import AnyOf, Best, Every, Rule, parts


def checkpoints_to_copy(
    local: Sequence[CheckpointFacts], there: Sequence[CheckpointFacts], rule: Rule
) -> list[str]:
    """Return the names of the `local` checkpoints to copy, in order: the newest first.

    `there`: the copies at the place, of this lineage.
    """
    have = {facts.name for facts in there}
    missing = [
        facts for facts in sorted(local, key=age_order, reverse=True) if facts.name not in have
    ]
    if not missing:
        return []
    newest, finite = max([*local, *there], key=age_order), retention.newest_finite([*local, *there])
    wanted = {
        newest.name,
        *([finite.name] if finite else []),
        *(facts.name for facts in local if facts.pinned),
    }
    wanted |= _named(rule, [*missing, *there])
    return [facts.name for facts in missing if facts.name in wanted]


def copies_to_remove(
    there: Sequence[CheckpointFacts], rule: Rule, verified: Collection[str]
) -> list[str]:
    """Return the names of the copies that `rule` does not keep and that are older than one of
    the `verified`.
    """
    kept = retention.keep(there, rule)
    newest = max((age_order(facts) for facts in there if facts.name in verified), default=None)
    return [
        facts.name
        for facts in there
        if facts.name not in kept and newest is not None and age_order(facts) < newest
    ]


def age_order(facts: CheckpointFacts) -> tuple[int, int]:
    """Return the sort key that orders checkpoints of one lineage by age."""
    return facts.step, PHASES[facts.phase]


def _named(rule: Rule, checkpoints: Sequence[CheckpointFacts]) -> set[str]:
    """Return the newest name, and the names that the rule keeps for another reason than being
    among the newest.
    """
    lasting = tuple(each for each in parts(rule) if isinstance(each, Best | Every))
    return retention.keep(checkpoints, AnyOf(lasting)) if lasting else set()
