"""Journal: what happened to a run, one JSON object a line, one file per attempt.

The current attempt writes `attempts/<n>/attempt-<n>.jsonl`; the next attempt moves the file to `history/`. Readers
merge them. A torn line (the process died, the disk was full) is dropped by readers and never truncated.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

import msgspec

from . import disk, legible

Event = dict[str, Any]
CLOSING = ("stop", "failed", "end")
AFTERWARDS = ("requeued", "not_requeued", "submitted")  # what happened to the job after the attempt had stopped
_ORDER = {"step": 0, "end": 1, "exit": 2}  # metrics recorded after the loop belong to no checkpoint
_Count = Annotated[int, msgspec.Meta(ge=0, lt=10**18)]


class _Any(msgspec.Struct, kw_only=True):
    """The fields that a line of any kind has."""

    event: str
    time: float = 0.0
    step: _Count = 0
    phase: Literal["step", "end", "exit"] = "step"


class _Metrics(_Any, kw_only=True):
    step: _Count
    epoch: _Count | None = None
    values: dict[str, float | Literal["nan", "inf", "-inf"]]


class _Saved(_Any, kw_only=True):
    step: _Count
    stall_s: Annotated[float, msgspec.Meta(ge=0)] = 0.0
    save_s: Annotated[float, msgspec.Meta(ge=0)] = 0.0


class _Digests(_Any, kw_only=True):
    step: _Count
    time: float
    leaves: dict[str, str]


_KINDS: dict[str, type[_Any]] = {"metrics": _Metrics, "saved": _Saved, "digests": _Digests}


class Log(NamedTuple):
    """The events of one attempt, in order."""

    attempt: int
    path: Path
    events: list[Event]

    @property
    def owner(self) -> dict[str, Any]:
        """Who ran the attempt, according to its first line; empty if that line is torn."""
        first = self.events[0] if self.events else {}
        owner = first.get("owner") if first.get("event") == "begin" else None
        return owner if isinstance(owner, dict) else {}

    @property
    def last(self) -> Event:
        """The attempt's last event before it stopped; empty if there is none."""
        return next((event for event in reversed(self.events) if event["event"] not in AFTERWARDS), {})

    @property
    def closed(self) -> bool:
        """Whether the attempt wrote its closing line."""
        return self.last.get("event") in CLOSING

    @property
    def restored(self) -> tuple[int, int] | None:
        """(step, phase order) from the attempt's last `restored` event; None if it died before that."""
        found = [position(event) for event in self.events if event.get("event") == "restored"]
        return found[-1] if found else None


def lines(events: Iterable[Event]) -> bytes:
    """Return the lines that record `events`. An event without a time gets the current one.

    Text that is not Unicode is made `legible`. The bytes begin with a newline, so that they start a new line even
    after a torn append.
    """
    now = time.time()
    return b"".join(b"\n" + legible.json_bytes({"time": now} | event) for event in events) + b"\n"


def append(path: Path, events: Iterable[Event], *, sync: bool = False) -> None:
    """Add `events` to the journal at `path`, which must exist."""
    disk.append(path, lines(events), sync=sync)


def read(path: Path) -> list[Event]:
    """Return every whole line of one journal. A line that was appended twice, because the disk was full, counts once.

    Lines that Holdfast did not write are ignored; so is a directory or a pipe in the journal's place.
    """
    try:
        with open(disk.open_plain(path, follow=True), "rb") as file:
            data = file.read()
    except disk.NotPlain:
        return []
    return parse(data)


def parse(data: bytes) -> list[Event]:
    """Return the whole lines in `data`, a piece of a journal."""
    found = (_event(line) for line in dict.fromkeys(data.split(b"\n")) if line)
    return [event for event in found if event is not None]


def _event(line: bytes) -> Event | None:
    try:
        event = msgspec.json.decode(line)
        msgspec.convert(event, _KINDS.get(event["event"], _Any))
    except (ValueError, OverflowError, RecursionError, TypeError, LookupError):  # torn, or not written by Holdfast
        return None
    found: Event = event
    return found


def logs(root: Path) -> list[Log]:
    """Return the journals of all attempts of the run at `root`, oldest first."""
    places = {}
    for path in [*root.glob("attempts/*/attempt-*.jsonl"), *root.glob("history/attempt-*.jsonl")]:
        number = path.stem.removeprefix("attempt-")
        ours = number.isdecimal() and path.parent.name in ("history", number)
        # something other than a file must not hide a journal
        if ours and (int(number) not in places or path.is_file()):
            places[int(number)] = path
    found = []
    for attempt, place in sorted(places.items()):
        for current in (place, root / "history" / place.name):
            try:
                found.append(Log(attempt, current, read(current)))
                break
            except FileNotFoundError:  # moved to history/ between listing and reading
                continue
    return found


def position(event: Event) -> tuple[int, int]:
    """Return (step, phase order) of an event; events are compared by it."""
    step = event.get("step", 0)
    return (step if isinstance(step, int) else 0), _ORDER.get(str(event.get("phase", "step")), 0)


def lineage(logs: Sequence[Log], kind: str) -> list[Event]:
    """Return the events of one kind that led to the present state.

    When a later attempt resumed from an earlier point, it undid the events after that point. So an event counts only if
    every later attempt began at or after it.
    """
    kept: list[Event] = []
    ceiling: tuple[int, int] | None = None
    for log in reversed(logs):
        mine = [event for event in log.events if event.get("event") == kind]
        kept[:0] = [event for event in mine if ceiling is None or position(event) <= ceiling]
        if log.restored is not None:
            ceiling = log.restored if ceiling is None else min(ceiling, log.restored)
    return kept


def metrics(root: Path) -> list[Event]:
    """Return the metrics of the run at `root`, merged over its attempts: no step twice, none missing."""
    return merged(logs(root))


def merged(logs: Sequence[Log]) -> list[Event]:
    """Return the metrics of all attempts of a run: no step twice, none missing."""
    found: dict[tuple[int, int], Event] = {}
    for event in lineage(logs, "metrics"):
        earlier = found.get(position(event), {"values": {}})
        found[position(event)] = event | {"values": {**earlier["values"], **event["values"]}}
    return list(found.values())
