"""Threads, and waits for them, that survive a KeyboardInterrupt at any instruction.

Python runs signal handlers in the main thread, between any two instructions. A KeyboardInterrupt
inside `threading`'s own code (Event, Condition, `Thread.start`, and the pools and Futures built on
them) can leave an inner lock taken. Every later call then waits forever. `Thread.join` and
`is_alive` may also report a live thread as dead (bpo-45274).

The classes here store each fact in a plain value that one instruction changes. Locks only wake
sleeping threads, and setting a fact never waits. A waiting thread also polls the fact every
`LOOK_S` seconds: an interrupted notification is late, not lost.
"""

from __future__ import annotations

import math
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from typing import Generic, TypeVar, cast

T = TypeVar("T")
R = TypeVar("R")

# called before each piece of some work; an exception from it ends the work
Hook = Callable[[], None]

LOOK_S = 0.1  # between two polls of a waiting thread
# how long a new thread waits at most for `start` to return in the thread that started it
SEEN_S = 1.0
GONE_S = 1.0  # a thread whose work is done may need so long to end


def nothing() -> None:
    """A hook that does nothing."""


class Condition:
    """Wakes the threads that wait until a function returns true."""

    def __init__(self) -> None:
        self._asleep: list[threading.Lock] = []  # one acquired lock for each waiting thread

    def notify_all(self) -> None:
        """Let the waiting threads check again, because their condition may be true now."""
        for each in tuple(self._asleep):
            with suppress(RuntimeError):  # already released: that thread is awake and about to look
                each.release()

    def wait_for(self, true: Callable[[], bool], timeout_s: float = math.inf) -> bool:
        """Return True as soon as `true()` is true; False after `timeout_s` seconds."""
        if true():
            return True
        until, mine = time.monotonic() + timeout_s, threading.Lock()
        mine.acquire()
        self._asleep.append(mine)  # before the next look, so that no later ring is missed
        try:
            while not true():
                left_s = until - time.monotonic()
                if left_s <= 0:
                    return False
                mine.acquire(timeout=min(LOOK_S, left_s))
            return True
        finally:
            self._asleep.remove(mine)


class Latch:
    """A one-time event, like threading.Event.
    A KeyboardInterrupt in one thread does not break it for the others.
    """

    def __init__(self) -> None:
        self._happened = False
        self._bell = Condition()

    def set(self) -> None:
        """Set it permanently, and wake all waiting threads."""
        self._happened = True
        self._bell.notify_all()

    def is_set(self) -> bool:
        return self._happened

    def wait(self, timeout_s: float = math.inf) -> bool:
        """Return True when it is set; False after `timeout_s` seconds."""
        return self._bell.wait_for(self.is_set, timeout_s)


class Worker:
    """Runs work once, in a thread of its own, unless it is withdrawn before it begins; the first of
    the two wins.

    If Ctrl-C interrupts `Thread.start`, the thread may run now, later or never, and `Thread` does
    not report which.
    """

    def __init__(self, work: Callable[[], object], name: str) -> None:
        self.ended = Latch()
        self._work = work
        self._decision: dict[str, bool] = {}  # "begun": setdefault decides it in one instruction
        self._seen, self._started = Latch(), False
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._process = os.getpid()

    def start(self) -> None:
        """Start the thread.

        Raises:
            RuntimeError: the system gives no more threads.
        """
        try:
            self._thread.start()
            self._started = True
        except BaseException as error:
            self.withdraw()
            if isinstance(error, RuntimeError) and isinstance(error.__context__, KeyboardInterrupt):
                # a Condition replaced the KeyboardInterrupt by this RuntimeError
                raise error.__context__ from None
            raise
        finally:
            self._seen.set()

    def withdraw(self) -> None:
        """Make sure that the work never begins, unless it has begun."""
        self._decision.setdefault("begun", False)

    @property
    def is_withdrawn(self) -> bool:
        """Whether the work has not begun and never will begin."""
        if not self._started:
            self.withdraw()
        return not self._decision.get("begun", True)

    @property
    def is_over(self) -> bool:
        """Whether no thread does the work, now or later. A forked child has none of its parent's
        threads.
        """
        return self.ended.is_set() or self.is_withdrawn or os.getpid() != self._process

    def wait(self) -> None:
        """Return when the work is over and the thread has ended."""
        while not self.is_over:
            self.ended.wait(GONE_S)
        if self._started or self.ended.is_set():
            self._thread.join(GONE_S)  # so that a fork, or a count of threads, does not see it

    def dismiss(self) -> None:
        """Withdraw the work if it has not begun; else wait for it."""
        self.withdraw()
        self.wait()

    def _run(self) -> None:
        # otherwise it holds the GIL for 5 ms while its starter waits for the GIL
        self._seen.wait(SEEN_S)
        work = self._work
        del self._work  # so that the objects it refers to are freed when it ends
        if self._decision.setdefault("begun", True):
            try:
                work()
            finally:
                self.ended.set()


class WorkerGroup:
    """Several workers. `dismiss` waits for all of them and lets no further worker begin."""

    def __init__(self) -> None:
        self.dismissed = False  # workers that check this end early
        self._members: list[Worker] = []

    @property
    def is_busy(self) -> bool:
        """Whether a worker runs, or is about to run."""
        return not all(each.is_over for each in self._members)

    def start_worker(self, work: Callable[[], object], name: str = "holdfast-worker") -> bool:
        """Start one more thread for `work`. Return False if the system gives no more threads."""
        member = Worker(work, name)
        self._members.append(member)
        try:
            member.start()
        except RuntimeError:
            return False
        return True

    def wait(self) -> None:
        """Return when all workers have ended."""
        for each in self._members:
            each.wait()

    def dismiss(self) -> None:
        """Wait for all workers, and let no further worker begin. After an interrupt it may be
        called again.
        """
        self.dismissed = True
        for each in self._members:
            each.withdraw()
        self.wait()


class WorkerPool(Generic[R]):
    """Runs pieces of work in order, in up to `threads` threads.
    Starts a thread only when all others are busy.
    """

    def __init__(self, threads: int) -> None:
        self.under_way = 0  # pieces that were given and whose results were not taken yet
        self._most, self._begun = threads, 0
        self._crew = WorkerGroup()
        self._todo: deque[Callable[[], R]] = deque()
        self._done: deque[tuple[R | None, BaseException | None]] = deque()
        self._given, self._came = Condition(), Condition()

    def start_thread(self) -> bool:
        """Start one more thread.
        Return False if the limit is reached or the system gives no more threads.
        """
        if self._begun >= self._most or not self._crew.start_worker(self._work, "holdfast-pool"):
            self._most = self._begun
            return False
        self._begun += 1
        return True

    def submit(self, work: Callable[[], R]) -> None:
        """Queue `work` for one of the threads. At least one must have been started."""
        if self.under_way >= self._begun:
            self.start_thread()
        self.under_way += 1
        self._todo.append(work)
        self._given.notify_all()

    def results(self, *, everything: bool = False) -> Iterator[R]:
        """Wait until one piece is done (with `everything`, all); yield the results. Raises what a
        piece raised.
        """
        count = self.under_way if everything else min(1, self.under_way)
        self._came.wait_for(lambda: len(self._done) >= count)
        while self._done:
            result, error = self._done.popleft()
            self.under_way -= 1
            if error is not None:
                raise error
            yield cast("R", result)

    def close(self) -> None:
        """Wait for the pieces that have begun; drop the others."""
        self._crew.dismissed = True
        self._given.notify_all()
        self._crew.dismiss()

    def _work(self) -> None:
        while not self._crew.dismissed:
            self._given.wait_for(lambda: bool(self._todo) or self._crew.dismissed)
            with suppress(IndexError):  # another thread took it
                self._run_one(self._todo.popleft())

    def _run_one(self, work: Callable[[], R]) -> None:
        try:
            self._done.append((work(), None))
        except BaseException as error:
            self._done.append((None, error))
        self._came.notify_all()


def map_in_threads(
    function: Callable[[T], R], items: Sequence[T], threads: int, crew: WorkerGroup | None = None
) -> list[R]:
    """Return `[function(item) for item in items]`, computed in several threads if the system gives
    any.

    After an error no more items are begun. No thread is at work when this returns or raises. After
    an interrupt some may be: `crew` can wait for them.
    """
    crew = WorkerGroup() if crew is None else crew
    todo = deque(enumerate(items))
    found: dict[int, R] = {}
    wrong: dict[int, BaseException] = {}

    def work() -> None:
        while not (wrong or crew.dismissed):
            try:
                number, item = todo.popleft()
            except IndexError:  # no item is left
                return
            try:
                found[number] = function(item)
            except BaseException as error:
                wrong[number] = error

    try:
        for _ in range(min(threads, len(items))):
            if not crew.start_worker(work):
                break
        crew.wait()
        work()  # the items that are left
    finally:
        crew.dismiss()
    if wrong:
        raise wrong[min(wrong)]
    return [found[number] for number in range(len(items))]
