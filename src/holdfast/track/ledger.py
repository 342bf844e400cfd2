"""Ledger: which rows of metrics are durable, and whether they are those that were sent. Pure.

A row holds the values of one step, of all its phases. It is durable when a later step is saved, or
when the run has ended: no kill undoes it, and nothing is added to it.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from .. import journal


class Row(NamedTuple):
    """The metrics of one step."""

    step: int
    time_s: float  # Unix
    values: Mapping[str, float]


class Ledger:
    """The rows of a run.

    Args:
        logs: the journals of all attempts; of the last one its `restored` alone.
    """

    def __init__(self, logs: Sequence[journal.Log]) -> None:
        self._rows = rows_of(logs)
        self._durable: float = (logs[-1].restored or (0, 0))[0]

    def add(self, events: Iterable[journal.Event]) -> None:
        """Add what the attempt has journaled since."""
        for event in events:
            if event["event"] == "metrics":
                _add_row(self._rows, event)
            elif event["event"] == "saved":
                self._durable = max(self._durable, event["step"])
            elif event["event"] == "end":
                self._durable = math.inf

    def take_durable(self) -> list[Row]:
        """Return the rows that have become durable, in order of their steps."""
        return [self._rows.pop(step) for step in sorted(self._rows) if step < self._durable]


def rows_of(logs: Sequence[journal.Log]) -> dict[int, Row]:
    """Return the rows that led to the state that the last of these attempts has reached."""
    rows: dict[int, Row] = {}
    for event in journal.merge_metrics(logs):
        _add_row(rows, event)
    return rows


def came_again(logs: Sequence[journal.Log], attempt: int, step: int) -> bool:
    """Return whether an attempt after `attempt` has gone on from `step` or from before it."""
    return any(log.restored[0] <= step for log in logs if log.attempt > attempt and log.restored)


def differs(row: Row, sent: Row | None) -> bool:
    """Return whether a row has a value that was not sent. A value that is missing is no other."""
    before = {} if sent is None else sent.values
    return any(
        name not in before or not _equal(value, before[name]) for name, value in row.values.items()
    )


def _equal(one: float, other: float) -> bool:
    return one == other or (math.isnan(one) and math.isnan(other))


def _add_row(rows: dict[int, Row], event: journal.Event) -> None:
    step = event["step"]
    before = rows.get(step, Row(step, event.get("time", 0.0), {}))
    values = {name: float(value) for name, value in event["values"].items()}
    rows[step] = before._replace(values={**before.values, **values})
