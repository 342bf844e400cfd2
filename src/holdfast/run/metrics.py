"""Metrics: the values passed to run.log() since the last safe point,
and their epoch means. Bests: the best so far.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from copy import deepcopy
from fnmatch import fnmatchcase
from typing import Any

import msgspec

from .. import journal, retention
from ..errors import UsageError
from ..ranks import Ranks
from ..rules import Best
from ..store import format
from ..store.store import Store
from ..terminal import warn
from .passes import LoggedMetrics
from .position import Position
from .ranks import OrderWindows
from .report import Reporter

PATIENCE_S = 10.0  # wait for ranks that log a metric inside an epoch a little later than rank 0
TOPIC = "the metric of a Best"
# most metrics of one call that can be weights: a call's cost is this times its metrics
MOST_WEIGHTS = 8
_PLAIN = ""  # means no weight: each call counts 1
# metrics that differ in any two runs
TIMINGS = ("*_s", "*seconds*", "*time*", "*per_s*", "*throughput*")

Values = Mapping[str, float | str]
Measured = Mapping[str, float]


def is_timing(name: str) -> bool:
    """Whether a metric of that name is a duration or a speed, which differs in any two runs."""
    return any(fnmatchcase(name, pattern) for pattern in TIMINGS)


class Means:
    """Sum and count so far, for each metric and each weight logged in the same call.

    They equal bit for bit what a loop's `total += loss * n; count += n` computes, and are saved
    with the run.
    """

    def __init__(self, stored: dict[str, dict[str, list[float]]] | None = None) -> None:
        self._sums = deepcopy(stored or {})

    def state_dict(self) -> dict[str, dict[str, list[float]]]:
        return deepcopy(self._sums)

    def clear(self) -> None:
        self._sums.clear()

    def add(self, logged: Values) -> None:
        """Add the values of one call of run.log()."""
        values = {
            name: float(value) if isinstance(value, str) else value
            for name, value in logged.items()
        }
        weights = [(_PLAIN, 1), *(each for each in values.items() if each[0] != _PLAIN)][
            : MOST_WEIGHTS + 1
        ]
        for name, value in values.items():
            by = self._sums.setdefault(name, {})
            for weight, count in weights:
                if weight != name or weight == _PLAIN:
                    pair = by.get(weight) or by.setdefault(weight, [0.0, 0.0])
                    pair[0] += value * count
                    pair[1] += count

    def mean(self, name: str, weight: str | None = None) -> float:
        """Return the mean of the logged values.

        Raises:
            UsageError: no values were logged for the mean.
        """
        if weight is not None and not isinstance(weight, str):
            raise UsageError(
                f"run.mean({name!r}, weight={weight!r}): "
                "the weight is the name of a metric of the same call: "
                f'run.log({name}=..., n=len(x)), then run.mean({name!r}, weight="n")'
            )
        pair = self._sums.get(name, {}).get(weight or _PLAIN)
        if pair is None:
            raise UsageError(self._missing(name, weight))
        total, count = pair
        if count == 0:
            raise UsageError(f"run.mean({name!r}, weight={weight!r}): the weights add up to 0")
        return total / count

    def _missing(self, name: Any, weight: str | None) -> str:
        if name not in self._sums:
            known = ", ".join(self._sums) or "nothing"
            return (
                f"run.mean({name!r}): run.log() was not given {name!r} in this epoch, but {known}"
            )
        known = ", ".join(other for other in self._sums[name] if other != _PLAIN) or "nothing else"
        return (
            f"run.mean({name!r}, weight={weight!r}): "
            "log the weight in the same call, as one of its first "
            f"{MOST_WEIGHTS} metrics: run.log({name}=..., "
            f"{weight}=...). Logged with {name!r} so far: {known}"
        )


class MetricsLog(msgspec.Struct):
    """The metrics of one attempt."""

    _ranks: Ranks
    _position: Position
    _reporter: Reporter
    means: Means = msgspec.field(default_factory=Means)
    _logged: LoggedMetrics = msgspec.field(default_factory=lambda: LoggedMetrics({}, set()))
    _left_at: int = -1  # the step of a pass that was left
    _left: dict[str, float] = {}  # and its metrics
    _told: set[str] = set()  # names of metrics that were reported as not finite

    def restore(self, stored: dict[str, dict[str, list[float]]] | None) -> None:
        """Continue with the means of a checkpoint, and drop the values logged so far.

        The code before the loop ran in an earlier attempt, too, and its line exists.
        """
        self.means, self._logged = Means(stored), LoggedMetrics({}, set())

    def log(self, values: Values) -> None:
        """Add the values of one call of run.log()."""
        self.means.add(values)
        self._logged.values.update(values)
        self._logged.early.difference_update(values)
        for name, value in values.items():
            # JSON has no such number
            if isinstance(value, str) and name not in self._told and self._ranks.leads:
                self._told.add(name)
                self._reporter.warn(
                    f"run.log: {name} is {value} at step {self._position.step}; "
                    "such a value is never the best",
                    kind="metric_not_finite",
                    name=name,
                )

    def begin_step(self) -> None:
        """Begin a step. Values that were logged before it were measured on other weights."""
        self._logged.early.update(self._logged.values)

    def take_logged(self) -> LoggedMetrics:
        """Remove and return the logged values, to be written as a separate line later."""
        taken, self._logged = self._logged, LoggedMetrics({}, set())
        return taken

    @contextmanager
    def replacing_logged(self, logged: LoggedMetrics | None) -> Iterator[None]:
        """Inside this block, `logged` replaces the logged values."""
        after = self.take_logged()
        self._logged = logged or self._logged
        yield
        self._logged = after

    def flush(self, phase: str, epoch: int | None = None) -> dict[str, float]:
        """Write the logged values as one line of the log. Return those that were measured on the
        present weights.

        `epoch`: the one that just ended, at its end. The values of a left pass of this step belong
        to the end, too.
        """
        position = self._position
        known = self._left if phase == "end" and self._left_at == position.step else {}
        if not self._logged.values:
            return known
        at = position.epoch if epoch is None else epoch
        values, early = self.take_logged()
        self._reporter.attempt.record(
            "metrics", step=position.step, phase=phase, epoch=at, values=values
        )
        return known | format.unpack_metrics(
            {name: value for name, value in values.items() if name not in early}
        )

    def rewrite_last_line(self) -> None:
        """Write again the values that an earlier attempt logged after the loop.

        This attempt does not run that code.
        """
        attempt = self._reporter.attempt
        earlier = [log for log in journal.logs(attempt.root) if log.attempt < attempt.number]
        for line in journal.merge_metrics(earlier) if self._ranks.leads else ():
            if line["phase"] == "exit" and line["step"] == self._position.step:
                attempt.record(
                    "metrics", **{name: line[name] for name in ("step", "phase", "epoch", "values")}
                )

    def flush_left_pass(self, logged: LoggedMetrics) -> None:
        """Write the metrics line of a pass that was left by `break`; the pass counts as a step."""
        with self.replacing_logged(logged):
            self._left = self.flush("step")
        self._left_at = self._position.step


class BestTracker(msgspec.Struct):
    """Knows which values a new best must beat, for each `Best` rule. Rank 0's metrics decide."""

    _rules: list[Best]
    _ranks: Ranks
    _store: Store
    _windows: OrderWindows | None
    _in_flight: list[retention.CheckpointFacts] = []  # of the save that is not committed yet
    # checkpoints to beat; None: read them again
    _ranked: list[retention.CheckpointFacts] | None = None
    _missed: set[str] = set()  # metrics that were not logged, and already reported
    _shared: set[str] = set()  # metrics that all ranks log inside epochs, as far as is known

    def reload_later(self, in_flight: retention.CheckpointFacts | None) -> None:
        """Read the checkpoints' metrics again at the next question: a save has begun
        (`in_flight`) or ended.
        """
        self._ranked, self._in_flight = None, [] if in_flight is None else [in_flight]

    def is_new_best(self, metrics: Measured, *, at_end: bool) -> bool:
        """Return whether these metrics, or rank 0's, are a new best. `at_end`: of an epoch.

        At the end of an epoch only rank 0 must have them. Inside an epoch the ranks exchange no
        message at each safe point: a metric is ranked there only if every rank logs it.
        """
        ranks, windows = self._ranks, self._windows
        if ranks.alone or not self._rules:
            return self._beats_best(metrics)
        if at_end:
            return _announce_answer(ranks, ranks.leads and self._beats_best(metrics))
        measured = sorted({rule.metric for rule in self._rules} & metrics.keys())
        if not measured or windows is None:
            return False
        here = ranks.separate_conversation(f"best-{windows.point}")  # the ranks that logged it here
        if ranks.rank:
            for metric in {*measured} - self._shared:
                ranks.mark(f"logs {metric}")
            self._shared.update(measured)
            return _announce_answer(here, mine=False)
        shared = all(self._is_shared(metric) for metric in measured)
        windows.spent.append(here)
        return _announce_answer(here, shared and self._beats_best(metrics))

    def _is_shared(self, metric: str) -> bool:
        """Whether every rank logs the metric inside an epoch; determined once."""
        if metric in self._shared | self._missed:
            return metric in self._shared
        ranks = self._ranks
        until = time.monotonic() + min(PATIENCE_S, ranks.timeout_s / 2)
        while not (shared := ranks.all_marked(f"logs {metric}")) and time.monotonic() < until:
            time.sleep(0.01)
        (self._shared if shared else self._missed).add(metric)
        if not shared:
            warn(
                f"keep=Best({metric!r}, ...): logged inside of an epoch, "
                "and not on every rank: it brings about no "
                "save there, and is ranked only where another save "
                "falls on that very step. Log it on every rank, or "
                "at the end of the epoch, after its batches"
            )
        return shared

    def _beats_best(self, metrics: Measured) -> bool:
        measured = [rule for rule in self._rules if rule.metric in metrics]
        if measured and self._ranked is None:
            try:
                facts = self._checkpoint_facts()
            except OSError:  # the disk fails: one save too many is better than losing a best one
                return True
            best = {
                each.name: each
                for rule in self._rules
                for each in retention.rank_by_metric(rule, facts)[: rule.n]
            }
            # the others cannot change the result, and this runs at every step
            self._ranked = list(best.values())
        return any(
            retention.beats(metrics[rule.metric], rule, self._ranked or ()) for rule in measured
        )

    def _checkpoint_facts(self) -> list[retention.CheckpointFacts]:
        """Facts of the committed checkpoints and of the one in flight."""
        return [*self._store.facts(), *self._in_flight]

    def warn_of_unlogged_metrics(self, metrics: Measured) -> None:
        """Warn once of a `Best` rule whose metric is never logged: it keeps nothing. The
        name may be misspelt.
        """
        for rule in self._rules:
            if rule.metric not in metrics and rule.metric not in self._missed:
                with suppress(OSError):  # the disk fails: the next epoch looks again
                    known = any(rule.metric in facts.metrics for facts in self._checkpoint_facts())
                    self._missed.add(rule.metric)
                    if not known:
                        had = (
                            f"run.log gave {', '.join(metrics)}"
                            if metrics
                            else "run.log gave nothing"
                        )
                        warn(
                            f"keep=Best({rule.metric!r}, ...): "
                            f"no such metric was logged in this epoch ({had})"
                        )


def _announce_answer(ranks: Ranks, mine: bool) -> bool:
    return ranks.announce(TOPIC, b"yes" if mine else b"") == b"yes"
