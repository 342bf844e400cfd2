"""Writer: the threads beside the loop. One runs one save at a time, and knows no checkpoint.
Between two saves the other reads the files that the next save will link, to find damage early.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from contextlib import suppress
from contextvars import copy_context
from functools import partial
from typing import Any

import msgspec

from ..store.lineage import LinkedShard
from ..store.problems import Problem
from ..store.shards import SaveAbandoned
from ..store.store import Store
from ..threads import Latch, Worker

BeforeEach = Callable[[], None]


class SaveWriter:
    """Runs one piece of work at a time beside the loop. The caller fetches the outcome."""

    def __init__(self) -> None:
        self._beside: Worker | None = None
        self._ended, self._rested = Latch(), Latch()  # the work has ended; the loop may continue
        self._unwanted = False
        self._outcome: Any = None
        self._error: BaseException | None = None

    @property
    def in_flight(self) -> bool:
        """Whether work was submitted whose outcome was not fetched yet."""
        if self._beside is not None and self._beside.is_withdrawn:
            self._beside = None  # Ctrl-C came while it was started
        return self._beside is not None

    @property
    def has_finished(self) -> bool:
        """Whether fetching the outcome would not wait."""
        return not self.in_flight or self._ended.is_set()

    def submit(self, work: Callable[[BeforeEach], Any]) -> None:
        """Begin `work`. It must call its argument before each request to the disk: after `abandon`
        that call raises.

        Raises:
            RuntimeError: the system cannot start another thread.
        """
        if self.in_flight:
            raise RuntimeError("a save is in flight: wait for it first")
        self._ended, self._rested = Latch(), Latch()
        self._unwanted = False
        self._outcome = self._error = None
        worker = self._beside = Worker(
            partial(copy_context().run, self._run, work), name="holdfast"
        )
        worker.start()

    def wait(self) -> Any:
        """Wait for the work and return its result; None when no work was submitted.

        Raises:
            BaseException: the exception of the work; Abandoned after `abandon`.
        """
        worker = self._beside if self.in_flight else None
        if worker is None:
            return None
        self._ended.wait()
        worker.wait()
        self._beside = None
        error, self._error = self._error, None
        if error is not None:
            try:
                raise error
            finally:
                # a cycle would keep the error's frames, and a state in them, until the collector
                # runs
                del error
        return self._outcome

    def wait_until_released(self) -> None:
        """Return when the work has ended or has called `release_state`. Its outcome must
        still be fetched.
        """
        if self.in_flight:
            self._rested.wait()

    def release_state(self) -> None:
        """Let the loop change the state from now on. The work calls this."""
        self._rested.set()

    def abandon(self) -> None:
        """Stop the work before its next request to the disk. Work after its last request
        completes.
        """
        self._unwanted = True

    def _run(self, work: Callable[[BeforeEach], Any]) -> None:
        try:
            self._outcome = work(self._check_abandoned)
        except BaseException as error:
            self._error = error
        finally:
            self._ended.set()
            self._rested.set()

    def _check_abandoned(self) -> None:
        if self._unwanted:
            raise SaveAbandoned


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
