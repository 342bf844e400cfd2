"""Saver: one attempt's saves, from the capture of the state until the outcome is taken.

One save is in flight at a time. `save` stages the state while the loop waits, and commits it in the
background if allowed; `collect_outcome` takes it at a later safe point.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING

import msgspec

from .. import retention, settings
from ..errors import Damaged, DiskError, NotFound
from ..journal import Log
from ..ranks import Ranks
from ..state.codec import Block
from ..state.snapshot import Arena, Snapshot, common_pin, is_borrowed
from ..state.tree import flatten
from ..store import format, unsound
from ..store.checkpoint import Checkpoint
from ..store.shards import SaveAbandoned, StagedState
from ..store.store import ManifestFields, Store
from ..terminal import log_line, warn
from ..threads import Latch
from .capture import StateCapture
from .deferred_saves import LastBatchPolicy
from .drilled import DrillHooks
from .failures import SaveFailures
from .metrics import Measured
from .options import Options
from .position import RunProgress
from .ranks import OrderWindows, require_equal_replicas, require_same_step
from .report import Reporter
from .schedule import BACKGROUND, PERIODIC, SaveSchedule
from .stop import StopRequest
from .writer import BeforeEach, ReadBack, SaveWriter

if TYPE_CHECKING:
    from ..disk_space import DiskSpaceCheck

# surplus checkpoints that a stop leaves to the next save, so that it need not wait for a read-back
LEFT = 2
# of an earlier attempt; the first save is expected to take as long as the longest of them
LAST_SAVES = 100
WARM_BYTES = 64 << 20  # least size of a state whose snapshots are worth the preparation


class PendingSave(msgspec.Struct, frozen=True):
    """A save on its way to the disk, and the save before it."""

    name: format.CheckpointName
    reason: str
    facts: ManifestFields
    before: format.CheckpointName | None  # the newest save if this one fails
    began_s: float
    # the copy that is written; None: the state itself is written while the loop waits
    snapshot: Snapshot | None
    # a checkpoint that stays until the next save, in case no start can go on from this one
    refuge: format.CheckpointName | None

    def as_committed(self) -> retention.CheckpointFacts:
        """Facts that a new best must beat before the checkpoint is committed."""
        name, facts = self.name, self.facts
        return retention.CheckpointFacts(
            str(name),
            name.step,
            name.phase,
            facts.epoch,
            time.time(),
            facts.metrics,
            size_bytes=0,
            pinned=False,
        )


class Saver(msgspec.Struct):
    """The saves of one attempt: completed ones and the one in flight."""

    _options: Options
    _ranks: Ranks
    _store: Store
    _progress: RunProgress
    _reporter: Reporter
    _capture: StateCapture
    _stop: StopRequest
    _windows: OrderWindows | None
    _drill: DrillHooks
    _last_batch: LastBatchPolicy
    schedule: SaveSchedule
    readback: ReadBack
    failures: SaveFailures
    arena: Arena
    _committed: Callable[[], None]  # called on rank 0 after each save
    saved: format.CheckpointName | None = None  # the newest save, the one in flight included
    flight: PendingSave | None = None
    count: int = 0  # saves that this attempt has begun
    save_s: float = 0.0  # the longest save so far
    writer: SaveWriter = msgspec.field(default_factory=SaveWriter)
    _room: DiskSpaceCheck | None = None
    _epochs_end: format.CheckpointName | None = None  # the newest save at one
    durable_s: float = 0.0  # when the newest save was durable; 0.0: none was
    _point: int = 0  # the safe point of the last save, as counted by windows
    _cramped: bool = False  # a warning has reported that memory is too short for a snapshot
    _not_finite: bool = False  # the weights of the newest checkpoint are not finite, which was told

    def restore(self, checkpoint: Checkpoint, *, ours: bool) -> None:
        """Note that the run resumed from `checkpoint`; unless it is `ours`, the run has no
        checkpoint of its own yet.
        """
        self.saved = checkpoint.head.name if ours else None
        self._epochs_end = self.saved if checkpoint.head.name.phase == "end" else None
        self._not_finite = bool(checkpoint.head.not_finite)
        self.schedule.begin_interval(checkpoint.head.epoch)

    def use_past_measurements(self) -> None:
        """Use the durations that earlier attempts measured, until this one has measured its own."""
        logs = self._reporter.attempt.earlier
        self.save_s = _longest_save_s(logs)
        if self.schedule.pace is not None:
            self.schedule.pace.use_past_measurements(logs)

    @property
    def is_stopping(self) -> bool:
        return self._stop.reason is not None or self._drill.step_limit_reason is not None

    def request_another_save(self) -> None:
        """Save at the next safe point if this attempt has saved: its newest checkpoint lacks
        something.
        """
        if self.count:
            self.schedule.request_save()

    @property
    def has_outcome(self) -> bool:
        """Whether the pending save has ended, so that `collect_outcome` does not wait."""
        return self.flight is not None and self.writer.has_finished

    def saved_after(self, point: int) -> bool:
        """Whether the last save began after this safe point, as counted by windows."""
        return self._point > point

    # Memory
    # ----------------------------------------------------------------------------------------------

    def prepare_memory(self, blocks: Collection[Block]) -> None:
        """Prepare the memory of the first saves during the next steps:
        optimizers have their state by now.
        """
        if self._options.every is not None:
            self._touch_memory(blocks)
        if self._options.background:
            self.readback.start_reading(self.readback.over)

    def _touch_memory(self, blocks: Collection[Block]) -> None:
        """Touch the memory of later snapshots during the next steps: otherwise the first copy
        would stall the loop.
        """
        size = sum(block.data.nbytes for block in blocks if not is_borrowed(block))
        if self._options.background and size >= WARM_BYTES:
            with suppress(MemoryError):  # the first save will report it
                self.arena.warm_up(size, common_pin(blocks))

    def _stage_state(self, *, background: bool) -> StagedState:
        """Return the state ready to be written: for a save in the background a copy of it, if
        memory allows.

        While the memory for the copy is being touched, no copy is made: writing the state takes no
        longer than a copy into fresh memory. With a single process, a long copy is only laid out:
        the write begins first.
        """
        if background and self.arena.size_bytes == 0 and not self._cramped:
            self._touch_memory(flatten(self._capture.tracked.capture()).leaves.values())
        state, weights = self._capture.capture_state()
        if background and not self.arena.is_warming:
            try:
                staged = self._store.lay_out(state, self.arena, weights)
                if staged.snapshot is not None and not (
                    self._ranks.alone and staged.snapshot.is_long
                ):
                    staged.snapshot.copy()
                return staged
            except MemoryError as error:
                if not self._cramped:
                    warn(f"{error}: saves stall the loop until they are durable")
                self._cramped = True
        return self._store.stage(state, weights=weights)

    def release(self) -> None:
        self.arena.release()

    # Save
    # ----------------------------------------------------------------------------------------------

    def save(
        self, reason: str, metrics: Measured, epoch: int | None = None, *, at_once: bool = False
    ) -> None:
        """Commit the state, in the background where the reason allows it; not with `at_once`.

        If the disk is full or fails, a periodic save warns and the loop continues.

        Raises:
            DiskError: the disk is full or fails, and the save is not periodic: a stop, the end, or
                a request.
            StoreError: the error of the previous save, if that ran in the background.
        """
        began = time.monotonic()
        over = self.readback.pause_reading()
        hurried = self._stop.reason is not None and self._ranks.alone
        if hurried and self.flight is not None and self.flight.reason == "due":
            self.writer.abandon()  # a newer state will be durable sooner
        self.collect_outcome()
        if reason == "the end":
            self._store.read_anew()  # no later save would find damage since then
        self.schedule.clear_request()
        background = self._options.background and reason in BACKGROUND and not at_once
        if not self.count:
            require_equal_replicas(self._ranks, self._capture.tracked)
        try:
            staged = self._stage_state(background=background)
        except Exception as error:
            self._store.ranks.report("a save", error)  # the other ranks wait for this message
            raise
        flight = self._begin_save(
            reason, staged, self._capture.checkpoint_facts(metrics, epoch), began
        )
        self.schedule.begin_interval(epoch)
        commit = partial(self._write_and_commit, staged, flight, over)
        in_place = staged.snapshot is None
        # all ranks take the outcome when rank 0 announces it
        others_wait = background and not self._ranks.alone
        if (in_place and not others_wait) or not self._submit_to_thread(flight, commit):
            self._take_outcome(flight, partial(commit, lambda: None))
        elif in_place:
            self.writer.wait_until_released()

    def _begin_save(
        self, reason: str, staged: StagedState, facts: ManifestFields, began_s: float
    ) -> PendingSave:
        behind = self._last_batch.may_follow_last_batch()
        refuge = (
            self._epochs_end if self._progress.unproven_here else self.saved if behind else None
        )
        flight = PendingSave(
            self._progress.position.checkpoint_name,
            reason,
            facts,
            self.saved,
            began_s,
            staged.snapshot,
            refuge,
        )
        if flight.name.phase == "end":
            self._epochs_end = flight.name
        self.saved, self.flight = flight.name, flight
        self.schedule.waiting.note_save_begun()
        self.count += 1
        if self.schedule.pace is not None:
            self.schedule.pace.note_save_begun(began_s)
        self._point = 0 if self._windows is None else self._windows.point
        self.schedule.best.reload_later(flight.as_committed())
        return flight

    def _submit_to_thread(
        self, flight: PendingSave, commit: Callable[[BeforeEach], object]
    ) -> bool:
        """Copy the part of the state that the loop may change, and let a thread write it.

        Return False if the system cannot start another thread.
        """
        beside = True
        try:
            self.writer.submit(commit)
        except RuntimeError:
            beside = False
        try:
            if flight.snapshot is not None:
                # the writer follows the copy; if it is interrupted, that save fails
                flight.snapshot.copy()
        except BaseException:
            self.schedule.request_save()  # the next safe point saves what is missing
            raise
        return beside

    def ensure_durable(self, reason: str, metrics: Measured) -> None:
        """Return when the state of this safe point is durable, even if its save was pending,
        discarded or not begun.

        Raises:
            StoreError: it cannot be saved.
        """
        flight, here = self.flight, self._progress.position.checkpoint_name
        self.collect_outcome(last_chance=True)
        if self.saved == here:
            return
        if flight is not None and flight.name == here:
            self.save(reason, flight.facts.metrics, flight.facts.epoch, at_once=True)
        else:
            self.save(reason, metrics, at_once=True)

    def _write_and_commit(
        self, staged: StagedState, flight: PendingSave, over: Latch, before_each: BeforeEach
    ) -> Sequence[str]:
        """The part of a save that need not stall the loop. Return names of weights that are not
        finite.

        Afterwards, until `over`, read what the next save will link.
        """
        store = self._store
        with store.ranks.together("a save", known=(SaveAbandoned,)):
            # metrics before their checkpoint: no step may miss its line
            self._reporter.attempt.flush(sync=True)
        late_rank, late_s = store.ranks.late
        require_same_step(store.ranks, flight.name, flight.facts.epoch)
        store.protect(flight.refuge)
        checkpoint = store.commit(
            staged,
            step=flight.name.step,
            facts=flight.facts,
            before_each=before_each,
            # this rank's share is written: its loop need not wait for the others'
            before_last=self.writer.release_state,
            leave=lambda: LEFT if self.is_stopping else 0,
        )
        self.durable_s = time.monotonic()
        save_s = self.durable_s - flight.began_s
        self.save_s = max(self.save_s, save_s)
        if self._ranks.leads:
            facts = {} if self._ranks.alone else {"late_rank": late_rank, "late_s": late_s}
            self._journal_save(flight, checkpoint, {"save_s": save_s} | facts)
        found = store.not_finite
        if found and not self._not_finite and self._ranks.leads and not self._options.stop_on_nan:
            unsound.report_saved(store, self._reporter.warn, str(flight.name), found)
        self._not_finite = bool(found)
        if self._options.background and flight.reason in BACKGROUND and not self.is_stopping:
            self.readback.start_reading(over)
        return found

    def _journal_save(
        self, flight: PendingSave, checkpoint: Checkpoint, times: Mapping[str, float]
    ) -> None:
        """Journal a committed save."""
        attempt, snapshot, size_bytes = self._reporter.attempt, flight.snapshot, 0
        if flight.reason == "asked":
            log_line(f"{self._store.root}: saved {flight.name}, as asked")
        # a later attempt may have pruned it already
        with suppress(DiskError, NotFound), attempt.translate_errors("save"):
            size_bytes = checkpoint.size_bytes
        stall_s = times["save_s"] if snapshot is None else snapshot.copied_s - flight.began_s
        attempt.record(
            "saved",
            **flight.name._asdict(),
            checkpoint=str(flight.name),
            stall_s=round(stall_s, 6),
            **{name: round(value, 6) for name, value in times.items()},
            size_bytes=size_bytes,
            reason=flight.reason,
        )
        with suppress(DiskError):  # the line is kept, and written with the next one
            attempt.flush()
        self._committed()
        if not self.is_stopping and not settings.is_drilled():
            if self._room is None:
                from ..disk_space import (
                    DiskSpaceCheck,  # no run that dies before its first save needs it
                )

                self._room = DiskSpaceCheck(self._store, self._options.keep)
            self._room.check_space()

    # Land
    # ----------------------------------------------------------------------------------------------

    def collect_outcome(self, *, last_chance: bool = False) -> None:
        """Wait for the pending save, and handle its outcome.

        Raises:
            StoreError: the save failed; DiskError only if that save or this call was the last
                chance.
            NotFinite: it is committed, its weights are not finite, and the run has
                `stop_on_nan`.
        """
        flight = self.flight
        if flight is not None:
            if flight.snapshot is not None:
                flight.snapshot.abandon()
            self._take_outcome(flight, self.writer.wait, last_chance=last_chance)

    def _take_outcome(
        self,
        flight: PendingSave,
        outcome: Callable[[], Sequence[str] | None],
        *,
        last_chance: bool = False,
    ) -> None:
        """Handle the outcome of a save. If it failed, the newest save is the one before it."""
        found: Sequence[str] | None = None
        try:
            found = outcome()
            if found is None:  # Ctrl-C came before the save began
                self.saved = flight.before
            else:
                if self.schedule.pace is not None:
                    freed_s = (
                        self.durable_s if flight.snapshot is None else flight.snapshot.copied_s
                    )
                    self.schedule.pace.note_save_done(
                        flight.reason, flight.began_s, freed_s, self.durable_s
                    )
                self.failures.record_success(flight.name)
        except BaseException as error:
            if self.writer.in_flight:  # a second Ctrl-C ended only the waiting
                raise
            self.saved = flight.before
            spared = (
                isinstance(error, (DiskError, Damaged))
                and flight.reason in PERIODIC
                and not last_chance
            )
            if not spared and not isinstance(error, SaveAbandoned):
                raise
            # no report: a newer save replaced it
            if str(error) and self.failures.record_failure(
                flight.name, error, before=flight.before
            ):
                self.schedule.make_up(flight.reason)
        finally:
            if not self.writer.in_flight:
                self.flight = None
                self.schedule.best.reload_later(None)
        if found and self._options.stop_on_nan:
            raise unsound.not_finite_error(self._store, str(flight.name), found)


def _longest_save_s(logs: Sequence[Log]) -> float:
    """Seconds of the longest of the last saves, of the last attempt that saved; 0.0 if none did."""
    for log in reversed(logs):
        costs = [float(event.get("save_s", 0)) for event in islice(log.newest("saved"), LAST_SAVES)]
        if costs:
            return max(costs)
    return 0.0
