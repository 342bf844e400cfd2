"""Best: whether the metrics of this safe point are worth a save. With several ranks, rank 0's metrics decide."""

from __future__ import annotations

import time
from collections.abc import Mapping
from contextlib import suppress
from typing import TYPE_CHECKING

from .. import retention
from ..ranks import Ranks
from ..rules import Best, parts
from ..terminal import warn

if TYPE_CHECKING:
    from .session import Session

PATIENCE_S = 10.0  # wait for ranks that log a metric inside an epoch a little later than rank 0
TOPIC = "the metric of a Best"

Measured = Mapping[str, float]


class Bests:
    """The values that a new best must beat, and which metrics of `Best` are logged where."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._rules = [rule for rule in parts(session.options.keep) if isinstance(rule, Best)]
        self._ranked: list[retention.CheckpointFacts] | None = None  # checkpoints to beat; None: read them again
        self._missed: set[str] = set()  # metrics that were not logged, and already reported
        self._shared: set[str] = set()  # metrics that all ranks log inside epochs, as far as is known

    def forget(self) -> None:
        """Read the checkpoints again: a save has begun or ended."""
        self._ranked = None

    def is_new(self, metrics: Measured) -> bool:
        """Return whether these metrics, or rank 0's, are a new best.

        At the end of an epoch only rank 0 must have them. Inside an epoch the ranks exchange no message at each safe
        point: a metric is ranked there only if every rank logs it.
        """
        session, ranks = self._session, self._session.ranks
        if ranks.alone or not self._rules:
            return self._beats(metrics)
        if session.position.phase == "end":
            return _told(ranks, ranks.rank == 0 and self._beats(metrics))
        measured = sorted({rule.metric for rule in self._rules} & metrics.keys())
        if not measured or session.windows is None:
            return False
        here = ranks.beside(f"best-{session.windows.point}")  # the ranks that logged it here
        if ranks.rank:
            for metric in {*measured} - self._shared:
                ranks.mark(f"logs {metric}")
            self._shared.update(measured)
            return _told(here, mine=False)
        shared = all(self._is_shared(metric) for metric in measured)
        session.windows.spent.append(here)
        return _told(here, shared and self._beats(metrics))

    def _is_shared(self, metric: str) -> bool:
        """Whether every rank logs the metric inside an epoch; determined once."""
        if metric in self._shared | self._missed:
            return metric in self._shared
        ranks = self._session.ranks
        until = time.monotonic() + min(PATIENCE_S, ranks.timeout_s / 2)
        while not (shared := ranks.all_marked(f"logs {metric}")) and time.monotonic() < until:
            time.sleep(0.01)
        (self._shared if shared else self._missed).add(metric)
        if not shared:
            warn(
                f"keep=Best({metric!r}, ...): logged inside of an epoch, and not on every rank: it brings about no "
                "save there, and is ranked only where another save falls on that very step. Log it on every rank, or "
                "at the end of the epoch, after its batches"
            )
        return shared

    def _beats(self, metrics: Measured) -> bool:
        measured = [rule for rule in self._rules if rule.metric in metrics]
        if measured and self._ranked is None:
            try:
                facts = self._committed()
            except OSError:  # the disk fails: one save too many is better than losing a best one
                return True
            best = {each.name: each for rule in self._rules for each in retention.ranked(rule, facts)[: rule.n]}
            self._ranked = list(best.values())  # the others cannot change the result, and this runs at every step
        return any(retention.beats(metrics[rule.metric], rule, self._ranked or ()) for rule in measured)

    def _committed(self) -> list[retention.CheckpointFacts]:
        """Facts of the committed checkpoints and of the one in flight."""
        flight = self._session.saves.flight
        return [*self._session.store.facts(), *([flight.as_committed()] if flight is not None else [])]

    def warn_of_the_unmeasured(self, metrics: Measured) -> None:
        """Warn once of a `Best` whose metric is never logged: it keeps nothing. A typing error is a likely cause."""
        for rule in self._rules:
            if rule.metric not in metrics and rule.metric not in self._missed:
                with suppress(OSError):  # the disk fails: the next epoch looks again
                    known = any(rule.metric in facts.metrics for facts in self._committed())
                    self._missed.add(rule.metric)
                    if not known:
                        had = f"run.log gave {', '.join(metrics)}" if metrics else "run.log gave nothing"
                        warn(f"keep=Best({rule.metric!r}, ...): no such metric was logged in this epoch ({had})")


def _told(ranks: Ranks, mine: bool) -> bool:
    return ranks.announce(TOPIC, b"yes" if mine else b"") == b"yes"
