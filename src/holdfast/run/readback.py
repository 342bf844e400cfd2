"""Ahead: while no save is under way, what the next one will link is read back beside the loop."""

from __future__ import annotations

from collections.abc import Callable, Collection
from contextlib import suppress
from functools import partial

from ..store.lineage import Link
from ..store.shards import Abandoned
from ..store.store import Store
from ..threads import Latch, Worker

NAME = "holdfast ahead"
LEAVE_S = 1.0  # that the end waits for a piece of 4 MiB; a disk that needs longer is left alone with it


class ReadBack:
    """A thread that reads between two saves. It keeps nobody waiting, and what it does not come to is read later."""

    def __init__(self, store: Store, tell: Callable[[str], None]) -> None:
        self.found_damage = False  # since the last save began
        self._store, self._tell = store, tell
        self._reader: Worker | None = None
        self.over = Latch()  # the time between two saves

    def give_way(self) -> Latch:
        """A save begins: reading ends with the piece at hand. What `begin` is to get when that save has ended."""
        self.over.set()
        self.over, self.found_damage = Latch(), False
        return self.over

    def begin(self, over: Latch) -> None:
        """Read, unless the next save has begun already, or there is nothing to read. A failure is nobody's."""
        with suppress(Exception):  # a ghost's, or of a system that gives no more threads
            links = [] if over.is_set() else self._store.unread()
            if links:
                reader = self._reader = Worker(partial(self._read, links, over), NAME)
                reader.start()

    def close(self) -> None:
        """Read no more."""
        self.over.set()
        reader = self._reader
        if reader is not None and (reader.over or reader.ended.wait(LEAVE_S)):
            reader.wait()  # for its thread

    def _read(self, links: Collection[Link], over: Latch) -> None:
        def still_idle() -> None:
            if over.is_set():
                raise Abandoned

        with suppress(Exception):  # whatever it is, the save that links will meet it, and say so
            problem = self._store.read_back_early(links, still_idle)
            if problem is not None:
                self._tell(f"{problem}; the next save writes it anew")
                self.found_damage = not over.is_set()
