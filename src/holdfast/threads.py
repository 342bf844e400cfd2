"""Beside: work in threads of our own, and waits for it that end, whatever Ctrl-C does to the one who waits.

Python runs signal handlers in the main thread, between any two of its instructions. A KeyboardInterrupt that comes inside
`threading`'s own code (an Event, a Condition, `Thread.start`; pools and their Futures are made of these) leaves an inner
lock taken, and whoever says or asks something afterwards waits for ever; `Thread.join` and `is_alive` take a living thread
for dead (bpo-45274). Here the truth is a plain value that one instruction changes, a lock only wakes, to say something
never waits, and who waits looks for himself now and then: a word that was cut short is late, and not lost.
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

LOOK_S = 0.1  # between two looks of those who wait
SEEN_S = 1.0  # that a thread waits until its starter has seen it
GONE_S = 1.0  # that a thread whose work is over may take to be gone


class Condition:
    """Wakes those who wait for something to become true."""

    def __init__(self) -> None:
        self._asleep: list[threading.Lock] = []  # one each, and taken

    def ring(self) -> None:
        """What they wait for may be true by now."""
        for each in tuple(self._asleep):
            with suppress(RuntimeError):  # he is awake, and about to look
                each.release()

    def wait_for(self, true: Callable[[], bool], timeout_s: float = math.inf) -> bool:
        """Return when it is `true`; False: it was not in time."""
        if true():
            return True
        until, mine = time.monotonic() + timeout_s, threading.Lock()
        mine.acquire()
        self._asleep.append(mine)  # before the next look: what is said from now on wakes
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
    """Something that has happened, or not yet: an Event that Ctrl-C breaks for nobody."""

    def __init__(self) -> None:
        self._happened = False
        self._bell = Condition()

    def set(self) -> None:
        """It has happened."""
        self._happened = True
        self._bell.ring()

    def is_set(self) -> bool:
        return self._happened

    def wait(self, timeout_s: float = math.inf) -> bool:
        """Return when it has happened; False: it did not in time."""
        return self._bell.wait_for(self.is_set, timeout_s)


class Worker:
    """Work that a thread of its own does once, or nobody ever: the first word about that counts.

    A thread whose start was cut short by Ctrl-C may run, now or later, or stand still for good, and `Thread` does not say.
    """

    def __init__(self, work: Callable[[], object], name: str) -> None:
        self.ended = Latch()
        self._work = work
        self._words: dict[str, bool] = {}  # its setdefault is one instruction
        self._seen, self._started = Latch(), False
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._process = os.getpid()

    def start(self) -> None:
        """
        Raises:
            RuntimeError: the system gives no more threads.
        """
        try:
            self._thread.start()
            self._started = True
        except BaseException as error:
            self.withdraw()
            if isinstance(error, RuntimeError) and isinstance(error.__context__, KeyboardInterrupt):
                raise error.__context__ from None  # it came in the midst of a Condition, which hides it so
            raise
        finally:
            self._seen.set()

    def withdraw(self) -> None:
        """Let nobody begin, if nobody has."""
        self._words.setdefault("begun", False)

    @property
    def withdrawn(self) -> bool:
        """Whether nobody has begun, nor ever will."""
        if not self._started:
            self.withdraw()
        return not self._words.get("begun", True)

    @property
    def over(self) -> bool:
        """Whether nobody is at it, nor ever will be. A forked child has no threads of its parent's."""
        return self.ended.is_set() or self.withdrawn or os.getpid() != self._process

    def wait(self) -> None:
        """Return when it is over, and the thread gone."""
        while not self.over:
            self.ended.wait(GONE_S)
        if self._started or self.ended.is_set():
            self._thread.join(GONE_S)  # who forks, or counts threads, is not to find it

    def dismiss(self) -> None:
        """As `wait`, and nobody begins any more."""
        self.withdraw()
        self.wait()

    def _run(self) -> None:
        self._seen.wait(SEEN_S)  # else it keeps the interpreter's lock for 5 ms from a starter who waits for just that
        work = self._work
        del self._work  # what it holds is nobody's when it has ended
        if self._words.setdefault("begun", True):
            try:
                work()
            finally:
                self.ended.set()


class WorkerGroup:
    """Threads at work. `dismiss` waits for them, and lets nobody begin afterwards."""

    def __init__(self) -> None:
        self.dismissed = False  # who looks at it ends early
        self._members: list[Worker] = []

    @property
    def at_work(self) -> bool:
        """Whether somebody is, or is about to be."""
        return not all(each.over for each in self._members)

    def begin(self, work: Callable[[], object], name: str = "holdfast-worker") -> bool:
        """Let one more thread do `work`; False: the system gives none."""
        member = Worker(work, name)
        self._members.append(member)
        try:
            member.start()
        except RuntimeError:
            return False
        return True

    def wait(self) -> None:
        """Return when nobody is at work."""
        for each in self._members:
            each.wait()

    def dismiss(self) -> None:
        """As `wait`, and nobody begins any more. Cut short, it may be called again."""
        self.dismissed = True
        for each in self._members:
            each.withdraw()
        self.wait()


class WorkerPool(Generic[R]):
    """Up to so many threads for many pieces of work, begun in their order. One more is started when all have something to do."""

    def __init__(self, threads: int) -> None:
        self.under_way = 0  # pieces that were given and not taken
        self._most, self._begun = threads, 0
        self._crew = WorkerGroup()
        self._todo: deque[Callable[[], R]] = deque()
        self._done: deque[tuple[R | None, BaseException | None]] = deque()
        self._given, self._came = Condition(), Condition()

    def begin(self) -> bool:
        """Start one thread more; False: the system gives none, or they are as many as are wanted."""
        if self._begun >= self._most or not self._crew.begin(self._work, "holdfast-pool"):
            self._most = self._begun
            return False
        self._begun += 1
        return True

    def give(self, work: Callable[[], R]) -> None:
        """Have it done by one of the threads, of which there is at least one."""
        if self.under_way >= self._begun:
            self.begin()
        self.under_way += 1
        self._todo.append(work)
        self._given.ring()

    def take(self, *, everything: bool = False) -> Iterator[R]:
        """What came of those that are over, when one more is, or `everything`. What one raised is raised."""
        count = self.under_way if everything else min(1, self.under_way)
        self._came.wait_for(lambda: len(self._done) >= count)
        while self._done:
            result, error = self._done.popleft()
            self.under_way -= 1
            if error is not None:
                raise error
            yield cast("R", result)

    def close(self) -> None:
        """Return when nobody is at work; what was not begun never will be."""
        self._crew.dismissed = True
        self._given.ring()
        self._crew.dismiss()

    def _work(self) -> None:
        while not self._crew.dismissed:
            self._given.wait_for(lambda: bool(self._todo) or self._crew.dismissed)
            with suppress(IndexError):  # another one was quicker
                self._one(self._todo.popleft())

    def _one(self, work: Callable[[], R]) -> None:
        try:
            self._done.append((work(), None))
        except BaseException as error:
            self._done.append((None, error))
        self._came.ring()


def map_in_threads(
    function: Callable[[T], R], items: Sequence[T], threads: int, crew: WorkerGroup | None = None
) -> list[R]:
    """What `function` makes of each, by several threads if the system gives them. After an error no further one is begun.

    Nobody is at work when this returns or raises. If Ctrl-C cuts the wait short, somebody may be: `crew` can wait again.
    """
    crew = WorkerGroup() if crew is None else crew
    todo = deque(enumerate(items))
    found: dict[int, R] = {}
    wrong: dict[int, BaseException] = {}

    def work() -> None:
        while not (wrong or crew.dismissed):
            try:
                number, item = todo.popleft()
            except IndexError:  # nothing is left
                return
            try:
                found[number] = function(item)
            except BaseException as error:
                wrong[number] = error

    try:
        for _ in range(min(threads, len(items))):
            if not crew.begin(work):
                break
        crew.wait()
        work()  # what nobody has done
    finally:
        crew.dismiss()
    if wrong:
        raise wrong[min(wrong)]
    return [found[number] for number in range(len(items))]
