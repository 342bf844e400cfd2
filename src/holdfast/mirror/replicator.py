"""Replicator: the thread of one place in the worker. It copies checkpoints there, and removes
outdated copies.

It reads the run's directory and never changes it. It tells the run what it does, by these events:

    answer, failed      to a question
    joined              the place is claimed; `facts` is its content. The run then says which copies
                        are its own
    copying, copied     a checkpoint on its way, or none; a verified copy
    removed, kept       a copy was removed, or the place refuses that
    damaged             a checkpoint differs from what was committed, and is not copied
    failing, back       copying does not go on, and why; it goes on
    lost                this attempt does nothing more there: another one has claimed the place, or
                        another run has it
    sent                bytes go through, at most once a second
    drained             nothing is left to do after "drain"
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any

import msgspec

from ..errors import Damaged, HoldfastError, NoSpace, NotFound, StoreError, UsageError
from ..retention import CheckpointFacts
from ..rules import Rule
from ..store.attempt import is_checkpoint
from ..store.checkpoint_index import CheckpointIndex
from . import waiting
from .backends import open_place
from .lineage import CheckpointCopy
from .place import Full, NotKept, Refused, Silent, redact_error, redact_url
from .protocol import Event, Kind, WorkerOrder
from .records import NO_MANIFEST, Foreign, Later, PlaceState, ResumeOrigin, Taken
from .remote import RemoteRun
from .retrying import RetryingPlace

READ_BACK_EVERY = 20  # of so many copies one is read back, however the place verifies
# after each copy at most so many, so that neither copies nor removals ever wait for all of the
# others
REMOVALS = 2
BUDGET_S = 120.0  # without progress, before a step is given up, and decided anew
RETRY_S = 5.0  # after a failed step
NOTE_S = 1.0  # between two notes of progress
NEVER = float("inf")

Say = Callable[[Event], None]


class Cancelled(Exception):
    """The run does not need this call any more."""


class Replicator:
    """One place of a run. `accept_order` takes one from the run at any time."""

    def __init__(
        self,
        number: int,
        url: str,
        rule: Rule,
        index: CheckpointIndex,
        say: Say,
        *,
        private: bool = False,
    ) -> None:
        self.url, self._private, self._rule, self._index = url, private, rule, index
        self._number, self._tell = number, say
        self._orders: SimpleQueue[WorkerOrder] = SimpleQueue()
        self._wake = threading.Event()  # ends a pause between two tries
        self._until: float | None = None  # Unix seconds: the attempt ends, and copies until then
        self._only = ""  # while the run's disk is full, no other checkpoint is copied
        self._place: RetryingPlace | None = None
        self._remote: RemoteRun | None = None
        self._refused: Exception | None = None  # why the place cannot be used
        self._claim: dict[str, Any] = {}
        self._joined = False  # an earlier worker of this attempt has claimed the place
        self._claimed = self._begun = self._ending = self._over = False
        self._seen: PlaceState | None = None
        self._origin: ResumeOrigin | None = None  # None: the run's state is not restored yet
        # copies and incomplete copies of this run's lineage
        self._ours: set[tuple[int, str]] = set()
        self._there: dict[str, CheckpointCopy] = {}
        self._verified: set[str] = set()  # copies that this attempt has made
        self._damaged: set[str] = set()  # local checkpoints
        # files of copies that were not completed may lie there
        self._litter: set[tuple[int, str]] = set()
        self._pins: set[str] = set()
        self._local: list[CheckpointFacts] = []
        self._copying = ""
        # copies made; removals that may still come before the next one
        self._copies, self._removals = 0, 0
        # an earlier process may have told of an outage
        self._removes, self._blocked, self._failing = True, False, True
        self._due_s = NEVER  # when the next step is due, by the monotonic clock
        self._noted_s = 0.0

    def start(self) -> None:
        """Start the thread."""
        threading.Thread(
            target=self._run, name=f"place {redact_url(self.url)}", daemon=True
        ).start()

    def accept_order(self, order: WorkerOrder) -> None:
        """Queue an order. A copy that it makes unnecessary ends at its next piece."""
        if order.do == "committed":
            self._only = ""
        elif order.do == "yield":
            self._only = order.args["newest"]
        elif order.do == "drain":
            self._until, self._only = order.args["until"], ""
        self._orders.put(order)
        if order.do in ("yield", "drain"):
            self._wake.set()

    def is_stuck(self, patience_s: float) -> bool:
        """Whether the place's library hangs."""
        return self._place is not None and self._place.is_stuck(patience_s)

    # In the thread
    # ----------------------------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            place = open_place(self.url, private=self._private)
            self._place = RetryingPlace(
                place, self._report_failing, watch=self._check_transfer, pause=self._pause
            )
            self._remote = RemoteRun(self._place)
        except Exception as error:
            self._refused = error
        while True:
            pause_s = max(0.0, self._due_s - time.monotonic())
            try:
                order = self._orders.get(timeout=None if pause_s == NEVER else pause_s)
            except Empty:
                self._advance()
                continue
            if order.id:
                self._answer_question(order)
                continue
            try:
                self._handle_order(order)
            except Exception as error:
                self._handle_error(error)

    def _answer_question(self, order: WorkerOrder) -> None:
        if self._place is not None:
            self._place.budget_s = order.args.pop("budget_s", BUDGET_S)
        try:
            if order.do == "claim":
                self._store_claim(order.args)
                facts = self._claim_place()
            else:
                facts = ANSWERS[order.do](self._open_place, order.args)
            self._send_event("answer", id=order.id, facts=facts)
        except Exception as error:
            kind: Kind = "unusable" if error is self._refused else kind_of(error)
            self._send_event("failed", id=order.id, kind=kind, text=redact_error(error, self.url))
        if self._place is not None:
            self._place.budget_s = BUDGET_S

    def _handle_order(self, order: WorkerOrder) -> None:
        # what was refused is tried again
        self._due_s, self._blocked, self._removes = 0.0, False, True
        if order.do == "claim":
            self._store_claim(order.args)
        elif order.do == "ours":
            self._ours |= {(attempt, name) for attempt, name in order.args["copies"]}
        elif order.do == "begin" and self._seen is not None:
            self._start_copying(self._seen, msgspec.convert(order.args, ResumeOrigin))

    def _store_claim(self, args: dict[str, Any]) -> None:
        self._joined = self._number in args.pop("joined", ())
        self._claim = args

    def _start_copying(self, seen: PlaceState, origin: ResumeOrigin) -> None:
        mine = self._claim["attempt"]
        copies = [copy for copy in seen.copies if (copy.attempt, copy.name) in self._ours]
        halves = {(rest.attempt, rest.name) for rest in seen.rests if rest.why == NO_MANIFEST}
        self._there = {copy.name: CheckpointCopy(copy.attempt, copy.facts()) for copy in copies}
        # a manifest is written last
        self._verified = {copy.name for copy in copies if copy.attempt == mine}
        self._litter = {half for half in halves if half in self._ours or half[0] == mine}
        self._pins, self._origin = {*seen.pins}, origin

    def _advance(self) -> None:
        self._due_s = NEVER
        try:
            if self._do_next():
                self._due_s = 0.0
        except Cancelled:
            self._due_s = 0.0
        except Exception as error:
            self._handle_error(error)
        if self._copying:
            self._copying = ""
            self._send_event("copying")

    def _do_next(self) -> bool:
        """Do one thing at the place; return whether another one may be due."""
        leaving, ready = (
            self._until is not None,
            self._seen is not None and self._origin is not None,
        )
        if self._over or (leaving and (not ready or self._blocked or self._is_cancelled)):
            self._note_end()
            return False
        if self._claim and self._seen is None:
            self._send_event("joined", facts=self._claim_place())
        if self._origin is None:
            return False
        remote, mine = self._open_place, self._claim["attempt"]
        if not self._begun:
            remote.note_origin(mine, self._origin)
            self._begun = True
        self._list_local()
        unnoted = [
            facts.name for facts in self._local if facts.pinned and facts.name not in self._pins
        ]
        if unnoted:  # first: a new machine learns of pins only from here
            remote.pin(mine, unnoted[0])
            self._pins.add(unnoted[0])
            return True
        missing = self._missing_names()
        outdated = self._next_outdated(missing)
        missing = [name for name in missing if self._only in ("", name)]
        if outdated is not None and (self._removals > 0 or not missing):
            self._removals -= 1
            self._remove(*outdated)
        elif missing:
            self._copy(missing[0])
        elif leaving:
            self._note_end()
            return False
        else:
            self._report_recovered()
            return False
        return True

    @property
    def _open_place(self) -> RemoteRun:
        if self._remote is None:
            raise self._refused or UsageError(f"{redact_url(self.url)}: is not open")
        return self._remote

    def _claim_place(self) -> dict[str, Any]:
        """Claim the place, unless an earlier worker has; return its content."""
        if self._joined:  # else a place that was emptied, or is not mounted, would be claimed anew
            self._open_place.require_owned(self._claim["attempt"])
        else:
            self._open_place.claim(**self._claim)
        self._claimed = True
        self._seen = self._open_place.read_state()
        return _as_fields(self._seen) | {"atomic": self._open_place.place.atomic}

    def _list_local(self) -> None:
        """List the local checkpoints;
        those of the last time count if the directory does not answer.
        """
        try:
            self._local = self._index.facts()
        except (OSError, StoreError):
            return

    def _missing_names(self) -> list[str]:
        sound = [facts for facts in self._local if facts.name not in self._damaged]
        return waiting.checkpoints_to_copy(
            sound, [each.facts for each in self._there.values()], self._rule
        )

    def _next_outdated(self, missing: Sequence[str]) -> tuple[int, str] | None:
        """Return attempt and name of what is to be removed next."""
        if not self._removes:
            return None
        pinned = {facts.name for facts in self._local if facts.pinned} | self._pins
        there = [
            each.facts._replace(pinned=each.facts.name in pinned) for each in self._there.values()
        ]
        for name in waiting.copies_to_remove(there, self._rule, self._verified):
            return self._there[name].attempt, name
        mine = self._claim["attempt"]
        litter = (
            each for each in sorted(self._litter) if each[0] != mine or each[1] not in missing
        )
        return next(litter, None) if self._verified else None

    def _copy(self, name: str) -> None:
        mine, path = self._claim["attempt"], self._index.checkpoint(name).path
        read_back = self._copies % READ_BACK_EVERY == READ_BACK_EVERY - 1
        self._copying = name
        self._send_event("copying", name=name)
        self._litter.add((mine, name))  # until it is whole; then only its answer could be lost
        self._removals = REMOVALS
        try:
            done = self._open_place.copy(mine, path, read_back=read_back)
        except NotKept:
            raise
        except Damaged as error:
            self._damaged.add(name)
            self._send_event("damaged", name=name, text=redact_error(error, self.url))
        except NotFound:
            if is_checkpoint(path):
                raise
        else:
            self._report_copied(mine, name)
            self._send_event("copied", name=name, facts=done._asdict())
            self._report_recovered()

    def _report_copied(self, mine: int, name: str) -> None:
        facts = next(facts for facts in self._local if facts.name == name)
        self._there[name] = CheckpointCopy(mine, facts)
        self._verified.add(name)
        self._litter.discard((mine, name))
        self._copies += 1

    def _remove(self, of: int, name: str) -> None:
        try:
            self._open_place.remove(self._claim["attempt"], of, name)
        except Refused as error:  # copies go on
            self._removes = False
            self._send_event("kept", name=name, text=redact_error(error, self.url))
            return
        whole = name in self._there and self._there[name].attempt == of
        if whole:
            del self._there[name]
            self._verified.discard(name)
        self._litter.discard((of, name))
        self._send_event("removed", name=name, facts={"whole": whole})

    def _note_end(self) -> None:
        """Note that the attempt has ended there, unless it has lost the place."""
        if self._until is None:
            return
        self._ending = True
        if self._claimed and not self._over and self._place is not None:
            self._place.budget_s = max(0.0, self._until - time.time())
            try:
                self._open_place.note_end(self._claim["attempt"])
            except Exception as error:
                self._report_failing(error)
        self._over = True
        self._send_event("drained")

    def _handle_error(self, error: Exception) -> None:
        kind, text = kind_of(error), redact_error(error, self.url)
        if kind in ("later", "taken", "foreign"):
            self._over = True
            self._send_event("lost", kind=kind, text=text)
            self._note_end()
            return
        self._report_failing(error)
        if kind in ("silent", "gone"):
            self._due_s = time.monotonic() + self._limit_wait(RETRY_S)
        else:  # until the next order
            self._blocked = True
            self._due_s = NEVER if self._until is None else 0.0

    def _check_transfer(self, size: int) -> None:
        """Note that `size` bytes were transferred; end the call if the run does not need it
        any more.
        """
        needless = self._is_cancelled or (self._until is not None and not self._claimed)
        if self._only and self._copying not in ("", self._only):
            needless = True
        if needless and not self._ending:
            raise Cancelled
        if size and time.monotonic() - self._noted_s > NOTE_S:
            self._noted_s = time.monotonic()
            self._send_event("sent")

    @property
    def _is_cancelled(self) -> bool:
        return self._until is not None and time.time() >= self._until

    def _pause(self, seconds: float) -> None:
        self._wake.wait(self._limit_wait(seconds))
        self._wake.clear()

    def _limit_wait(self, seconds: float) -> float:
        """Return so many seconds, or fewer if the attempt ends before."""
        return seconds if self._until is None else max(0.0, min(seconds, self._until - time.time()))

    def _report_failing(self, error: BaseException) -> None:
        self._failing = True
        self._send_event("failing", text=redact_error(error, self.url), name=self._copying)

    def _report_recovered(self) -> None:
        if self._failing:
            self._failing = False
            self._send_event("back")

    def _send_event(self, what: str, **fields: Any) -> None:
        self._tell(Event(what, self._number, **fields))


_KINDS: list[tuple[type[Exception], Kind]] = [
    (Silent, "silent"),
    (Full, "full"),
    (NoSpace, "full"),
    (Later, "later"),
    (Taken, "taken"),
    (Foreign, "foreign"),
    (Damaged, "damaged"),
    (NotFound, "gone"),
    (FileNotFoundError, "gone"),
    (HoldfastError, "refused"),
]


def kind_of(error: Exception) -> Kind:
    """Return the kind of an error, as the protocol names it."""
    return next((kind for known, kind in _KINDS if isinstance(error, known)), "refused")


def _fetch(remote: RemoteRun, args: dict[str, Any]) -> dict[str, Any]:
    return {"size_bytes": remote.fetch(args["attempt"], args["name"], Path(args["into"]))}


def _fetch_file(remote: RemoteRun, args: dict[str, Any]) -> dict[str, Any]:
    remote.fetch_file(args["attempt"], args["name"], args["file"], Path(args["into"]))
    return {}


ANSWERS: dict[str, Callable[[RemoteRun, dict[str, Any]], dict[str, Any]]] = {
    "look": lambda remote, _: _as_fields(remote.read_state()),
    "fetch": _fetch,
    "file": _fetch_file,
}


def _as_fields(record: msgspec.Struct) -> dict[str, Any]:
    found: dict[str, Any] = msgspec.to_builtins(record)
    return found
