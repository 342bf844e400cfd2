"""Writer: runs one save at a time on its own thread. It does not depend on checkpoints."""

from __future__ import annotations

from collections.abc import Callable
from contextvars import copy_context
from functools import partial
from typing import Any

from ..store.shards import SaveAbandoned
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
