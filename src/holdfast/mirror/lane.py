"""Lane: the thread of one place. It takes one request after the other, and repeats what was not answered."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import msgspec
import tenacity

from ..errors import Damaged, HoldfastError, NoSpace, NotFound
from .backends import open_place
from .place import Full, NotKept, Silent, shown, told
from .protocol import Kind, OpenedPlace, Reply, Request
from .records import Foreign, Later, ResumeOrigin, Taken
from .remote import Progress, Remote

FIRST_WAIT_S, LONGEST_WAIT_S = 0.2, 30.0
MOST_SENT_AGAIN = 3  # how often a file is sent again that the place stored wrongly
NOTE_S = 1.0  # between two notes of progress
SLOWEST = 4e6  # bytes per second at which a place verifies at least

Say = Callable[[Reply], None]


class Cancelled(Exception):
    """The run has withdrawn the request."""


class Lane:
    """One place and its thread. `give` queues a request; `say` gets its reply."""

    def __init__(self, url: str, say: Say, *, private: bool = False) -> None:
        self.url, self._private = url, private
        self._say = say
        self._queue: SimpleQueue[Request | None] = SimpleQueue()
        self._remote: Remote | None = None
        self._refused = ""
        self._current: Request | None = None
        self._failing_s: float | None = None  # the time of the last piece
        self._allowed_s = time.monotonic()  # no progress is expected until then: the place is verifying
        self._noted_s = 0.0
        self._withdrawn: set[int] = set()
        self._wake = threading.Event()  # set to end a pause between two tries
        self._opened = threading.Event()
        threading.Thread(target=self._run, name=f"place {shown(url)}", daemon=True).start()

    def opened(self) -> OpenedPlace:
        """Wait until the place's library is imported; return the place's description."""
        self._opened.wait()
        atomic = self._remote is None or self._remote.place.atomic
        return OpenedPlace(shown(self.url), atomic, self._refused)

    def give(self, request: Request) -> None:
        self._queue.put(request)

    def cancel(self, request: int) -> None:
        self._withdrawn.add(request)
        self._wake.set()

    def stuck(self, patience_s: float) -> Request | None:
        """Return the request without progress for so long beyond its budget; None: there is none."""
        current = self._current
        if current is None or time.monotonic() - self._allowed_s < current.budget_s + patience_s:
            return None
        return current

    def _run(self) -> None:
        try:
            self._remote = Remote(open_place(self.url, private=self._private))
        except Exception as error:
            self._refused = told(error, self.url)
        self._opened.set()
        while (request := self._queue.get()) is not None:
            self._allowed_s, self._failing_s, self._current = time.monotonic(), None, request
            reply = self._reply(request)
            self._current = None
            self._withdrawn.discard(request.id)
            self._say(reply)

    def _reply(self, request: Request) -> Reply:
        if self._remote is None:
            return Reply(request.id, error="refused", text=self._refused)
        try:
            return Reply(request.id, ok=self._tried(request, self._remote))
        except Exception as error:
            return Reply(request.id, error=kind_of(error, request.op), text=told(error, self.url))

    def _tried(self, request: Request, remote: Remote) -> dict[str, Any]:
        again = tenacity.Retrying(
            retry=tenacity.retry_if_exception(lambda error: _is_worth_a_try(error, request.op)),
            wait=tenacity.wait_random_exponential(multiplier=FIRST_WAIT_S, max=LONGEST_WAIT_S),
            stop=lambda state: self._is_spent(request, state),
            before_sleep=lambda state: self._note_retry(request, state),
            sleep=self._pause,
            reraise=True,
        )
        return again(self._once, request, remote)

    def _once(self, request: Request, remote: Remote) -> dict[str, Any]:
        sent = 0

        def progress(size: int) -> None:
            nonlocal sent
            sent += size
            self._require_wanted(request)
            now_s = time.monotonic()
            self._failing_s, self._allowed_s = None, max(self._allowed_s, now_s) + size / SLOWEST
            if now_s - self._noted_s > NOTE_S:
                self._noted_s = now_s
                self._say(Reply(request.id, note="sent", bytes=sent))

        self._require_wanted(request)
        return OPS[request.op](remote, request.args, progress)

    def _require_wanted(self, request: Request) -> None:
        if request.id in self._withdrawn:
            raise Cancelled("the run has withdrawn it")

    def _is_spent(self, request: Request, state: tenacity.RetryCallState) -> bool:
        """Whether the next try would come too late; counted from the first error since a piece went through."""
        error = state.outcome.exception() if state.outcome else None
        if isinstance(error, NotKept):
            return state.attempt_number > MOST_SENT_AGAIN
        now_s = time.monotonic()
        since_s = self._failing_s = self._failing_s or now_s
        return now_s - since_s + state.upcoming_sleep > request.budget_s

    def _note_retry(self, request: Request, state: tenacity.RetryCallState) -> None:
        error = state.outcome.exception() if state.outcome else None
        self._allowed_s = max(self._allowed_s, time.monotonic())
        self._say(Reply(request.id, note="retrying", text=told(error or "", self.url)))

    def _pause(self, seconds: float) -> None:
        self._wake.wait(seconds)
        self._wake.clear()


def _is_worth_a_try(error: BaseException, op: str) -> bool:
    return isinstance(error, Silent) or (isinstance(error, NotKept) and op == "copy")


def kind_of(error: Exception, op: str) -> Kind:
    """Return the kind of an error, as the protocol names it."""
    table: list[tuple[type[Exception], Kind]] = [
        (Cancelled, "cancelled"),
        (Silent, "silent"),
        (Full, "full"),
        (NoSpace, "full"),
        (Later, "later"),
        (Taken, "taken"),
        (Foreign, "foreign"),
        (NotKept, "refused" if op == "copy" else "damaged"),  # a place that stores files wrongly
        (Damaged, "damaged"),
        (NotFound, "gone"),
        (FileNotFoundError, "gone"),
        (HoldfastError, "refused"),
    ]
    return next((kind for known, kind in table if isinstance(error, known)), "refused")


def _look(remote: Remote, args: dict[str, Any], progress: Progress) -> dict[str, Any]:
    del args, progress
    return _fields(remote.look())


def _claim(remote: Remote, args: dict[str, Any], progress: Progress) -> dict[str, Any]:
    del progress
    remote.claim(args["attempt"], args["run_json"], args["owner"], args.get("entered"))
    return {"atomic": remote.place.atomic}


def _begun(remote: Remote, args: dict[str, Any], progress: Progress) -> dict[str, Any]:
    del progress
    remote.begun(args["attempt"], msgspec.convert(args["from"], ResumeOrigin))
    return {}


def _copy(remote: Remote, args: dict[str, Any], progress: Progress) -> dict[str, Any]:
    read_back = bool(args.get("read_back"))
    return remote.copy(args["attempt"], Path(args["path"]), read_back=read_back, progress=progress)._asdict()


def _fetch(remote: Remote, args: dict[str, Any], progress: Progress) -> dict[str, Any]:
    began = time.monotonic()
    size = remote.fetch(args["attempt"], args["name"], Path(args["into"]), progress=progress)
    return {"size_bytes": size, "took_s": time.monotonic() - began}


def _file(remote: Remote, args: dict[str, Any], progress: Progress) -> dict[str, Any]:
    remote.fetch_file(args["attempt"], args["name"], args["file"], Path(args["into"]), progress=progress)
    return {}


def _pin(remote: Remote, args: dict[str, Any], progress: Progress) -> dict[str, Any]:
    del progress
    remote.pin(args["attempt"], args["name"])
    return {}


def _remove(remote: Remote, args: dict[str, Any], progress: Progress) -> dict[str, Any]:
    del progress
    remote.remove(args["attempt"], args["of"], args["name"])
    return {}


def _end(remote: Remote, args: dict[str, Any], progress: Progress) -> dict[str, Any]:
    del progress
    remote.end(args["attempt"])
    return {}


OPS: dict[str, Callable[[Remote, dict[str, Any], Progress], dict[str, Any]]] = {
    "look": _look,
    "claim": _claim,
    "begun": _begun,
    "copy": _copy,
    "fetch": _fetch,
    "file": _file,
    "pin": _pin,
    "remove": _remove,
    "end": _end,
}


def _fields(record: msgspec.Struct) -> dict[str, Any]:
    found: dict[str, Any] = msgspec.to_builtins(record)
    return found
