"""Client: the run's end of the mirrors. It starts the `worker`, sends orders to it, and hands its
events on.

One daemon thread reads from the worker. Any thread may call `send_order`, which never waits.
A worker that dies is replaced after a pause. The client holds no lock that a fork could copy.
"""

from __future__ import annotations

import itertools
import os
import sys
import time
from collections import deque
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, Protocol

from ..errors import StoreError, UsageError
from ..rules import Rule
from ..store.checkpoint_index import CheckpointIndex
from ..terminal import warn
from ..threads import Condition, Latch, Worker, nothing
from .process import WorkerProcess
from .protocol import ALL, Event, WorkerOrder, rule_to_json

LOOK_S = 0.5  # between two checks that the worker is alive
CLOSE_S = 1.0
# before a worker that has died is replaced; the last one from then on
RETRY_S = (1.0, 2.0, 5.0, 10.0, 30.0)
HURRIED_S = 0.2  # the same at the end of the run
MOST_COPIES = 50  # in one order, so that it is written whole or not at all
SOUND_S = 60.0  # a worker that lived so long was sound


class PlaceError(StoreError):
    """A place did not do what was asked. `kind`: one of `protocol.Kind`."""

    def __init__(self, kind: str, text: str) -> None:
        super().__init__(text)
        self.kind = kind


class Listener(Protocol):
    """What the client's thread calls."""

    def handle_event(self, event: Event) -> None: ...

    def on_worker_lost(self, why: str) -> None:
        """The worker has ended, and another one will begin."""
        ...

    def on_tick(self) -> None:
        """Some time has passed."""
        ...


class _PendingQuestion:
    """A question to some places: the answers so far, and when each place last made progress."""

    def __init__(self, orders: Sequence[WorkerOrder]) -> None:
        self.do = orders[0].do if orders else ""
        self.places = {order.place for order in orders}
        self.unsent = {order.place: order for order in orders}  # one instruction takes an order out
        self.answers: dict[int, Event] = {}
        self.heard_s = time.monotonic()


class WorkerClient:
    """The run's side of the worker that copies the checkpoints in `index`.

    The addresses may hold secrets, so they go through the worker's stdin and never into its
    arguments. With `private` the worker keeps other users out of folders.
    """

    def __init__(
        self,
        index: CheckpointIndex,
        places: Sequence[tuple[str, Rule]],
        *,
        python: Sequence[str] = (sys.executable,),
        private: bool = False,
    ) -> None:
        self._pid, self._python = os.getpid(), [*python]
        self._opening = {
            "root": os.fsencode(index.root).hex(),  # a path need not be UTF-8
            "key": index.key,
            "places": [[url, rule_to_json(rule)] for url, rule in places],
            "parent": self._pid,
            "folder": os.fsencode(os.getcwd()).hex(),
            "private": private,
        }
        self._numbers = itertools.count(1)
        self._questions: dict[int, _PendingQuestion] = {}
        self._claim: WorkerOrder | None = None  # that each new worker gets
        self._joined: set[int] = set()  # places that this attempt has claimed
        self._failures = 0  # workers in a row that died before they had done anything
        self.failing: dict[int, str] = {}  # why places are asked again, until there is a listener
        self._listener: Listener | None = None
        self._events: deque[Event] = deque()  # for the listener
        self._came, self._closed, self._hurried = Condition(), Latch(), Latch()
        self._child: WorkerProcess | None = None
        self._ended_on_purpose = False
        self._thread = Worker(self._run, "holdfast-mirrors")

    def start(self) -> None:
        """Start the thread, which starts the worker."""
        self._thread.start()

    def set_listener(self, listener: Listener) -> None:
        """Send the worker's events to `listener` from now on."""
        self._listener = listener

    def ask(
        self,
        do: str,
        args: Mapping[str, Any],
        places: Collection[int],
        limit_s: float,
        look: Callable[[], None] = nothing,
    ) -> dict[int, Event]:
        """Ask these places; return their answers, or their errors. A place without progress for
        `limit_s` is silent.

        `look` is called again and again meanwhile.
        """
        number = next(self._numbers)
        # the worker should tell its error before this wait ends
        given = {"budget_s": limit_s * 0.8, **args}
        question = _PendingQuestion([WorkerOrder(do, place, number, given) for place in places])
        self._questions[number] = question
        if self._child is not None:
            self._send_questions()
        try:
            while not self._came.wait_for(lambda: question.answers.keys() >= question.places, 0.1):
                if time.monotonic() - question.heard_s > limit_s or self._closed.is_set():
                    break
                look()
        finally:
            del self._questions[number]
        silent = f"no answer within {limit_s:.0f} s"
        return {
            place: question.answers.get(place) or Event("failed", place, kind="silent", text=silent)
            for place in question.places
        }

    def ask_one(
        self, do: str, args: Mapping[str, Any], place: int, limit_s: float
    ) -> dict[str, Any]:
        """Ask one place.

        Raises:
            PlaceError: it did not do that.
        """
        answer = self.ask(do, args, [place], limit_s)[place]
        if not answer.id:  # what has not answered must not write to this disk later
            self.end_worker()
        if answer.kind is not None:
            raise PlaceError(answer.kind, answer.text)
        return answer.facts

    def claim_in_later_workers(self, args: dict[str, Any]) -> None:
        """Let each later worker claim all places with these arguments."""
        self._claim = WorkerOrder("claim", args=args)

    def send_order(self, do: str, place: int = ALL, **args: Any) -> None:
        """Send an order without waiting. The order is lost if the worker does not read: its
        unread orders say the same.
        """
        self._write(WorkerOrder(do, place, args=args))

    def start_copying(
        self, place: int, copies: Sequence[tuple[int, str]], origin: Mapping[str, Any]
    ) -> None:
        """Let the worker copy to a place. `copies`: attempt and name of its copies of this
        run's lineage.
        """
        for first in range(0, len(copies), MOST_COPIES):
            self._write(
                WorkerOrder("ours", place, args={"copies": copies[first : first + MOST_COPIES]}),
                whole=True,
            )
        self._write(WorkerOrder("begin", place, args={**origin}), whole=True)

    def restart_worker_soon(self) -> None:
        """Replace a dead worker without a long pause from now on, because the run waits for
        its last copies.
        """
        self._hurried.set()

    def end_worker(self) -> None:
        """Kill the worker, so that it holds no file open. Another one begins."""
        if (child := self._child) is not None:
            self._ended_on_purpose = True
            child.kill()

    def close(self, drain_s: float = 0.0) -> None:
        """End the worker. Before that, let it complete its copies for `drain_s` seconds, if
        it was told to.
        """
        if os.getpid() != self._pid:
            return
        self._thread.ended.wait(drain_s)
        self._closed.set()
        self._hurried.set()
        if (child := self._child) is not None:
            child.kill()
        self._thread.withdraw()
        if not self._thread.is_over:
            self._thread.ended.wait(CLOSE_S)

    def _send_questions(self) -> None:
        for question in [*self._questions.values()]:
            for place in question.places:
                if (order := question.unsent.pop(place, None)) is not None:
                    self._write(order, whole=True)

    def _write(self, order: WorkerOrder, *, whole: bool = False) -> None:
        if os.getpid() != self._pid:
            raise UsageError("a forked child has no mirrors; its parent has")
        if (child := self._child) is not None:
            child.write(order, whole=whole)

    # -- in the client's thread
    # -------------------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            while not self._closed.is_set():
                began_s = time.monotonic()
                why = self._run_worker()
                if time.monotonic() - began_s > SOUND_S:
                    self._failures = 0
                if self._closed.is_set() or not why:
                    return
                if not self._ended_on_purpose:
                    self._handle_worker_lost(why)
                self._ended_on_purpose = False
                if self._hurried.is_set():
                    self._closed.wait(HURRIED_S)
                else:
                    self._hurried.wait(RETRY_S[min(self._failures, len(RETRY_S) - 1)])
                self._failures += 1
        finally:
            self._closed.set()
            self._handle_worker_lost("the mirrors were closed")

    def _run_worker(self) -> str:
        """Start a worker, and handle its events until it has ended; return how it did."""
        try:
            child = WorkerProcess(self._python, "holdfast.mirror", "the mirrors'")
        except OSError as error:
            return f"the mirrors' process cannot be started: {error.strerror}"
        try:
            child.write(WorkerOrder("open", args=self._opening), whole=True)
            if self._claim is not None:
                args = {**self._claim.args, "joined": sorted(self._joined)}
                child.write(WorkerOrder("claim", args=args), whole=True)
            self._child = child  # only now: others write to it
            self._send_questions()
            while (events := child.read(LOOK_S)) is not None and not self._closed.is_set():
                for event in events:
                    self._deliver_event(event)
                if self._listener is not None:
                    while self._events:
                        _call_listener(self._listener.handle_event, self._events.popleft())
                    _call_listener(self._listener.on_tick)
            return child.exit_reason()
        finally:
            self._child = None
            child.end()

    def _deliver_event(self, event: Event) -> None:
        for question in [*self._questions.values()]:
            if event.place in question.places and event.what == "sent":
                question.heard_s = time.monotonic()
        if event.what == "copied":
            self._failures = 0
        if event.what == "joined":
            self._joined.add(event.place)
        if event.id:
            if (asked := self._questions.get(event.id)) is not None:
                asked.answers[event.place] = event
                if asked.do == "claim" and event.kind is None:
                    self._joined.add(event.place)
                self._came.notify_all()
        elif self._listener is None and event.what == "failing":
            self.failing[event.place] = event.text
        else:
            self._events.append(event)

    def _handle_worker_lost(self, why: str) -> None:
        for question in [*self._questions.values()]:
            for place in question.places - question.answers.keys():
                question.answers[place] = Event("failed", place, kind="silent", text=why)
        self._came.notify_all()
        if self._listener is not None and not self._closed.is_set():
            _call_listener(self._listener.on_worker_lost, why)


def _call_listener(tell: Callable[..., None], *what: object) -> None:
    try:
        tell(*what)
    except Exception as error:  # it must not end the thread: nothing more would be heard
        warn(f"mirrors: {type(error).__name__}: {error}")
