"""Mirrors: copies a run's checkpoints to its places, beside the loop.

A thread decides on the requests to each place, and a separate process performs them. The loop waits for neither: it
reports each save, and checks at its safe points whether a later attempt has claimed a place. Only the end waits, up to
a limit.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from functools import partial
from queue import Empty, SimpleQueue
from typing import Any, NamedTuple

import msgspec

from ..errors import DiskError, StoreError, Superseded, UsageError
from ..mirror import waiting
from ..mirror.protocol import Reply
from ..mirror.records import PlaceState, ResumeOrigin
from ..retention import CheckpointFacts
from ..store import attempt as attempts
from ..store import format
from ..terminal import say, warn
from ..threads import Condition, Latch, Worker
from .checkpoint_fetcher import CheckpointFetcher
from .mirror_options import named
from .mirror_place import NEVER, MirrorPlace, PlaceCopy, PlaceRequest

BUDGET_S = 120.0  # without progress, before a request is given up, reported, and repeated
TOLD_S = 1.0  # a wait at the end of the run that takes longer is announced
MOST_NAMES = 3  # in one line
CANCEL_S = 1.0  # for a cancelled copy to end; then its process is killed
END_S = 2.0  # to note that the attempt has ended, after copies were cancelled


class ClaimInfo(NamedTuple):
    """The facts with which an attempt claims each place."""

    attempt: int
    run_json: str
    owner: dict[str, object]
    entered: object


class Lacking(NamedTuple):
    """A checkpoint, and a place where it is not."""

    checkpoint: str
    place: str


class Mirrors:
    """The places of one attempt, on rank 0, from its claim to its end."""

    def __init__(
        self, fetcher: CheckpointFetcher, places: Sequence[MirrorPlace], claim: ClaimInfo, drain_s: float
    ) -> None:
        self.fetcher = fetcher
        self._store, self._client = fetcher.store, fetcher.client
        self._root, self._attempt = self._store.root, self._store.claim()
        self.places, self._claim, self._limit_s = [*places], claim, drain_s
        self._inbox: SimpleQueue[Callable[[], None]] = SimpleQueue()
        self._origin: ResumeOrigin | None = None  # None: the state is not restored yet
        self._superseded: Superseded | None = None
        self._gave_way = self._leaving = self._closed = self._over = False
        self._withdrawn: frozenset[int] = frozenset()  # requests of a worker that was killed on purpose
        self._drained = Latch()
        self._known: list[CheckpointFacts] = []
        self._thread = Worker(self._run, "holdfast mirrors")
        self._thread.start()
        self._store.spare(self)

    # From the loop, and from the thread that saves ---------------------------------------------------------------

    def begin(self, restored: str | None) -> None:
        """Begin to copy: the run's own checkpoint `restored` is restored; None: the run begins with another state."""
        present = self.fetcher.present
        origin = ResumeOrigin(None) if restored is None else ResumeOrigin(present.head, restored)
        there = {place.shown: sorted(place.there) for place in self.places}
        self._attempt.record("mirrors", places=there, attempt=origin.attempt, name=origin.name)

        def begun() -> None:
            self._origin = origin
            present.went_on(self._attempt.number, origin)

        self._inbox.put(begun)

    def committed(self) -> None:
        """Note that a checkpoint was committed."""
        self._gave_way = False
        self._inbox.put(self._ask_again)

    def look(self) -> None:
        """Raise what the thread has found.

        Raises:
            Superseded: a later attempt has claimed a place.
        """
        if self._superseded is not None:
            raise self._superseded

    def spared(self) -> Collection[str]:
        """Names of the checkpoints that are being copied, or are about to be; none while space is needed."""
        if self._gave_way or self._over:
            return ()
        local = self._store.facts()
        return {name for place in self.places for name in [*_running(place), *place.missing(local)]}

    def give_way(self) -> None:
        """Protect no checkpoint from pruning until the next one is committed, because the space is needed."""
        names = sorted(self.spared())
        self._gave_way = True
        self._attempt.record("mirrors_gave_way", names=names)
        warn(f"{self._root}: the disk is full: {', '.join(names)} may be removed before being copied")
        newest, cancelled = _newest(self._store.facts()), Latch()
        self._inbox.put(partial(self._cancel_older, newest, cancelled))
        cancelled.wait(CANCEL_S)
        if not Condition().wait_for(lambda: not self._copying_older(newest), CANCEL_S):  # an open file keeps its space
            self._withdrawn = frozenset(place.number for place in self.places if place.under_way is not None)
            self._client.end_worker()

    @property
    def drain_s(self) -> float:
        """How long the last copies will probably take at the end of the run."""
        expected = [place.took_s * (1 + bool(_running(place))) for place in self.places if not place.down]
        return min(self._limit_s, max(expected, default=0.0))

    # The end -----------------------------------------------------------------------------------------------------

    def drain(self, until: float, *, wait: bool = True) -> None:
        """Wait for the last copies, at most as long as the run allows, and never beyond `until` (Unix seconds).

        Without `wait`, only note at the places that the attempt has ended. The attempt's closing line is written.

        Raises:
            Superseded: a later attempt has claimed a place.
        """
        if self._closed or self._leaving:
            return
        limit_s = max(0.0, min(self._limit_s if wait else 0.0, until - time.time()))
        self._inbox.put(self._leave)
        if not self._drained.wait(min(TOLD_S, limit_s)) and limit_s > TOLD_S:
            if self.undrained:
                say(f"{self._root}: waits for the copies of {self.undrained[0].checkpoint}, at most {limit_s:.0f} s")
            self._drained.wait(limit_s - TOLD_S)
        if not self._drained.is_set():
            self._inbox.put(self._cut)
            self._drained.wait(max(0.0, min(END_S, until - time.time())))
        for each in self.undrained:
            self._attempt.record("undrained", **each._asdict())
        self.look()
        with suppress(DiskError):  # the run is saved and closed; the places without the checkpoint are reported as well
            self._attempt.flush(sync=True)

    @property
    def undrained(self) -> list[Lacking]:
        """The places that lack the newest checkpoint."""
        newest = None
        with suppress(OSError):  # the disk fails
            newest = next((each.path.name for each in self._store.index.newest_first()), None)
        return [Lacking(newest, each.shown) for each in self.places if newest is not None and newest not in each.there]

    def say_undrained(self) -> None:
        """Tell, as the last line, which places lack the newest checkpoint."""
        if lacking := self.undrained:
            where = ", ".join(each.place for each in lacking)
            say(f"{self._root}: {lacking[0].checkpoint} is not at {where}; the next start copies it, from this disk")

    def close(self) -> None:
        """End the copying."""
        self._closed = True
        self._inbox.put(lambda: None)
        self._client.close()
        self._thread.wait()

    # In the thread -----------------------------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            while not self._closed:
                self._advance()
                self._hear()
        except Exception as error:  # without this thread copying would stop silently
            warn(f"{self._root}: nothing is copied any more: {type(error).__name__}: {error}")
            self._attempt.record("mirror_failed", place="all", error=f"{type(error).__name__}: {error}")
        finally:
            self._over = True
            self._drained.set()

    def _hear(self) -> None:
        """Wait for the next event, and handle all events."""
        pause_s = min(min(place.pause_s, place.say_in_s) for place in self.places)
        with suppress(Empty):
            self._inbox.get(timeout=None if pause_s == NEVER else pause_s)()
            while True:
                self._inbox.get_nowait()()

    def _advance(self) -> None:
        local = self._local()
        for place in self.places if self._superseded is None else ():
            request = place.next(local, self._origin, leaving=self._leaving)
            if request is not None and request.op == "copy" and self._gave_way and request.name != _newest(local):
                continue  # it may be removed at any moment
            if request is not None:
                self._post(place, request)
            elif place.is_quiet:
                self._tell_down(place, "nothing was heard from it for a minute")
            elif place.down and place.pause_s == NEVER and place.holds_up and not place.missing(local):
                self._comes_back(place)
        drained = self._leaving and (self._superseded is not None or not any(place.holds_up for place in self.places))
        for place in self.places:
            if place.say_in_s <= 0 or (drained and place.say_in_s < NEVER):
                self._say_how(place, place.missing(local))
        if drained:
            self._drained.set()

    def _local(self) -> list[CheckpointFacts]:
        """The local checkpoints; those that were known before if the directory does not answer."""
        with suppress(OSError, StoreError):
            self._known = self._store.facts()
        return self._known

    def _post(self, place: MirrorPlace, request: PlaceRequest) -> None:
        args = {"attempt": self._claim.attempt, **request.args}
        if request.op == "claim":
            args |= {"run_json": self._claim.run_json, "owner": self._claim.owner, "entered": self._claim.entered}
        elif request.op == "copy":
            args["path"] = str(self._store.index.checkpoint(request.name).path)
        elif request.op == "remove":
            args.setdefault("of", self._claim.attempt)
        with suppress(StoreError):  # it is closed
            number = self._client.post(
                place.index,
                request.op,
                args,
                lambda reply: self._inbox.put(partial(self._answered, place, request, reply)),
                noted=lambda reply: self._inbox.put(partial(self._noted, place, reply)),
                budget_s=BUDGET_S,
            )
            place.asked(request, number)

    def _noted(self, place: MirrorPlace, reply: Reply) -> None:
        place.heard()
        if reply.note == "retrying":
            self._tell_down(place, reply.text)

    def _answered(self, place: MirrorPlace, request: PlaceRequest, reply: Reply) -> None:
        if reply.error is not None:
            self._failed(place, request, reply.error, reply.text)
            return
        found = reply.ok or {}
        if request.op == "look":
            try:
                seen = msgspec.convert(found, PlaceState)
                place.saw(self.fetcher.present.see(place.index, seen), seen.pins)
            except UsageError as error:  # the place has another lineage; the other places still get their copies
                self._failed(place, request, "foreign", str(error))
                return
        elif request.op == "copy":
            self._copied(place, request.name, found)
        elif request.op == "remove":
            what = "half" if request.is_half else "checkpoint"  # a whole copy of that name may lie in another folder
            self._attempt.record("mirror_removed", place=place.shown, **{what: request.name})
        place.done(request)

    def _copied(self, place: MirrorPlace, name: str, found: Mapping[str, Any]) -> None:
        facts = next((facts for facts in self._known if facts.name == name), None)
        if facts is None:  # it was pruned meanwhile, and its copy is whole
            step = format.parse_name(name) or format.Name(0)
            size_bytes = found["size_bytes"]  # whether it is finite is unknown, so that the last one that is stays
            facts = CheckpointFacts(
                name, step.step, step.phase, None, time.time(), {}, size_bytes, pinned=False, finite=False
            )
        place.copied(PlaceCopy(self._claim.attempt, facts), found["took_s"])
        if place.down:
            self._comes_back(place)
        kept = ("size_bytes", "sent_bytes", "took_s", "how")
        self._attempt.record("mirrored", place=place.shown, checkpoint=name, **{fact: found[fact] for fact in kept})

    def _failed(self, place: MirrorPlace, request: PlaceRequest, kind: str, text: str) -> None:
        """Handle a failed request. Only a later attempt's claim stops the training."""
        if kind in ("later", "taken") and place.claimed:
            place.dropped()
            self._superseded = Superseded(f"{self._root}: attempt {self._claim.attempt} was superseded: {text}")
        elif kind in ("later", "taken", "foreign"):
            place.leave_alone()
            place.goes_down(text)
            self._tell(place, f"{text}; this attempt leaves it alone", request.name)  # also if it was reported as down
        elif kind == "damaged" and request.op == "copy":
            place.give_up(request.name)
            self._tell(place, f"{request.name} is damaged here, and was not copied: {text}", request.name)
        elif self._is_void(place, request, kind):
            place.dropped()
        elif kind == "refused" and request.op == "remove":  # copies go on
            if place.keeps_all():
                self._tell(place, f"{request.name} is not removed there: {text}", request.name)
        else:
            place.failed(again=kind in ("silent", "gone"))
            self._tell_down(place, text)

    def _is_void(self, place: MirrorPlace, request: PlaceRequest, kind: str) -> bool:
        """Whether the run itself has withdrawn the request, or pruned what it was about."""
        path = self._store.index.checkpoint(request.name).path
        pruned = kind == "gone" and request.op == "copy" and not attempts.is_checkpoint(path)
        return kind == "cancelled" or pruned or (kind == "silent" and place.number in self._withdrawn)

    def _tell_down(self, place: MirrorPlace, why: str) -> None:
        """Report, once in an outage, that copying is interrupted."""
        why = why.removeprefix(f"{place.shown}: ")
        if place.goes_down(why):
            self._record_failed(place, why, place.under_way.name if place.under_way is not None else "")

    def _comes_back(self, place: MirrorPlace) -> None:
        place.comes_back()
        self._attempt.record("mirror_back", place=place.shown)

    def _say_how(self, place: MirrorPlace, lacking: Sequence[str]) -> None:
        """Print that copying is interrupted, or that it continues."""
        place.said()
        if place.down:
            line = f"copying stands still: {place.down}; training goes on"
            warn(f"{self._root}: {named(place.shown, line)}")
            return
        still = "lacks nothing" if not lacking else f"still lacks {', '.join(lacking[:MOST_NAMES])}"
        more = f" and {len(lacking) - MOST_NAMES} more" if len(lacking) > MOST_NAMES else ""
        say(f"{self._root}: {place.shown} answers again, and {still}{more}")

    def _record_failed(self, place: MirrorPlace, why: str, name: str) -> None:
        self._attempt.record("mirror_failed", place=place.shown, error=why, checkpoint=name or None)

    def _tell(self, place: MirrorPlace, line: str, name: str) -> None:
        self._record_failed(place, line, name)
        warn(f"{self._root}: {named(place.shown, line)}")

    def _ask_again(self) -> None:
        for place in self.places:
            place.saved()

    def _leave(self) -> None:
        self._leaving, self._gave_way = True, False  # nothing more is saved
        for place in self.places:
            place.leaves()

    def _cut(self) -> None:
        """End the running requests; only the attempt's end is still noted."""
        for place in self.places:
            place.hurry()
            if _running(place):
                self._client.cancel(place.number)

    def _copying_older(self, newest: str) -> list[MirrorPlace]:
        """Return the places to which an older checkpoint than the newest is being copied: it may have to be removed."""
        return [place for place in self.places if any(name != newest for name in _running(place))]

    def _cancel_older(self, newest: str, cancelled: Latch) -> None:
        for place in self._copying_older(newest):
            self._client.cancel(place.number)
        cancelled.set()


def _newest(local: Sequence[CheckpointFacts]) -> str:
    return max(local, key=waiting.age).name if local else ""


def _running(place: MirrorPlace) -> list[str]:
    """Return the checkpoint that is being copied there; None: there is none."""
    request = place.under_way
    return [request.name] if request is not None and request.op == "copy" else []
