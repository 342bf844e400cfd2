"""Writer: one save in flight, on a thread of its own. It knows threads, and nothing of checkpoints."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextvars import copy_context
from typing import Any

from ..store.shards import Abandoned

BeforeEach = Callable[[], None]


class Writer:
    """Runs one piece of work at a time beside the loop; its outcome is fetched by whoever gave it."""

    def __init__(self) -> None:
        import concurrent.futures.thread  # noqa: F401 -- not by the thread: a process forked meanwhile would have half of it

        self._thread: threading.Thread | None = None
        self._begun, self._ended, self._unwanted = threading.Event(), threading.Event(), threading.Event()
        self._rested = threading.Event()  # the loop may go on
        self._turn = threading.Lock()  # whoever takes it first: its thread does the work, or nobody ever will
        self._outcome: Any = None
        self._error: BaseException | None = None

    @property
    def in_flight(self) -> bool:
        """Whether work was submitted whose outcome nobody has fetched."""
        thread = self._thread
        if thread is not None and not thread.is_alive() and self._turn.acquire(blocking=False):
            self._thread = None  # Ctrl-C came while it was started
        return self._thread is not None

    @property
    def done(self) -> bool:
        """Whether fetching the outcome would not wait."""
        return not self.in_flight or self._ended.is_set()

    def submit(self, work: Callable[[BeforeEach], Any]) -> None:
        """Begin `work`, which is to call its argument now and then: that ends it once `abandon` was called."""
        if self.in_flight:
            raise RuntimeError("a save is in flight: wait for it first")
        self._begun.clear()
        self._ended.clear()
        self._rested.clear()
        self._unwanted.clear()
        self._outcome = self._error = None
        self._turn = threading.Lock()
        given = self._run, work, self._turn
        self._thread = threading.Thread(target=copy_context().run, args=given, name="holdfast", daemon=True)
        try:
            self._thread.start()
        except BaseException:  # Ctrl-C, or the system gives no more threads
            if self._turn.acquire(blocking=False):
                self._thread = None
            raise
        finally:
            self._begun.set()

    def wait(self) -> Any:
        """The outcome, when it is there: what the work returned, None when there was none.

        Raises:
            BaseException: what the work raised; Abandoned when it has given way.
        """
        thread = self._thread if self.in_flight else None
        if thread is None:
            return None
        self._begun.set()  # unless it was interrupted, it is
        self._ended.wait()  # a join that Ctrl-C interrupts takes a living thread for dead (bpo-45274)
        thread.join()
        self._thread = None
        error, self._error = self._error, None
        if error is not None:
            raise error
        return self._outcome

    def rest(self) -> None:
        """Return when the work has ended, or says by `let_go` that nobody need rest; its outcome is still to be fetched."""
        if self.in_flight:
            self._rested.wait()

    def let_go(self) -> None:
        """The work needs nothing more of what the loop may change."""
        self._rested.set()

    def abandon(self) -> None:
        """Let the work end at its next request to the disk; what has made its last one comes to its own end."""
        self._unwanted.set()

    def _run(self, work: Callable[[BeforeEach], Any], turn: threading.Lock) -> None:
        self._begun.wait()  # else it keeps the interpreter's lock for 5 ms from a loop that waits for its first sign of life
        if not turn.acquire(blocking=False):  # whoever submitted it has been told that it failed
            return
        try:
            self._outcome = work(self._before_each)
        except BaseException as error:
            self._error = error
        finally:
            self._ended.set()
            self._rested.set()

    def _before_each(self) -> None:
        if self._unwanted.is_set():
            raise Abandoned
