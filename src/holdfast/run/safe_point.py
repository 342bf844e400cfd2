"""Safe point: the only place where a run saves and stops:
between two steps, where the state is consistent.
"""

from __future__ import annotations

import msgspec

from ..children import steps
from ..errors import UsageError
from ..state.captured import looked_once
from .finish import save_and_stop
from .ranks import OrderWindows, RankOrder
from .session import Session


class SafePoints:
    """The safe points of one attempt."""

    def __init__(self, session: Session) -> None:
        self._session = session

    def step_done(self, *, final: bool = False) -> None:
        """Mark one pass of the body, or one group of passes, as complete."""
        self._session.lifetime.require_running()
        self.pass_by("step", final=final)

    @looked_once()
    def pass_by(self, phase: str, *, epoch: int | None = None, final: bool = False) -> None:
        """Save if it is time, stop if requested. `epoch`: the one that just ended, at its end.

        Metrics logged before the step began appear in its line but not in its checkpoint: they
        belong to other weights.

        Raises:
            Stopped: the state is saved; the process must end and be run again.
        """
        session = self._session
        progress, saves = session.progress, session.saves
        if session.mirrors is not None:
            session.mirrors.raise_if_superseded()
        self.count_step(phase)
        order = _order_here(session)
        if saves.has_outcome if order is None else order.land:
            saves.collect_outcome()
        metrics = session.metrics.flush(phase, epoch)
        progress.measure_step()
        last = session.last_batch
        last.note_safe_point()
        if phase == "end" and session.ranks.leads:
            saves.schedule.best.warn_of_unlogged_metrics(metrics)
        drill = session.drill
        if drill.wanted.digests:
            drill.journal_state(session.capture, epoch)
            drill.wait_for_stop_signal(session.stop, saves.collect_outcome)
        session.job_clock.update_job_end(
            save_s=saves.save_s, step_s=progress.step_s, drain_s=_expected_drain_s(session)
        )
        wanted = drill.step_limit_reason or last.stop
        if not wanted:  # the same on all ranks
            wanted = order.stop if order is not None else _reason_to_stop(session)
            if wanted and _should_delay_stop(session, wanted):
                wanted = None
        first = last.stop if last.saves_first and not progress.unproven_here else None
        reason = (
            wanted or first or saves.schedule.reason_to_save(metrics, order, epoch, final=final)
        )
        batch, batches = progress.batches
        session.display.update(
            step=session.position.step,
            batch=batch,
            batches=batches,
            saved_s=saves.durable_s or None,
            metrics=metrics,
        )
        unsaved = (
            bool(wanted) and wanted != drill.step_limit_reason and drill.current_target is None
        )
        unsaved = unsaved and session.waiting.should_stop_unsaved(saves.saved, saves.count)
        if reason and not unsaved and saves.saved != session.position.checkpoint_name:
            session.alive.mark_phase(steps.SAVE)
            saves.save(reason, metrics, epoch, at_once=drill.must_save_durably)
        if wanted:
            save_and_stop(session, wanted, unsaved=unsaved)
        drill.wait_for_kill(session.stop, saves.collect_outcome, lambda: saves.saved)
        if session.windows is not None:
            _announce_next_order(session, session.windows)
        session.reporter.flush_journal_regularly(saves.schedule.alive_interval_s)
        progress.restart_step_clock()
        session.alive.mark_phase(steps.EPOCH if phase == "end" else steps.STEP)

    def request_save(self) -> None:
        """Save at the next safe point inside a loop of the run, immediately elsewhere."""
        session = self._session
        saves, progress = session.saves, session.progress
        if progress.walks.open:
            saves.schedule.request_save()
            return
        session.lifetime.require_running()
        session.origin.set_baseline(None)
        if saves.saved != session.position.checkpoint_name or saves.flight is not None:
            saves.ensure_durable("asked", session.metrics.flush(session.position.phase))
        elif progress.steps_here == 0 and saves.count:
            raise UsageError(
                f"run.save() twice at step {session.position.step}: "
                "outside of a loop of this run nobody counts "
                "the steps; call run.safe_point() after each, "
                "and run.save() after it when that one is to be saved"
            )

    def count_step(self, phase: str = "step") -> None:
        """Count what was done up to here, without a save or a stop."""
        self._session.position.record_safe_point(phase)
        self._session.script_checks.check_safe_point()

    def note_loader_exhausted(self) -> None:
        """Note that no batch is left. Code that follows, such as an evaluation, is not timed as a
        step.
        """
        self._session.alive.mark_phase(steps.AFTER_BATCHES)


def _reason_to_stop(session: Session, ahead_s: float = 0.0) -> str | None:
    """Return why to stop, or None. `ahead_s`:
    seconds until the next opportunity to stop, besides one step.
    """
    saves = session.saves
    # a stop waits for the save in flight, and then for its own
    count = 1 if saves.flight is None else 2
    after_s = session.progress.step_s + ahead_s + _expected_drain_s(session)
    return session.stop.reason_to_stop(save_s=count * saves.save_s, step_s=after_s)


def _should_delay_stop(session: Session, reason: str) -> bool:
    """Whether the stop waits for the end of the epoch's body."""
    saves = session.saves
    save_s = saves.save_s * (1 if saves.flight is None else 2)
    until_s = session.job_clock.certainly_alive_until()
    return session.last_batch.should_delay_stop(
        reason, until_s, save_s=save_s, drain_s=_expected_drain_s(session)
    )


def _expected_drain_s(session: Session) -> float:
    """How long the mirrors' last copies will probably take after the last save."""
    return 0.0 if session.mirrors is None else session.mirrors.expected_drain_s


def _order_here(session: Session) -> RankOrder | None:
    """Return what all ranks must do at this safe point, as rank 0 announced; None with a
    single rank.
    """
    windows = session.windows
    if windows is None:
        return None
    order = windows.count_safe_point()
    if session.saves.saved_after(windows.said_at):  # rank 0 did not order that save
        return msgspec.structs.replace(order, save=False, land=False)
    return order


def _announce_next_order(session: Session, windows: OrderWindows) -> None:
    """Report a signal of this rank to rank 0; on rank 0, announce what all ranks do at the
    next window edge.
    """
    stop, saves = session.stop, session.saves
    if session.ranks.rank and stop.reason is not None:
        windows.report_signal(stop.reason)
    if not windows.leading:
        return
    heard = None if stop.reason is not None else session.ranks.pending_request()
    if heard is not None:
        stop.receive_from_rank(heard)
    land = saves.has_outcome
    # otherwise all ranks would wait for the slowest one
    save = saves.schedule.is_due_by_clock() and (saves.flight is None or land)
    windows.announce_order(
        stop=_reason_to_stop(session, windows.order_delay_s) or "", save=save, land=land
    )
