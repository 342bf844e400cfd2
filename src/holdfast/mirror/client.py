"""Client: the run's end of the mirrors. It starts the `worker`, hands it requests, and returns at once.

One daemon thread writes to the worker, reads from it, and calls the callbacks. It holds no lock that a fork could copy.
A worker that dies answers every open request with "silent"; the next request starts another one.
"""

from __future__ import annotations

import itertools
import os
import selectors
import socket
import sys
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any, NamedTuple

import msgspec

from ..errors import StoreError, UsageError
from ..terminal import warn
from ..threads import Latch, Worker
from .process import WorkerProcess
from .protocol import OpenedPlace, Reply, Request

LOOK_S = 0.5  # between two checks that the worker is alive, while a reply is open
CLOSE_S = 5.0

Callback = Callable[[Reply], None]


class PlaceError(StoreError):
    """A place did not do what was asked. `kind`: one of `protocol.Kind`."""

    def __init__(self, kind: str, text: str) -> None:
        super().__init__(text)
        self.kind = kind


class _Open(NamedTuple):
    """A request without a reply."""

    replied: Callback
    noted: Callback | None


class WorkerClient:
    """The worker of one run. `urls` may hold secrets: they go through its stdin, never into its arguments.

    With `private` it keeps other users out of folders.
    """

    def __init__(
        self, urls: Sequence[str], *, python: Sequence[str] = (sys.executable,), private: bool = False
    ) -> None:
        self._urls, self._python, self._private = [*urls], [*python], private
        self._pid, self._folder = os.getpid(), os.getcwd()
        self._numbers = itertools.count(1)
        self._outbox: deque[Request] = deque()
        self._owed: dict[int, _Open] = {}
        self._sent: set[int] = set()  # requests that were sent to the worker
        self._closed = Latch()
        self._bell, self._ear = socket.socketpair()
        self._bell.setblocking(False)
        self._ear.setblocking(False)
        self._child: WorkerProcess | None = None
        self._thread = Worker(self._run, "holdfast-mirrors")
        self._begun: dict[str, object] = {}  # setdefault decides in one instruction who starts the thread

    def start(self, timeout_s: float = 60.0) -> list[OpenedPlace]:
        """Start the worker, as the first request does, too; return its places, to which nothing is connected yet.

        Raises:
            PlaceError: it did not come up in time.
        """
        return msgspec.convert(
            self._asked(Request(next(self._numbers), "open"), timeout_s)["places"], list[OpenedPlace]
        )

    def ask(self, place: int, op: str, args: Mapping[str, Any], timeout_s: float) -> dict[str, Any]:
        """Send a request and wait for its reply.

        Raises:
            PlaceError: the reply is an error, or did not come in time.
        """
        budget_s = timeout_s * 0.8  # the worker should report its error before this wait ends
        return self._asked(Request(next(self._numbers), op, place, budget_s, dict(args)), timeout_s)

    def post(
        self,
        place: int,
        op: str,
        args: Mapping[str, Any],
        replied: Callback,
        *,
        noted: Callback | None = None,
        budget_s: float = 120.0,
    ) -> int:
        """Send a request and return its number at once. The client's thread calls `replied` once; `noted` before."""
        request = Request(next(self._numbers), op, place, budget_s, dict(args))
        self._send(request, _Open(replied, noted))
        return request.id

    def cancel(self, number: int) -> None:
        """Withdraw a request, between two pieces of a file. Its reply tells whether that was in time."""
        if number in self._owed:
            self._send(Request(0, "cancel", args={"request": number}))

    def end_worker(self) -> None:
        """Kill the worker, so that it holds no file open. Open requests are answered with "silent"; the next request
        starts another one.
        """
        if (child := self._child) is not None:
            child.kill()
        self._ring()

    def close(self, timeout_s: float = CLOSE_S) -> None:
        """End the worker; kill it after `timeout_s`. Open requests are answered with "silent"."""
        if os.getpid() != self._pid:
            return
        self._closed.set()
        if not self._begun:
            self._silence()
            return
        self._ring()
        self._thread.ended.wait(timeout_s)
        if self._child is not None:
            self._child.kill()
        self._thread.ended.wait(1.0)

    def _asked(self, request: Request, timeout_s: float) -> dict[str, Any]:
        came, found = Latch(), deque[Reply]()

        def replied(reply: Reply) -> None:
            found.append(reply)
            came.set()

        self._send(request, _Open(replied, None))
        if not came.wait(timeout_s):
            self.cancel(request.id)
            self._owed.pop(request.id, None)
            raise PlaceError("silent", f"no answer within {timeout_s:g} s")
        if found[0].error is not None:
            raise PlaceError(found[0].error, found[0].text)
        return found[0].ok or {}

    def _send(self, request: Request, waiting: _Open | None = None) -> None:
        if os.getpid() != self._pid:
            raise UsageError("a forked child has no mirrors; its parent has")
        if self._closed.is_set():
            raise StoreError("the mirrors are closed")
        if waiting is not None:
            self._owed[request.id] = waiting
        self._outbox.append(request)
        mine = object()
        if self._begun.setdefault("thread", mine) is mine:
            self._thread.start()
        self._ring()
        if self._closed.is_set() and self._owed.pop(request.id, None) is not None:  # closed just now
            raise StoreError("the mirrors are closed")

    def _silence(self) -> None:
        for end in (self._bell, self._ear):
            end.close()

    def _ring(self) -> None:
        with suppress(OSError):  # full: it will wake anyway
            self._bell.send(b"!")

    # -- in the client's thread -------------------------------------------------------------------------------------

    def _run(self) -> None:
        with selectors.DefaultSelector() as selector:
            selector.register(self._ear, selectors.EVENT_READ)
            try:
                while not self._closed.is_set():
                    self._serve(selector)
                if self._child is not None:
                    self._child.end()
            finally:
                self._closed.set()  # also after an error of ours: no caller may wait for ever
                self._lose(selector, "the mirrors were closed")
                self._answer([*self._owed], "the mirrors were closed")
                self._silence()

    def _serve(self, selector: selectors.BaseSelector) -> None:
        if self._child is not None and not self._child.alive():
            self._hear(selector, self._child)
        if self._outbox and self._child is None:
            self._begin(selector)
        child = self._child
        if child is not None:
            while self._outbox:
                request = self._outbox.popleft()
                self._sent.add(request.id)
                child.queue(request)
            child.write()
        busy = child is not None and (bool(self._owed) or child.unsent)
        ready = {key.fileobj for key, _ in selector.select(LOOK_S if busy else None)}
        if self._ear in ready:
            with suppress(BlockingIOError):
                self._ear.recv(1 << 12)
        if child is not None and child.reads in ready:
            self._hear(selector, child)

    def _begin(self, selector: selectors.BaseSelector) -> None:
        try:
            self._child = WorkerProcess(self._python)
        except OSError as error:
            while self._outbox:
                text = f"the mirrors' process cannot be started: {error.strerror}"
                self._answer([self._outbox.popleft().id], text)
            return
        selector.register(self._child.reads, selectors.EVENT_READ)
        args = {"places": self._urls, "parent": self._pid, "folder": self._folder, "private": self._private}
        first = self._outbox.popleft() if self._outbox[0].op == "open" else Request(0, "open")
        self._outbox.appendleft(msgspec.structs.replace(first, args=args))

    def _hear(self, selector: selectors.BaseSelector, child: WorkerProcess) -> None:
        """Deliver the worker's replies. If it has ended, answer the open requests."""
        over = "" if child.alive() else child.why()  # asked before the read, so that no later reply is missed
        for reply in child.read():
            if reply.note == "bye":
                over = reply.text
            else:
                self._deliver(reply)
        if over or child.deaf:
            self._lose(selector, over or child.why())

    def _deliver(self, reply: Reply) -> None:
        waiting = self._owed.get(reply.id) if reply.note else self._owed.pop(reply.id, None)
        if not reply.note:
            self._sent.discard(reply.id)
        callback = None if waiting is None else waiting.noted if reply.note else waiting.replied
        if callback is None:
            return
        try:
            callback(reply)
        except Exception as error:  # it must not end the thread: no other reply would ever come
            warn(f"mirrors: {type(error).__name__}: {error}")

    def _lose(self, selector: selectors.BaseSelector, why: str) -> None:
        child, self._child = self._child, None
        if child is not None:
            with suppress(KeyError):
                selector.unregister(child.reads)
            child.kill()
            child.forget()
        sent = sorted(self._sent)
        self._sent.clear()
        self._answer(sent, why)

    def _answer(self, numbers: Sequence[int], why: str) -> None:
        for number in numbers:
            self._deliver(Reply(number, error="silent", text=why))
