"""Ahead: while no save is under way, what the next one will link is read back beside the loop."""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection
from contextlib import suppress

from ..store.lineage import Link
from ..store.shards import Abandoned
from ..store.store import Store

NAME = "holdfast ahead"
LEAVE_S = 1.0  # that the end waits for a piece of 4 MiB; a disk that needs longer is left alone with it


class Ahead:
    """A thread that reads between two saves. It keeps nobody waiting, and what it does not come to is read later."""

    def __init__(self, store: Store, tell: Callable[[str], None]) -> None:
        self.found_damage = False  # since the last save began
        self._store, self._tell = store, tell
        self._thread: threading.Thread | None = None
        self.over = threading.Event()  # of the time between two saves

    def give_way(self) -> threading.Event:
        """A save begins: reading ends with the piece at hand. What `begin` is to get when that save has ended."""
        self.over.set()
        self.over, self.found_damage = threading.Event(), False
        return self.over

    def begin(self, over: threading.Event) -> None:
        """Read, unless the next save has begun already, or there is nothing to read. A failure is nobody's."""
        with suppress(Exception):  # a ghost's, or of a system that gives no more threads
            links = [] if over.is_set() else self._store.unread()
            if links:
                thread = threading.Thread(target=self._read, args=(links, over), name=NAME, daemon=True)
                thread.start()
                self._thread = thread

    def close(self) -> None:
        """Read no more."""
        self.over.set()
        if self._thread is not None:
            self._thread.join(LEAVE_S)

    def _read(self, links: Collection[Link], over: threading.Event) -> None:
        def still_idle() -> None:
            if over.is_set():
                raise Abandoned

        with suppress(Exception):  # whatever it is, the save that links will meet it, and say so
            problem = self._store.read_ahead(links, still_idle)
            if problem is not None:
                self._tell(f"{problem}; the next save writes it anew")
                self.found_damage = not over.is_set()
