"""Mirrors: keeps account of the copies that the worker makes of a run's checkpoints.

The worker decides by itself what to copy and to remove. The run tells it of each commit, and when
to end; it protects what is to be copied from pruning, and writes the journal. The loop waits for
nothing: at its safe points it checks whether a later attempt has claimed a place. Only the end
waits, up to a limit.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from typing import NamedTuple

import msgspec

from ..errors import DiskError, StoreError, Superseded, UsageError
from ..retention import CheckpointFacts
from ..terminal import say, warn
from ..threads import Condition, Latch
from . import waiting
from .checkpoint_fetcher import CheckpointFetcher
from .copying import THERE
from .lineage import CheckpointCopy
from .mirror_place import NEVER, MirrorPlace
from .options import prefix_with_place
from .protocol import Event
from .records import PlaceState, ResumeOrigin

TOLD_S = 1.0  # a wait at the end of the run that takes longer is announced
MOST_NAMES = 3  # in one line
CANCEL_S = 1.0  # for a copy to end that the disk has no space for; then its process is killed
END_S = 2.0  # to note that the attempt has ended, after copies were cut
FACTS = ("size_bytes", "sent_bytes", "took_s", "how")  # of a copy, in the journal


class MissingCopy(NamedTuple):
    """A checkpoint, and a place where it is not."""

    checkpoint: str
    place: str


class Mirrors:
    """The mirrors of one attempt on rank 0, from its claim to its end."""

    def __init__(
        self, fetcher: CheckpointFetcher, places: Sequence[MirrorPlace], drain_s: float
    ) -> None:
        self.fetcher = fetcher
        self._store, self._client = fetcher.store, fetcher.client
        self._root, self._attempt = self._store.root, self._store.claim()
        self.places, self._limit_s = [*places], drain_s
        self._origin: ResumeOrigin | None = None  # None: the state is not restored yet
        self._superseded: Superseded | None = None
        self._gave_way = self._leaving = self._closed = False
        self._drain_until = 0.0  # Unix seconds
        self._drained = Latch()
        self._known: list[CheckpointFacts] = []
        self._store.set_copier(self)
        self._client.set_listener(self)

    # From the loop, and from the thread that saves
    # ---------------------------------------------------------------

    def start_copying(self, restored: str | None) -> None:
        """Start to copy checkpoints to the mirrors.

        `restored`: the run's own checkpoint that was restored; None: the run begins with another
        state.
        """
        present = self.fetcher.present
        origin = ResumeOrigin(None) if restored is None else ResumeOrigin(present.head, restored)
        present.note_resume(self._attempt.number, origin)
        there = {
            place.shown: sorted(present.copies_at(place.index)) if place.seen else []
            for place in self.places
        }
        self._attempt.record("mirrors", places=there, attempt=origin.attempt, name=origin.name)
        self._origin = origin
        for place in self.places:
            self._start_copying_to(place)

    def note_commit(self) -> None:
        """Tell the mirrors that a checkpoint was committed. Idle ones copy it next."""
        self._gave_way = False
        newest = _newest_name(self._local_checkpoints())
        for place in self.places:
            place.queue_if_idle(newest)
        self._client.send_order("committed")

    def raise_if_superseded(self) -> None:
        """Raise if a later attempt has claimed a mirror.

        Raises:
            Superseded: it has.
        """
        if self._superseded is not None:
            raise self._superseded

    def protected_names(self) -> Collection[str]:
        """Names of the checkpoints that are being copied,
        or are about to be; none while space is needed.
        """
        if self._gave_way or self._closed:
            return ()
        local = self._local_checkpoints()
        names = {
            name
            for place in self.places
            for name in [place.copying, *place.missing_checkpoints(local)]
        }
        return names - {""}

    def yield_space(self) -> None:
        """Protect no checkpoint from pruning until the next one is committed,
        because the space is needed.
        """
        names = sorted(self.protected_names())
        self._gave_way = True
        self._attempt.record("mirrors_gave_way", names=names)
        warn(
            f"{self._root}: the disk is full: {', '.join(names)} may be removed before being copied"
        )
        newest = _newest_name(self._local_checkpoints())
        self._client.send_order("yield", newest=newest)
        # an open file keeps its space
        if not Condition().wait_for(lambda: not self._is_copying_older(newest), CANCEL_S):
            self._client.end_worker()
            for place in self.places:
                place.note_worker_lost()

    @property
    def expected_drain_s(self) -> float:
        """How long the last copies will probably take at the end of the run."""
        expected = [
            place.took_s * (1 + bool(place.copying)) for place in self.places if not place.down
        ]
        return min(self._limit_s, max(expected, default=0.0))

    # The end
    # ----------------------------------------------------------------------------------------------

    def drain(self, until: float, *, wait: bool = True) -> None:
        """Wait for the last copies, at most as long as the run allows, and never beyond `until`
        (Unix seconds).

        Without `wait`, only note at the places that the attempt has ended. The attempt's closing
        line is written.

        Raises:
            Superseded: a later attempt has claimed a place.
        """
        if self._closed or self._leaving:
            return
        wait = wait and self._superseded is None
        limit_s = max(0.0, min(self._limit_s if wait else 0.0, until - time.time()))
        self._leaving, self._gave_way = True, False  # nothing more is saved
        self._drain_until = time.time() + limit_s
        self._client.restart_worker_soon()
        for place in self.places:
            # else once the new worker serves it
            if place.served or place.seen is None or self._origin is None:
                self._client.send_order("drain", place.index, until=self._drain_until)
        if not self._drained.wait(min(TOLD_S, limit_s)) and limit_s > TOLD_S:
            if self.missing_copies:
                say(
                    f"{self._root}: waits for the copies of "
                    f"{self.missing_copies[0].checkpoint}, at most {limit_s:.0f} s"
                )
            self._drained.wait(limit_s - TOLD_S)
        self._drained.wait(max(0.0, min(END_S, until - time.time())))
        for each in self.missing_copies:
            self._attempt.record("undrained", **each._asdict())
        self.raise_if_superseded()
        # the run is saved and closed; the places without the checkpoint are reported as well
        with suppress(DiskError):
            self._attempt.flush(sync=True)

    @property
    def missing_copies(self) -> list[MissingCopy]:
        """Return each mirror that lacks the newest checkpoint."""
        newest = None
        with suppress(OSError):  # the disk fails
            newest = next((each.path.name for each in self._store.index.newest_first()), None)
        return [
            MissingCopy(newest, each.shown)
            for each in self.places
            if newest is not None and newest not in each.there
        ]

    def report_missing_copies(self) -> None:
        """Print as the last line which mirrors lack the newest checkpoint."""
        if lacking := self.missing_copies:
            where = ", ".join(each.place for each in lacking)
            say(
                f"{self._root}: {lacking[0].checkpoint} is not at {where}; "
                "the next start copies it, from this disk"
            )

    def close(self) -> None:
        """End the copying."""
        self._closed = True
        self._client.close()

    # In the client's thread
    # --------------------------------------------------------------------------------------

    def handle_event(self, event: Event) -> None:
        """Update the mirror's record after an event of the worker."""
        place = self.places[event.place]
        place.note_progress()
        if place.left_alone and event.what != "drained":
            return
        match event.what:
            case "joined":
                place.note_claimed(msgspec.convert(event.facts, PlaceState))
                self._start_copying_to(place)
            case "copying":
                place.note_copying(event.name)
            case "copied":
                facts = next(
                    (each for each in self._local_checkpoints() if each.name == event.name), None
                )
                place.note_copied(event.name, facts, event.facts["took_s"])
                self._note_answering(place)
                facts_of = {fact: event.facts[fact] for fact in FACTS}
                self._attempt.record(
                    "mirrored", place=place.shown, checkpoint=event.name, **facts_of
                )
            case "removed":
                place.note_removed(event.name, whole=event.facts["whole"])
                what = "checkpoint" if event.facts["whole"] else "half"
                self._attempt.record("mirror_removed", place=place.shown, **{what: event.name})
            case "kept":
                if place.note_removal_refused():
                    self._report(
                        place, f"{event.name} is not removed there: {event.text}", event.name
                    )
            case "damaged":
                place.give_up_checkpoint(event.name)
                self._report(
                    place,
                    f"{event.name} is damaged here, and was not copied: {event.text}",
                    event.name,
                )
            case "failing":
                self._report_interrupted(place, event.text, event.name)
            case "back":
                self._note_answering(place)
            case "lost":
                self._handle_lost_place(place, event)
            case "drained":
                place.note_drained()
                self._check_drained()

    def on_worker_lost(self, why: str) -> None:
        """Note that the worker has ended."""
        local = self._local_checkpoints()
        for place in self.places:
            if place.copying or place.missing_checkpoints(local):
                self._report_interrupted(place, why, place.copying)
            place.note_worker_lost()

    def on_tick(self) -> None:
        """Print the messages whose time has come."""
        for place in self.places:
            if place.is_stalled:
                self._report_interrupted(
                    place, "nothing was heard from it for a minute", place.copying
                )
            if place.next_message_in_s <= 0:
                self._print_copying_state(place)
        self._check_drained()

    def _start_copying_to(self, place: MirrorPlace) -> None:
        """Let the worker copy to a mirror that it has claimed, once the run's state is restored."""
        if self._origin is None or place.seen is None or place.left_alone:
            return
        present = self.fetcher.present
        try:
            copies = present.add_place(place.index, place.seen)
        # the place has another lineage; the other places still get their copies
        except UsageError as error:
            self._abandon_place(place, str(error))
            return
        self._journal_unreported(place, copies)
        place.note_lineage_copies({name: each.facts for name, each in copies.items()})
        ours = [(each.attempt, name) for name, each in copies.items()]
        origin = {"attempt": self._origin.attempt, "name": self._origin.name}
        self._client.start_copying(
            place.index, [*ours, *present.incomplete_copies(place.index)], origin
        )
        if self._gave_way:
            self._client.send_order(
                "yield", place.index, newest=_newest_name(self._local_checkpoints())
            )
        if self._leaving:
            self._client.send_order("drain", place.index, until=self._drain_until)

    def _journal_unreported(self, place: MirrorPlace, copies: Mapping[str, CheckpointCopy]) -> None:
        """Journal the copies and removals that a worker made but did not report before it died."""
        for name, copy in copies.items():
            if copy.attempt == self._attempt.number and name not in place.there:
                facts = dict(zip(FACTS, (copy.facts.size_bytes, 0, 0.0, THERE), strict=True))
                self._attempt.record("mirrored", place=place.shown, checkpoint=name, **facts)
        for name in place.there.keys() - copies.keys():
            self._attempt.record("mirror_removed", place=place.shown, checkpoint=name)

    def _handle_lost_place(self, place: MirrorPlace, event: Event) -> None:
        """Handle a lost place. Only a later attempt's claim stops the training."""
        if event.kind != "foreign" and place.seen is not None:
            self._superseded = Superseded(
                f"{self._root}: attempt {self._attempt.number} was superseded: {event.text}"
            )
            # the other places need not know of that attempt yet
            self._client.send_order("drain", until=0.0)
        else:
            self._abandon_place(place, event.text)

    def _abandon_place(self, place: MirrorPlace, why: str) -> None:
        place.abandon()
        place.note_interrupted(why)
        # also if it was reported as down
        self._report(place, f"{why}; this attempt leaves it alone", place.copying)

    def _local_checkpoints(self) -> list[CheckpointFacts]:
        """The local checkpoints; those that were known before if the directory does not answer."""
        with suppress(OSError, StoreError):
            self._known = self._store.facts()
        return self._known

    def _check_drained(self) -> None:
        if self._leaving and all(
            place.drained or place.left_alone or place.seen is None for place in self.places
        ):
            for place in self.places:
                if place.next_message_in_s < NEVER:
                    self._print_copying_state(place)
            self._drained.set()

    def _report_interrupted(self, place: MirrorPlace, why: str, name: str) -> None:
        """Report, once for each outage, that copying is interrupted."""
        why = why.removeprefix(f"{place.shown}: ")
        if not place.left_alone and place.note_interrupted(why):
            self._record_failed(place, why, name)

    def _note_answering(self, place: MirrorPlace) -> None:
        if place.down:
            place.note_answering()
            self._attempt.record("mirror_back", place=place.shown)

    def _print_copying_state(self, place: MirrorPlace) -> None:
        """Print that copying is interrupted, or that it continues."""
        place.note_message_printed()
        if place.down:
            line = f"copying stands still: {place.down}; training goes on"
            warn(f"{self._root}: {prefix_with_place(place.shown, line)}")
            return
        lacking = place.missing_checkpoints(self._local_checkpoints())
        still = "lacks nothing" if not lacking else f"still lacks {', '.join(lacking[:MOST_NAMES])}"
        more = f" and {len(lacking) - MOST_NAMES} more" if len(lacking) > MOST_NAMES else ""
        say(f"{self._root}: {place.shown} answers again, and {still}{more}")

    def _record_failed(self, place: MirrorPlace, why: str, name: str) -> None:
        self._attempt.record("mirror_failed", place=place.shown, error=why, checkpoint=name or None)

    def _report(self, place: MirrorPlace, line: str, name: str) -> None:
        self._record_failed(place, line, name)
        warn(f"{self._root}: {prefix_with_place(place.shown, line)}")

    def _is_copying_older(self, newest: str) -> bool:
        """Whether an older checkpoint than the newest is being copied:
        it may have to be removed.
        """
        return any(place.copying not in ("", newest) for place in self.places)


def _newest_name(local: Sequence[CheckpointFacts]) -> str:
    return max(local, key=waiting.age_order).name if local else ""
