"""Best: whether what was measured at this safe point is worth a save. Of several ranks, rank 0's numbers count."""

from __future__ import annotations

import time
from collections.abc import Mapping

from .. import retention
from ..ranks import Ranks
from ..rules import Best, parts
from ..terminal import warn
from .session import Session

PATIENCE_S = 10.0  # for ranks that log a metric inside of an epoch a little later than rank 0
TOPIC = "the metric of a Best"


def is_new(session: Session, metrics: Mapping[str, float]) -> bool:
    """Whether these metrics, or rank 0's, are a new best.

    At the end of an epoch rank 0 alone need have them. Inside of one there is no word at each safe point: a metric is
    ranked there only if every rank logs it.
    """
    ranks, rules = session.ranks, _rules(session)
    if ranks.alone or not rules:
        return _is_new(session, metrics)
    if session.position.phase == "end":
        return _told(ranks, ranks.rank == 0 and _is_new(session, metrics))
    measured = sorted({rule.metric for rule in rules} & metrics.keys())
    if not measured or session.windows is None:
        return False
    here = ranks.beside(f"best-{session.windows.point}")  # of those who have measured it
    if ranks.rank:
        for metric in measured:
            if metric not in session.shared_metrics:
                session.shared_metrics.add(metric)
                ranks.mark(f"logs {metric}")
        return _told(here, mine=False)
    shared = all(_is_shared(session, metric) for metric in measured)
    session.windows.spent.append(here)
    return _told(here, shared and _is_new(session, metrics))


def _told(ranks: Ranks, mine: bool) -> bool:
    return ranks.announce(TOPIC, b"yes" if mine else b"") == b"yes"


def _is_shared(session: Session, metric: str) -> bool:
    """Whether every rank logs it, inside of an epoch; found out once."""
    if metric in session.shared_metrics:
        return True
    if metric in session.missed:
        return False
    until = time.monotonic() + min(PATIENCE_S, session.ranks.timeout_s / 2)
    while not (shared := session.ranks.all_marked(f"logs {metric}")) and time.monotonic() < until:
        time.sleep(0.01)
    (session.shared_metrics if shared else session.missed).add(metric)
    if not shared:
        warn(
            f"keep=Best({metric!r}, ...): logged inside of an epoch, and not on every rank: it brings about no save there, "
            "and is ranked only where another save falls on that very step. Log it on every rank, or at the end of the epoch, "
            "after its batches"
        )
    return shared


def _rules(session: Session) -> list[Best]:
    return [rule for rule in parts(session.options.keep) if isinstance(rule, Best)]


def _is_new(session: Session, metrics: Mapping[str, float]) -> bool:
    if not metrics:
        return False
    rules = _rules(session)
    if rules and session.ranked is None:
        facts = _committed(session)
        best = {each.name: each for rule in rules for each in retention.ranked(rule, facts)[: rule.n]}
        session.ranked = list(best.values())  # the others could not make a difference, and are asked at every step
    measured = [rule for rule in rules if rule.metric in metrics]
    return any(retention.beats(metrics[rule.metric], rule, session.ranked or ()) for rule in measured)


def _committed(session: Session) -> list[retention.Facts]:
    """What the checkpoints say of themselves, the one in flight included."""
    in_flight = [session.flight.ranks()] if session.flight is not None else []
    return [*session.store.facts(), *in_flight]


def warn_of_the_unmeasured(session: Session, metrics: Mapping[str, float]) -> None:
    """Once: a `Best` whose metric nobody logs keeps nothing; a slip of the pen would cost the best weights."""
    for rule in _rules(session):
        if rule.metric not in metrics and rule.metric not in session.missed:
            session.missed.add(rule.metric)
            if not any(rule.metric in facts.metrics for facts in _committed(session)):
                had = f"run.log gave {', '.join(metrics)}" if metrics else "run.log gave nothing"
                warn(f"keep=Best({rule.metric!r}, ...): no such metric was logged in this epoch ({had})")
