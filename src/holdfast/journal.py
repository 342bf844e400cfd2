"""Journal: the events of a run, one JSON object a line, one file per attempt.

The current attempt writes `attempts/<n>/attempt-<n>.jsonl`; the next attempt moves the file to
`history/`. Readers merge them. A torn line (the process died, the disk was full) is dropped by
readers and never truncated.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from functools import cached_property
from io import FileIO
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

import msgspec

from . import disk, legible, scan

Event = dict[str, Any]
CLOSING = ("stop", "failed", "end")
AFTERWARDS = (  # events of the job, copies and trackers after the attempt had stopped
    *("requeued", "not_requeued", "submitted"),
    *("mirrored", "mirror_removed", "mirror_failed", "mirror_back", "undrained", "tracker_told"),
)
_ORDER = {"step": 0, "end": 1, "exit": 2}  # metrics recorded after the loop belong to no checkpoint
_BLOCK = 4096  # lines that are searched at once
_Count = Annotated[int, msgspec.Meta(ge=0, lt=10**18)]


class _EventFields(msgspec.Struct, kw_only=True):
    """The fields that a line of any kind has."""

    event: str
    time: float = 0.0
    step: _Count = 0
    phase: Literal["step", "end", "exit"] = "step"


class _Metrics(_EventFields, kw_only=True):
    step: _Count
    epoch: _Count | None = None
    values: dict[str, float | Literal["nan", "inf", "-inf"]]


class _Saved(_EventFields, kw_only=True):
    step: _Count
    stall_s: Annotated[float, msgspec.Meta(ge=0)] = 0.0
    save_s: Annotated[float, msgspec.Meta(ge=0)] = 0.0
    late_rank: _Count | None = None
    late_s: Annotated[float, msgspec.Meta(ge=0)] = 0.0


class _Digests(_EventFields, kw_only=True):
    step: _Count
    time: float
    leaves: dict[str, str]


_KINDS: dict[str, type[_EventFields]] = {"metrics": _Metrics, "saved": _Saved, "digests": _Digests}
for _kind in (
    _EventFields,
    *_KINDS.values(),
):  # here, where only one thread is: the first use of a type by two can crash msgspec
    msgspec.json.Decoder(_kind)


class JournalLines(Sequence[Event]):
    """The events of one journal. The file is read when the first event is asked for; each line is
    parsed once, on demand.

    A start asks for the first and the last few of what may be millions of lines.
    """

    def __init__(self, *places: Path) -> None:
        # the first that exists is read: a journal may be moved to history/ meanwhile
        self._places = places
        self._events: dict[int, Event | None] = {}
        self._with: dict[bytes, list[int]] = {}  # a word -> the lines that hold it

    @cached_property
    def _lines(self) -> list[bytes]:
        for place in self._places:
            with suppress(FileNotFoundError):
                return _split(_content(place))
        return []

    def __iter__(self) -> Iterator[Event]:
        return self._parse_at(range(len(self._lines)))

    def __reversed__(self) -> Iterator[Event]:
        return self._parse_at(reversed(range(len(self._lines))))

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def __getitem__(self, at: Any) -> Any:
        return [*self][at]

    def walk(self) -> Iterator[Event]:
        """Return the events in order; none is kept."""
        return filter(None, map(_event, self._lines))

    def forget(self) -> None:
        """Free the memory; the journal is read again when an event is asked for."""
        self._events.clear()
        self._with.clear()
        self.__dict__.pop("_lines", None)

    def newest_with(self, word: bytes) -> Iterator[Event]:
        """Return the events whose lines have this word, the newest first; no other line is
        parsed.
        """
        if word not in self._with:
            lines = self._lines
            self._with[word] = [
                at
                for begin in range(0, len(lines), _BLOCK)
                if word in b"".join(lines[begin : begin + _BLOCK])  # most words are rare
                for at in range(begin, min(begin + _BLOCK, len(lines)))
                if word in lines[at]
            ]
        return self._parse_at(reversed(self._with[word]))

    def _parse_at(self, places: Iterable[int]) -> Iterator[Event]:
        for at in places:
            if at not in self._events:
                self._events[at] = _event(self._lines[at])
            event = self._events[at]
            if event is not None:
                yield event


class Log(NamedTuple):
    """The events of one attempt, in order."""

    attempt: int
    path: Path
    events: Sequence[Event]

    @property
    def owner(self) -> dict[str, Any]:
        """Who ran the attempt, according to its first line; empty if that line is torn."""
        first = next(iter(self.events), {})
        owner = first.get("owner") if first.get("event") == "begin" else None
        return owner if isinstance(owner, dict) else {}

    @property
    def last(self) -> Event:
        """The attempt's last event before it stopped; empty if there is none."""
        return next(
            (event for event in reversed(self.events) if event["event"] not in AFTERWARDS), {}
        )

    @property
    def closed(self) -> bool:
        """Whether the attempt wrote its closing line."""
        return self.last.get("event") in CLOSING

    def forget(self) -> None:
        """Free the memory of the events, if they can be read again."""
        if isinstance(self.events, JournalLines):
            self.events.forget()

    def newest(self, kind: str) -> Iterator[Event]:
        """Return the events of one kind, the newest first."""
        lines = self.events
        found = (
            lines.newest_with(kind.encode()) if isinstance(lines, JournalLines) else reversed(lines)
        )
        return (event for event in found if event["event"] == kind)

    @property
    def restored(self) -> tuple[int, int] | None:
        """(step, phase order) from the attempt's last `restored` event;
        None if it died before that.
        """
        found = next(self.newest("restored"), None)
        return None if found is None else position(found)


class JournalFollower:
    """Reads what the newest attempt of a run appends to its journal.

    Args:
        run: the run's directory.
        tail_bytes: of a longer journal only so much is read at first; 0: all of it.
    """

    def __init__(self, run: Path, *, tail_bytes: int = 0) -> None:
        self._run, self._tail_bytes = run, tail_bytes
        self.attempt = 0  # 0: there is none yet
        self.path = run / "history"  # of its journal
        self._read = 0  # bytes of it
        self._listed = 0  # when a directory of an attempt came or went last, in nanoseconds

    def read_new(self) -> list[Event]:
        """Return the events since the last call; of a new attempt those since its beginning."""
        try:
            changed = os.stat(self._run / "attempts").st_mtime_ns
        except FileNotFoundError:  # no attempt yet
            changed = 0
        if not changed or changed != self._listed:
            attempt, self.path = newest_attempt(self._run)
            self._listed = changed if attempt else 0
            if attempt != self.attempt:
                self.attempt, self._read = attempt, 0
        try:
            with open(disk.open_plain(self.path), "rb") as file:
                size = file.seek(0, os.SEEK_END)
                if not self._read and self._tail_bytes:
                    self._read = max(0, size - self._tail_bytes)
                if size < self._read:  # another run has taken its place: the next call reads it
                    self._listed = self.attempt = 0
                if size <= self._read:
                    return []
                file.seek(self._read)
                data = file.read()
        except OSError:  # it is just being moved to history/: the next call finds it there
            self._listed = 0
            return []
        data = data[: data.rfind(b"\n") + 1]  # the last line may not be whole yet
        self._read += len(data)
        return parse(data)

    def forget(self) -> None:
        """Read the newest attempt's journal from its beginning at the next call."""
        self._read = 0


def newest_attempt(run: Path) -> tuple[int, Path]:
    """Return the number of the run's last attempt,
    and the present path of its journal; 0 if there is none yet.
    """
    found = {0: run / "history"}
    for path in [
        *scan.glob(run, "history/attempt-*.jsonl"),
        *scan.glob(run, "attempts/*/attempt-*.jsonl"),
    ]:
        number = path.stem.removeprefix("attempt-")
        if number.isdecimal() and path.parent.name in ("history", number):
            found.setdefault(int(number), path)
    return max(found.items())


def encode_events(events: Iterable[Event]) -> bytes:
    """Return the lines that record `events`. An event without a time gets the current one.

    Text that is not Unicode is made `legible`. The bytes begin with a newline, so that they start a
    new line even after a torn append.
    """
    now = time.time()
    return b"".join(b"\n" + legible.json_bytes({"time": now} | event) for event in events) + b"\n"


def append(path: Path, events: Iterable[Event], *, sync: bool = False) -> None:
    """Add `events` to the journal at `path`, which must exist."""
    disk.append(path, encode_events(events), sync=sync)


def read(path: Path) -> list[Event]:
    """Return every whole line of one journal. A line that was appended twice, because the disk was
    full, counts once.

    Lines that Holdfast did not write are ignored; so is a directory or a pipe in the journal's
    place.
    """
    return parse(_content(path))


def parse(data: bytes) -> list[Event]:
    """Return the whole lines in `data`, a piece of a journal."""
    return [*filter(None, map(_event, _split(data)))]


def _content(path: Path) -> bytes:
    return scan.repeat_read(path, lambda: _read_once(path))


def _read_once(path: Path) -> bytes:
    try:
        with open(disk.open_plain(path, follow=True), "rb", buffering=0) as file:
            facts = os.fstat(file.fileno())
            return (
                file.readall()
                if facts.st_blocks * 512 >= facts.st_size
                else _read_without_holes(file)
            )
    except disk.NotPlain:
        return b""


def _read_without_holes(file: FileIO) -> bytes:
    """Return the content of a file without its holes, which may have any size; a hole ends
    a line.
    """
    parts, at = [], 0
    with suppress(OSError):  # ENXIO: there is nothing more
        while True:
            start = os.lseek(file.fileno(), at, os.SEEK_DATA)
            at = os.lseek(file.fileno(), start, os.SEEK_HOLE)
            file.seek(start)
            parts.append(file.read(at - start))
    return b"\n".join(parts)


def _split(data: bytes) -> list[bytes]:
    return [line for line in dict.fromkeys(data.split(b"\n")) if line]


def _event(line: bytes) -> Event | None:
    try:
        event = msgspec.json.decode(line)
        msgspec.convert(event, _KINDS.get(event["event"], _EventFields))
    except (
        *legible.UNREADABLE,
        OverflowError,
        TypeError,
        LookupError,
    ):  # torn, or not written by Holdfast
        return None
    found: Event = event
    return found


def logs(root: Path) -> list[Log]:
    """Return the journals of all attempts of the run at `root`, oldest first."""
    places = {}
    for path in [
        *scan.glob(root, "attempts/*/attempt-*.jsonl"),
        *scan.glob(root, "history/attempt-*.jsonl"),
    ]:
        number = path.stem.removeprefix("attempt-")
        ours = number.isdecimal() and path.parent.name in ("history", number)
        # something other than a file must not hide a journal
        if ours and (int(number) not in places or scan.is_file(path)):
            places[int(number)] = path
    return [
        Log(attempt, place, JournalLines(place, root / "history" / place.name))
        for attempt, place in sorted(places.items())
    ]


def position(event: Event) -> tuple[int, int]:
    """Return (step, phase order) of an event; events are compared by it."""
    step = event.get("step", 0)
    return (step if isinstance(step, int) else 0), _ORDER.get(event.get("phase", "step"), 0)


def lineage(logs: Sequence[Log], kind: str) -> list[Event]:
    """Return the events of one kind that led to the present state.

    When a later attempt resumed from an earlier point, it undid the events after that point. So an
    event counts only if every later attempt began at or after it.
    """
    kept: list[Event] = []
    ceiling: tuple[int, int] | None = None
    for log in reversed(logs):
        mine = [event for event in log.events if event.get("event") == kind]
        kept[:0] = [event for event in mine if ceiling is None or position(event) <= ceiling]
        if log.restored is not None:
            ceiling = log.restored if ceiling is None else min(ceiling, log.restored)
    return kept


def unaccounted_checkpoints(logs: Sequence[Log]) -> list[str]:
    """Return the names of the checkpoints that were saved,
    and neither pruned nor set aside; the oldest first.
    """
    names: dict[str, None] = {}
    for event in (event for log in logs for event in log.events):
        name, pruned = event.get("checkpoint"), event.get("names")
        if event["event"] == "saved" and isinstance(name, str):
            names[name] = None
        elif event["event"] == "pruned" and isinstance(pruned, list):
            for each in pruned:
                names.pop(str(each), None)
        elif event["event"] == "quarantined":
            names.pop(str(event.get("name")), None)
    return [*names]


def metrics(root: Path) -> list[Event]:
    """Return the metrics of the run at `root`,
    merged over its attempts: no step twice, none missing.
    """
    return merge_metrics(logs(root))


def merge_metrics(logs: Sequence[Log]) -> list[Event]:
    """Return the metrics of all attempts of a run: no step twice, none missing."""
    found: dict[tuple[int, int], Event] = {}
    for event in lineage(logs, "metrics"):
        earlier = found.get(position(event), {"values": {}})
        found[position(event)] = event | {"values": {**earlier["values"], **event["values"]}}
    return list(found.values())
