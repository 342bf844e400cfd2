"""Event files of TensorBoard: counts the events of a record, and truncates it after a number of
events.

A record lies in the files of several attempts, in their order. Each file begins with an event of
its format.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from .. import disk


class EventCounter:
    """Counts the events in event files. A file is counted again only when it has grown."""

    def __init__(self) -> None:
        # size and number of events, when they were counted last
        self._known: dict[Path, tuple[int, int]] = {}

    def count(self, paths: Iterable[Path]) -> int:
        return sum(map(self._count_file, paths))

    def _count_file(self, path: Path) -> int:
        size = path.stat().st_size
        if self._known.get(path, (-1, 0))[0] != size:
            self._known[path] = size, max(0, len(_ends_of_events(path)) - 1)
        return self._known[path][1]


def truncate_events(paths: Iterable[Path], wanted: int) -> int:
    """Keep the first `wanted` events; remove files of which no event stays. Return how many events
    are missing.
    """
    for path in paths:
        ends = _ends_of_events(path)[1:]
        if not wanted:
            disk.remove_file(path)
        elif len(ends) > wanted:
            disk.truncate(path, ends[wanted - 1])
        wanted -= min(wanted, len(ends))
    return wanted


def _ends_of_events(path: Path) -> list[int]:
    """Return where each whole event of a file ends: its length in 8 bytes, 4 of a checksum,
    itself, and 4 again.
    """
    ends, size = [0], path.stat().st_size
    with open(path, "rb") as file:
        while len(head := file.read(8)) == 8:
            end = ends[-1] + 16 + int.from_bytes(head, "little")
            if end > size:
                break
            ends.append(end)
            file.seek(end)
    return ends[1:]
