"""Sights: values of the script's variables at each safe point, noted by the drilled run. Pure
except for reading.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

import msgspec

from ..journal import Log
from ..script.witness import VariableFacts
from .safepoint import SafePoint, place_of


class VariableRecord(NamedTuple):
    """The variables at one place of one attempt."""

    place: SafePoint
    attempt: int
    begin: bool  # recorded when the attempt's first loop began, before its first step
    batch: str  # a digest of the data that the step consumed; empty: none
    values: Mapping[str, str]  # by path: a digest, "=" and the value itself, or UNREAD
    about: Mapping[str, VariableFacts]
    rng: Mapping[str, str]  # the global generators
    # by loader: what its code "draws" with and "changes"
    datasets: Mapping[str, Mapping[str, Sequence[str]]] = {}
    state: str = ""  # only at a begin: a digest of all that is tracked
    # only at a begin: the function that entered the run, "" for the module
    entered: str | None = None
    cut: int = 0  # so many variables were read, and there were more; 0: all of them


def read_variable_records(log: Log) -> Iterable[VariableRecord]:
    """Return the records of one attempt, in the order in which they were made."""
    values: dict[str, str] = {}
    about: dict[str, VariableFacts] = {}
    for event in log.events:
        if event["event"] == "visible":
            gone = set(event["gone"])
            values = {
                path: value
                for path, value in {**values, **event["values"]}.items()
                if path not in gone
            }
            about = {**about, **msgspec.convert(event["about"], dict[str, VariableFacts])}
            more = (
                event["batch"],
                values,
                about,
                event["rng"],
                event.get("datasets", {}),
                event.get("state", ""),
            )
            rest = event.get("entered"), int(event.get("cut", 0))
            yield VariableRecord(place_of(event), log.attempt, event["at"] == "begin", *more, *rest)


class VariableHistory:
    """The script's variables in one run, by safe point."""

    def __init__(self, sights: Sequence[VariableRecord]) -> None:
        self.all = sights
        self._points = {sight.place: sight for sight in sights if not sight.begin}
        self._begins = {sight.attempt: sight for sight in sights if sight.begin}

    def record_at(self, place: SafePoint) -> VariableRecord | None:
        """Return the variables at a safe point, or, for step 0, at the run's begin."""
        return self._points.get(place) or (self._begins.get(1) if place.step == 0 else None)

    def record_at_begin(self, attempt: int) -> VariableRecord | None:
        """Return the variables when the attempt's first loop began."""
        return self._begins.get(attempt)

    def records_of(self, attempt: int) -> list[VariableRecord]:
        """Return the records at the safe points of one attempt, in the order of the run."""
        return [sight for sight in self.all if sight.attempt == attempt and not sight.begin]

    def record_in_attempt(self, attempt: int, place: SafePoint) -> VariableRecord | None:
        """Return the variables at that safe point of that attempt."""
        return next((sight for sight in self.records_of(attempt) if sight.place == place), None)
