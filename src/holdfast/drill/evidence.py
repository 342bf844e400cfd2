"""Evidence: reads from a run's directory what a comparison needs. Changes nothing."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from .. import journal, scan
from ..errors import StoreError
from ..inspect.diff import same_state
from ..journal import Event
from ..run.drilled import PROCESSES_OWN
from ..settings import BESIDE
from ..stateful.tracked import RESERVED
from ..store.checkpoint import Checkpoint
from ..store.store import Store
from .safepoint import SafePoint as SafePoint  # noqa: PLC0414  other modules import it from here
from .safepoint import place_of
from .sights import VariableHistory, read_variable_records

# Where a run keeps the global generators: as they are now, as the epoch began, as a loader began
# and last drew.
_GENERATOR = re.compile(
    rf"^(@\d+/)?{RESERVED}/(?:rng|epoch_rng|position/feeds/.+?/(?:rng|"
    r"last_rng|began|ahead/\d+|fetched/\d+))/([^/]+)"
)


class StateRecord(NamedTuple):
    """The state at one safe point of one attempt: a digest for each leaf."""

    place: SafePoint
    attempt: int
    leaves: Mapping[str, str]
    epoch: int = 0


class MetricLine(NamedTuple):
    """One line of the metrics log."""

    place: SafePoint
    epoch: int | None
    values: Mapping[str, float | str]


class RunTrace(NamedTuple):
    """What all attempts of a run journaled: states, metrics, restores, loaders and variables."""

    states: Sequence[StateRecord]  # of every attempt, including work that a later one repeated
    metrics: Sequence[MetricLine]  # of the lineage only
    restored: Mapping[int, SafePoint]  # attempt -> where it resumed
    loaders: Mapping[str, Mapping[str, Any]]  # arguments of run.batches, by name
    sights: VariableHistory = VariableHistory(())  # values of the script's variables
    told: Sequence[Event] = ()  # mistakes in the script that the run reported
    # for a reference run: the variables of the second undisturbed run
    second: VariableHistory | None = None


def read_trace(root: Path) -> RunTrace:
    """Return the trace of the run at `root`."""
    logs = journal.logs(root)
    states = [
        StateRecord(place_of(event), log.attempt, event["leaves"], int(event.get("epoch") or 0))
        for log in logs
        for event in log.events
        if event["event"] == "digests"
    ]
    metrics = [
        MetricLine(place_of(event), event.get("epoch"), event["values"])
        for event in journal.lineage(logs, "metrics")
    ]
    restored = {
        log.attempt: place_of(e) for log in logs for e in log.events if e["event"] == "restored"
    }
    told = [
        event
        for log in logs
        for event in log.events
        if event["event"] == "told" and "kind" in event
    ]
    return RunTrace(
        states,
        metrics,
        restored,
        _loader_facts(root),
        VariableHistory([sight for log in logs for sight in read_variable_records(log)]),
        told,
    )


def final_differences(a: Path, b: Path, idle: Collection[str] = ()) -> list[str]:
    """Return the differences between the last states of two runs; every byte of both is read and
    compared.

    `idle` generators are ignored, and so is what a run keeps of its process: the metrics themselves
    are compared.
    """
    apart = [f"{ranks}{RESERVED}/{name}" for name in PROCESSES_OWN for ranks in ("", "@*/")]
    found = same_state(_last_checkpoint(a), _last_checkpoint(b), apart)
    return [str(each) for each in found if generator_of(each.where) not in idle]


def compare_further_runs(
    place: Path, name: str, idle: Collection[str] = ()
) -> tuple[list[Path], list[str]]:
    """Return the directories of the script's runs besides its first, and how they differ from
    the run called `name`.
    """
    runs = scan.glob(place, f"first{BESIDE}*")
    found = []
    for first in runs:
        other = place / first.name.replace("first", name, 1)
        try:
            found += [
                f"{first.suffix.removeprefix('.')}: {each}"
                for each in final_differences(first, other, idle)
            ]
        except StoreError as error:
            found.append(f"{first.suffix.removeprefix('.')}: {error}")
    return runs, found


def generator_of(key: str) -> str | None:
    """Return the global random generator that the leaf belongs to,
    "numpy" or "numpy of rank 1", or None.
    """
    found = _GENERATOR.match(key)
    return None if found is None else found[2] + (f" of rank {found[1][1:-1]}" if found[1] else "")


def present_state_key(key: str) -> str:
    """Return the key of the same part of a generator's present state.

    The state at an epoch's begin, for example, has another key.
    """
    return _GENERATOR.sub(rf"\1{RESERVED}/rng/\2", key)


def _last_checkpoint(root: Path) -> Checkpoint:
    return Store(root).latest()


def _loader_facts(root: Path) -> Mapping[str, Mapping[str, Any]]:
    try:
        memory = _last_checkpoint(root).load(part=RESERVED, placeholders=True)
    except StoreError:  # the run has no checkpoint
        return {}
    loaders: Mapping[str, Mapping[str, Any]] = memory["fingerprint"]["loaders"]
    return loaders
