"""Metrics: the values passed to run.log() since the last safe point, their epoch means, and the best so far."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from copy import deepcopy
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any

from .. import journal
from ..errors import UsageError
from ..store import format
from .best import Bests
from .passes import Logged

if TYPE_CHECKING:
    from .session import Session

MOST_WEIGHTS = 8  # most metrics of one call that can be weights: a call's cost is this times its metrics
_PLAIN = ""  # means no weight: each call counts 1
TIMINGS = ("*_s", "*seconds*", "*time*", "*per_s*", "*throughput*")  # metrics that differ in any two runs

Values = Mapping[str, float | str]


def is_timing(name: str) -> bool:
    """Whether a metric of that name is a duration or a speed, which differs in any two runs."""
    return any(fnmatchcase(name, pattern) for pattern in TIMINGS)


class Metrics:
    """The metrics of one attempt."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self.means = Means()
        self.best = Bests(session)
        self._logged = Logged({}, set())
        self._left_at, self._left = -1, dict[str, float]()  # the step of a pass that was left, and its metrics
        self._told: set[str] = set()  # names of metrics that were reported as not finite

    def restore(self, stored: dict[str, dict[str, list[float]]] | None) -> None:
        """Begin with the means of a checkpoint.

        Drop the values logged so far: that code ran before, and its line exists.
        """
        self.means, self._logged = Means(stored), Logged({}, set())

    def log(self, values: Values) -> None:
        """Add the values of one call of run.log()."""
        self.means.add(values)
        self._logged.values.update(values)
        self._logged.early.difference_update(values)
        for name, value in values.items():
            if isinstance(value, str) and name not in self._told and self._session.leads:  # JSON has no such number
                self._told.add(name)
                self._session.tell(
                    f"run.log: {name} is {value} at step {self._session.position.step}; such a value is never the best",
                    kind="metric_not_finite",
                    name=name,
                )

    def begin_step(self) -> None:
        """Begin a step of a loop: values logged before it were measured on other weights."""
        self._logged.early.update(self._logged.values)

    def set_aside(self) -> Logged:
        """Remove and return the logged values, to be written as a separate line later."""
        taken, self._logged = self._logged, Logged({}, set())
        return taken

    @contextmanager
    def instead(self, logged: Logged | None) -> Iterator[None]:
        """Inside this block, `logged` replaces the logged values."""
        after = self.set_aside()
        self._logged = logged or self._logged
        yield
        self._logged = after

    def flush(self, phase: str, epoch: int | None = None) -> dict[str, float]:
        """Write the logged values as one line of the log. Return those that were measured on the present weights.

        `epoch`: the one that just ended, at its end. The values of a left pass of this step belong to the end, too.
        """
        position = self._session.position
        known = self._left if phase == "end" and self._left_at == position.step else {}
        if not self._logged.values:
            return known
        at = position.epoch if epoch is None else epoch
        values, early = self.set_aside()
        self._session.attempt.record("metrics", step=position.step, phase=phase, epoch=at, values=values)
        return known | format.unpack_metrics({name: value for name, value in values.items() if name not in early})

    def keep_last_line(self) -> None:
        """Write again the values that an earlier attempt logged after the loop: this attempt does not run that code."""
        session = self._session
        earlier = [log for log in journal.logs(session.path) if log.attempt < session.attempt.number]
        for line in journal.merged(earlier) if session.leads else ():
            if line["phase"] == "exit" and line["step"] == session.position.step:
                session.attempt.record("metrics", **{name: line[name] for name in ("step", "phase", "epoch", "values")})

    def flush_left(self, logged: Logged) -> None:
        """Write the line of a pass that was left; it counts as a step."""
        with self.instead(logged):
            self._left = self.flush("step")
        self._left_at = self._session.position.step


class Means:
    """Sum and count so far, for each metric and each weight logged in the same call.

    They equal bit for bit what a loop's `total += loss * n; count += n` computes, and are saved with the run.
    """

    def __init__(self, stored: dict[str, dict[str, list[float]]] | None = None) -> None:
        self._sums = deepcopy(stored or {})

    def state_dict(self) -> dict[str, dict[str, list[float]]]:
        return deepcopy(self._sums)

    def clear(self) -> None:
        self._sums.clear()

    def add(self, logged: Values) -> None:
        """Add the values of one call of run.log()."""
        values = {name: float(value) if isinstance(value, str) else value for name, value in logged.items()}
        weights = [(_PLAIN, 1), *(each for each in values.items() if each[0] != _PLAIN)][: MOST_WEIGHTS + 1]
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
                f"run.mean({name!r}, weight={weight!r}): the weight is the name of a metric of the same call: "
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
            return f"run.mean({name!r}): run.log() was not given {name!r} in this epoch, but {known}"
        known = ", ".join(other for other in self._sums[name] if other != _PLAIN) or "nothing else"
        return (
            f"run.mean({name!r}, weight={weight!r}): log the weight in the same call, as one of its first "
            f"{MOST_WEIGHTS} metrics: run.log({name}=..., {weight}=...). Logged with {name!r} so far: {known}"
        )
