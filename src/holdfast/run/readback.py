"""Read-back: between two saves,
a thread reads the files that the next save will link, to find damage early.
"""

from __future__ import annotations

from collections.abc import Collection
from contextlib import suppress
from functools import partial

import msgspec

from ..store.lineage import LinkedShard
from ..store.problems import Problem
from ..store.shards import SaveAbandoned
from ..store.store import Store
from ..threads import Latch, Worker

NAME = "holdfast ahead"
LEAVE_S = 1.0  # longest wait at the end of the run for the 4 MiB piece being read


class ReadBack(msgspec.Struct):
    """Reads, in a thread between two saves, the files that the next save links. No save
    waits for it.
    """

    _store: Store
    over: Latch = msgspec.field(default_factory=Latch)  # set when the time between two saves ends
    _damage: Problem | None = None  # found since the last save began
    _reader: Worker | None = None

    def pause_reading(self) -> Latch:
        """Stop reading after the current piece, because a save begins. Return what
        `start_reading` takes after the save.
        """
        self.over.set()
        self.over, self._damage = Latch(), None
        return self.over

    def take_damage(self) -> Problem | None:
        """Return, once, the damage found since the last save began; None if there is none."""
        found, self._damage = self._damage, None
        return found

    def start_reading(self, over: Latch) -> None:
        """Read, unless the next save has begun.
        Errors are ignored: the save reads these files again.
        """
        # the attempt was superseded, or the system cannot start another thread
        with suppress(Exception):
            links = [] if over.is_set() else self._store.unread()
            if links:
                reader = self._reader = Worker(partial(self._read_files, links, over), NAME)
                reader.start()

    def close(self) -> None:
        """Stop reading."""
        self.over.set()
        reader = self._reader
        if reader is not None and (reader.is_over or reader.ended.wait(LEAVE_S)):
            reader.wait()  # for its thread to end

    def _read_files(self, links: Collection[LinkedShard], over: Latch) -> None:
        def still_idle() -> None:
            if over.is_set():
                raise SaveAbandoned

        # the save that links the file meets the same error and reports it
        with suppress(Exception):
            problem = self._store.read_back_early(links, still_idle)
            if not over.is_set():
                self._damage = problem
