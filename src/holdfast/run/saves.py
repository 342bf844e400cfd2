"""Saves: one attempt's saves, from the decision that one is due until its outcome is taken.

One save is in flight at a time. `save` stages the state while the loop waits, and commits it in the background if
allowed; `land` takes the outcome at a later safe point.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING

import msgspec

from .. import interval, retention
from ..errors import Damaged, DiskError, NotFound
from ..journal import Log
from ..rules import Auto, Every
from ..state.codec import Block
from ..state.snapshot import Arena, Snapshot, is_borrowed, pin_of
from ..state.tree import flatten
from ..store import format
from ..store.checkpoint import Checkpoint
from ..store.shards import Abandoned, Staged
from ..store.store import Facts
from ..terminal import warn
from ..threads import Latch
from . import unsound
from .ranks import require_one_place
from .readback import ReadBack
from .save_failures import SaveFailures
from .unproven import Waiting
from .windows import Order
from .writer import BeforeEach, SaveWriter

if TYPE_CHECKING:
    from .pace import Pace
    from .session import Session

PERIODIC = ("new best", "due")  # reasons for saves whose failure is no error
BACKGROUND = ("asked", *PERIODIC)  # reasons for which the loop does not wait
LEFT = 2  # surplus checkpoints that a stop leaves to the next save, so that it need not wait for a read-back
NOTE_S = 10.0  # a line of the journal, while nothing else is written to it
WARM_BYTES = 64 << 20  # least size of a state whose snapshots are worth the preparation

Measured = Mapping[str, float]


class Flight(msgspec.Struct, frozen=True):
    """A save on its way to the disk, and the save before it."""

    name: format.Name
    reason: str
    facts: Facts
    before: format.Name | None  # the newest save if this one fails
    began_s: float
    snapshot: Snapshot | None  # the copy that is written; None: the state itself is written while the loop waits
    refuge: format.Name | None  # a checkpoint that stays until the next save, in case no start can go on from this one

    def as_committed(self) -> retention.CheckpointFacts:
        """Facts that a new best must beat before the checkpoint is committed."""
        name, facts = self.name, self.facts
        return retention.CheckpointFacts(
            str(name), name.step, name.phase, facts.epoch, time.time(), facts.metrics, size_bytes=0, pinned=False
        )


class Saves:
    """The saves of one attempt: completed ones, the one in flight, and when the next one is due."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self.saved: format.Name | None = None  # the newest save, the one in flight included
        self.flight: Flight | None = None
        self._epochs_end: format.Name | None = None  # the newest save at one
        self.count = 0  # saves that this attempt has begun
        self.save_s = 0.0  # the longest save so far
        self.writer, self.arena = SaveWriter(), Arena()
        self.readback = ReadBack(session.store)
        self.pace = _pace(session)
        self.failures, self.waiting = SaveFailures(session.store, session.tell), Waiting(session)
        self._durable_s = 0.0  # when the save in flight was durable
        self._last = session.progress.mark()  # the moment of the last save
        self._point = 0  # the safe point of the last save, as counted by windows
        self._wanted: str | None = None  # why to save at the next safe point: run.save(), or to make up for a save
        self._cramped = False  # a warning has reported that memory is too short for a snapshot
        self._not_finite = False  # the weights of the newest checkpoint are not finite, which was told

    def restore(self, checkpoint: Checkpoint, *, ours: bool) -> None:
        """Resume from `checkpoint`; unless it is `ours`, the run has no checkpoint of its own yet."""
        self.saved = checkpoint.head.name if ours else None
        self._epochs_end = self.saved if checkpoint.head.name.phase == "end" else None
        self._not_finite = bool(checkpoint.head.not_finite)
        self._last = self._session.progress.mark(checkpoint.head.epoch)

    def expect(self, save_s: float) -> None:
        """Assume this duration of a save until one is measured."""
        self.save_s = save_s

    def recall(self, logs: Sequence[Log]) -> None:
        """Use what earlier attempts have measured, oldest first."""
        if self.pace is not None:
            self.pace.recall(logs)

    # When -------------------------------------------------------------------------------------------------------

    def ask(self) -> None:
        """Save at the next safe point."""
        self._wanted = "asked"

    def reason(self, metrics: Measured, order: Order | None, epoch: int | None, *, final: bool) -> str | None:
        """Return why to save at this safe point, or None. `order`: what rank 0 orders all ranks to do."""
        found = self._reason(metrics, order, epoch, final=final)
        session = self._session
        if session.aim is not None:
            return found
        if found in (None, *PERIODIC):
            now = session.progress.mark(epoch)
            found = self.waiting.decide(found, now, at_end=now.at_end)
            self._wanted = self._wanted and found  # a save that waits for an epoch's end is remembered there
        if found == "due" and session.progress.last_batch.save_waits(session):
            self._wanted, found = found, None
        return found

    def _reason(self, metrics: Measured, order: Order | None, epoch: int | None, *, final: bool) -> str | None:
        if final:
            return "the end"
        session = self._session
        problem = self.readback.take_damage()
        if problem is not None and self.failures.damaged(problem) and self._every() is not None:
            self._wanted = self._wanted or "due"
        if self._wanted is not None:
            return self._wanted
        if session.aim is not None and session.here in session.aim.saves:
            return "due"
        if not session.is_past_aim and session.metrics.best.is_new(metrics):
            return "new best"
        every = self._every()
        # by the clock of rank 0
        due = order.save if order is not None and _by_clock(every) else self._is_due(every, epoch)
        if due and self.failures.passes_over():
            self._last = session.progress.mark(epoch)
            return None
        return "due" if due else None

    def is_time(self) -> bool:
        """Whether a save is due by the clock."""
        every = self._every()
        return _by_clock(every) and self._is_due(every)

    @property
    def note_s(self) -> float:
        """How often to journal that the run is alive: by the last of these lines a kill is dated."""
        return math.inf if self.pace is None else NOTE_S

    def _is_due(self, every: Every | Auto | None, epoch: int | None = None) -> bool:
        now, last = self._session.progress.mark(epoch), self.waiting.since or self._last
        if isinstance(every, Auto):
            return self.pace is not None and self.pace.is_due(last.seconds, now.seconds)
        return interval.due(every, last=last, now=now)

    def _every(self) -> Every | Auto | None:
        session = self._session
        forced = session.drilled.save_every_steps
        if session.is_past_aim or (session.aim is not None and forced is None):
            return None
        return session.options.every if forced is None else Every(steps=forced)

    @property
    def outcome_known(self) -> bool:
        """Whether the save in flight has ended, so that its outcome can be taken."""
        return self.flight is not None and self.writer.done

    def saved_after(self, point: int) -> bool:
        """Whether the last save began after this safe point, as counted by windows."""
        return self._point > point

    # Memory -----------------------------------------------------------------------------------------------------

    def prepare(self, blocks: Collection[Block]) -> None:
        """Prepare the memory of the first saves during the next steps: optimizers have their state by now."""
        if self._session.options.every is not None:
            self._warm(blocks)
        if self._session.options.background:
            self.readback.begin(self.readback.over)

    def _warm(self, blocks: Collection[Block]) -> None:
        """Touch the memory of later snapshots during the next steps: otherwise the first copy would stall the loop."""
        size = sum(block.data.nbytes for block in blocks if not is_borrowed(block))
        if self._session.options.background and size >= WARM_BYTES:
            with suppress(MemoryError):  # the first save will report it
                self.arena.warm(size, pin_of(blocks))

    def _stage(self, *, background: bool) -> Staged:
        """Return the state ready to be written: for a save in the background a copy of it, if memory allows.

        While the memory for the copy is being touched, no copy is made: writing the state takes no longer than a copy
        into fresh memory. With a single process, a long copy is only laid out: the write begins first.
        """
        session = self._session
        if background and self.arena.size_bytes == 0 and not self._cramped:
            self._warm(flatten(session.tracked.capture()).leaves.values())
        state, weights = session.state()
        if background and not self.arena.warming:
            try:
                staged = session.store.lay_out(state, self.arena, weights)
                if staged.snapshot is not None and not (session.ranks.alone and staged.snapshot.is_long):
                    staged.snapshot.copy()
                return staged
            except MemoryError as error:
                if not self._cramped:
                    warn(f"{error}: saves stall the loop until they are durable")
                self._cramped = True
        return session.store.stage(state, weights=weights)

    def release(self) -> None:
        self.arena.release()

    # Save -------------------------------------------------------------------------------------------------------

    def save(self, reason: str, metrics: Measured, epoch: int | None = None, *, at_once: bool = False) -> None:
        """Commit the state, in the background where the reason allows it; not with `at_once`.

        If the disk is full or fails, a periodic save warns and the loop continues.

        Raises:
            DiskError: the disk is full or fails, and the save is not periodic: a stop, the end, or a request.
            StoreError: the error of the previous save, if that ran in the background.
        """
        session, began = self._session, time.monotonic()
        over = self.readback.give_way()
        hurried = session.stop.reason is not None and session.ranks.alone
        if hurried and self.flight is not None and self.flight.reason == "due":
            self.writer.abandon()  # a newer state will be durable sooner
        self.land()
        if reason == "the end":
            session.store.read_anew()  # no later save would find damage since then
        self._wanted = None
        background = session.options.background and reason in BACKGROUND and not at_once
        try:
            staged = self._stage(background=background)
        except Exception as error:
            session.store.ranks.report("a save", error)  # the other ranks wait for this message
            raise
        flight = self._begin(reason, staged, session.facts(metrics, epoch), began)
        self._last = session.progress.mark(epoch)
        commit = partial(self._commit, staged, flight, over)
        in_place = staged.snapshot is None
        others_wait = background and not session.ranks.alone  # all ranks take the outcome when rank 0 announces it
        if (in_place and not others_wait) or not self._submitted(flight, commit):
            self._take_outcome(flight, partial(commit, lambda: None))
        elif in_place:
            self.writer.rest()

    def _begin(self, reason: str, staged: Staged, facts: Facts, began_s: float) -> Flight:
        session = self._session
        behind = session.progress.last_batch.may_be_behind(session)
        refuge = self._epochs_end if session.progress.unproven_here else self.saved if behind else None
        flight = Flight(session.here, reason, facts, self.saved, began_s, staged.snapshot, refuge)
        if flight.name.phase == "end":
            self._epochs_end = flight.name
        self.saved, self.flight = flight.name, flight
        self.waiting.done()
        self.count += 1
        if self.pace is not None:
            self.pace.saving(began_s)
        self._point = 0 if session.windows is None else session.windows.point
        session.metrics.best.forget()
        return flight

    def _submitted(self, flight: Flight, commit: Callable[[BeforeEach], object]) -> bool:
        """Copy the loop's part.

        Return whether a thread runs the save; False: the system cannot start another thread.
        """
        beside = True
        try:
            self.writer.submit(commit)
        except RuntimeError:
            beside = False
        try:
            if flight.snapshot is not None:
                flight.snapshot.copy()  # the writer follows the copy; if it is interrupted, that save fails
        except BaseException:
            self._wanted = "asked"  # the next safe point saves what is missing
            raise
        return beside

    def secure(self, reason: str, metrics: Measured) -> None:
        """Return when the state of this safe point is durable, even if it was in flight, discarded or not begun.

        Raises:
            StoreError: it cannot be saved.
        """
        flight, here = self.flight, self._session.here
        self.land(last_chance=True)
        if self.saved == here:
            return
        if flight is not None and flight.name == here:
            self.save(reason, flight.facts.metrics, flight.facts.epoch, at_once=True)
        else:
            self.save(reason, metrics, at_once=True)

    def _commit(self, staged: Staged, flight: Flight, over: Latch, before_each: BeforeEach) -> Sequence[str]:
        """The part of a save that need not stall the loop. Return names of weights that are not finite.

        Afterwards, until `over`, read what the next save will link.
        """
        session = self._session
        with session.store.ranks.together("a save", known=(Abandoned,)):
            session.attempt.flush(sync=True)  # metrics before their checkpoint: no step may miss its line
        require_one_place(session.store.ranks, flight.name, flight.facts.epoch)
        session.store.protect(flight.refuge)
        checkpoint = session.store.commit(
            staged,
            step=flight.name.step,
            facts=flight.facts,
            before_each=before_each,
            before_last=self.writer.let_go,  # this rank's share is written: its loop need not wait for the others'
            leave=lambda: LEFT if session.is_stopping else 0,
        )
        self._durable_s = time.monotonic()
        save_s = self._durable_s - flight.began_s
        self.save_s = max(self.save_s, save_s)
        if session.leads:
            self._journal(flight, checkpoint, save_s)
        found = session.store.not_finite
        if found and not self._not_finite and session.leads and not session.options.stop_on_nan:
            unsound.tell_saved(session.store, session.tell, str(flight.name), found)
        self._not_finite = bool(found)
        if session.options.background and flight.reason in BACKGROUND and not session.is_stopping:
            self.readback.begin(over)
        return found

    def _journal(self, flight: Flight, checkpoint: Checkpoint, save_s: float) -> None:
        """Journal a committed save."""
        attempt, snapshot, size_bytes = self._session.attempt, flight.snapshot, 0
        with suppress(DiskError, NotFound), attempt.acting("save"):  # a later attempt may have pruned it already
            size_bytes = checkpoint.size_bytes
        stall_s = save_s if snapshot is None else snapshot.copied_s - flight.began_s
        attempt.record(
            "saved",
            **flight.name._asdict(),
            checkpoint=str(flight.name),
            stall_s=round(stall_s, 6),
            save_s=round(save_s, 6),
            size_bytes=size_bytes,
            reason=flight.reason,
        )
        with suppress(DiskError):  # the line is kept, and written with the next one
            attempt.flush()
        if self._session.mirrors is not None:
            self._session.mirrors.committed()
        self._session.look_for_room()

    # Land -------------------------------------------------------------------------------------------------------

    def land(self, *, last_chance: bool = False) -> None:
        """Wait for the save in flight, and take its outcome.

        Raises:
            StoreError: the save failed; DiskError only if that save or this call was the last chance.
            NotFinite: it is committed, its weights are not finite, and the run has `stop_on_nan`.
        """
        flight = self.flight
        if flight is not None:
            if flight.snapshot is not None:
                flight.snapshot.give_up()
            self._take_outcome(flight, self.writer.wait, last_chance=last_chance)

    def _take_outcome(
        self, flight: Flight, outcome: Callable[[], Sequence[str] | None], *, last_chance: bool = False
    ) -> None:
        """Take the outcome of a save. If it failed, the newest save is the one before it."""
        found: Sequence[str] | None = None
        try:
            found = outcome()
            if found is None:  # Ctrl-C came before the save began
                self.saved = flight.before
            else:
                if self.pace is not None:
                    self.pace.landed(flight, self._durable_s)
                self.failures.saved(flight.name)
        except BaseException as error:
            if self.writer.in_flight:  # a second Ctrl-C ended only the waiting
                raise
            self.saved = flight.before
            spared = isinstance(error, (DiskError, Damaged)) and flight.reason in PERIODIC and not last_chance
            if not spared and not isinstance(error, Abandoned):
                raise
            # no report: a newer save replaced it
            if str(error) and self.failures.failed(flight.name, error, before=flight.before):
                self._wanted = self._wanted or flight.reason
        finally:
            if not self.writer.in_flight:
                self.flight = None
                self._session.metrics.best.forget()
        if found and self._session.options.stop_on_nan:
            raise unsound.stopped(self._session.store, str(flight.name), found)


def _pace(session: Session) -> Pace | None:
    """Return the object that decides when to save with `Auto()`; on rank 0 only."""
    rule = session.options.every
    if not isinstance(rule, Auto) or not session.leads:
        return None
    from .pace import Pace  # only such runs need it

    return Pace(session, rule)


def _by_clock(every: Every | Auto | None) -> bool:
    return isinstance(every, Auto) or (every is not None and every.minutes is not None)
