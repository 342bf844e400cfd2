"""Which checkpoints each mirror holds, according to a run's journals, and what the loss of the
run's disk would cost now.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from ..journal import Event, JournalLines, Log
from ..store.format import CheckpointName, parse_name

_KINDS = ("mirrors", "mirrored", "mirror_removed", "mirror_failed", "mirror_back")


class MirrorFacts(NamedTuple):
    """One mirror, according to the journals of the run's last attempts."""

    place: str
    checkpoints: list[str]  # names, oldest first
    trouble: str  # why nothing is copied there; empty: nothing is wrong


def mirrors_of_run(logs: Sequence[Log]) -> list[MirrorFacts]:
    """Return the mirrors of the run's newest attempt that had any."""
    held: dict[str, set[str]] = {}
    trouble: dict[str, str] = {}
    for event in (event for log in logs for event in _events(log)):
        place, name = str(event.get("place")), str(event.get("checkpoint"))
        match event["event"]:
            case "mirrors":
                held, trouble = _initial_copies(event), {}
            case "mirrored":
                held.setdefault(place, set()).add(name)
                trouble.pop(place, None)
            case "mirror_removed":
                held.setdefault(place, set()).discard(name)
            case "mirror_failed":
                trouble[place] = str(event.get("error"))
            case "mirror_back":
                trouble.pop(place, None)
    return [
        MirrorFacts(place, _sort_names(names), trouble.get(place, ""))
        for place, names in held.items()
    ]


def at_risk(mirrors: Sequence[MirrorFacts], newest: str | None) -> str:
    """Return, as text, the work that the loss of the run's disk would cost now; empty for a run
    without mirrors.

    `newest`: the name of its newest checkpoint.
    """
    if not mirrors:
        return ""
    copied = _sort_names(name for each in mirrors for name in each.checkpoints)
    if not copied:
        return "if this disk is lost, everything is: no place has a copy"
    where = ", ".join(each.place for each in mirrors if copied[-1] in each.checkpoints)
    at, last = (
        parse_name(copied[-1]) or CheckpointName(0),
        parse_name(newest or "") or CheckpointName(0),
    )
    if last.order <= at.order:
        return f"if this disk is lost, nothing that is saved is: {copied[-1]} is at {where}"
    return f"if this disk is lost, so is {newest}: the newest copy is {copied[-1]}, at {where}"


def _events(log: Log) -> list[Event]:
    lines = log.events
    found = [*lines.newest_with(b'"mirror')][::-1] if isinstance(lines, JournalLines) else lines
    return [event for event in found if event["event"] in _KINDS]


def _initial_copies(event: Event) -> dict[str, set[str]]:
    places: Any = event.get("places")
    if not isinstance(places, dict):
        return {}
    return {
        str(place): {str(name) for name in names}
        for place, names in places.items()
        if isinstance(names, list)
    }


def _sort_names(names: Iterable[str]) -> list[str]:
    return sorted(
        {name for name in names if parse_name(name)},
        key=lambda name: (parse_name(name) or CheckpointName(0)).order,
    )
