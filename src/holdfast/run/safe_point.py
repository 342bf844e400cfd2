"""Safe point: the only place where a run saves and stops:
between two steps, where the state is consistent.
"""

from __future__ import annotations

import msgspec

from ..children import steps
from ..errors import UsageError
from ..state.captured import looked_once
from .finish import stop_now
from .session import Session
from .windows import Order, Windows


def step_done(session: Session, *, final: bool = False) -> None:
    """Mark one pass of the body, or one group of passes, as complete."""
    session.lifetime.require()
    safe_point(session, "step", final=final)


@looked_once()
def safe_point(
    session: Session, phase: str, *, epoch: int | None = None, final: bool = False
) -> None:
    """Save if it is time, stop if requested. `epoch`: the one that just ended, at its end.

    Metrics logged before the step began appear in its line but not in its checkpoint: they belong
    to other weights.

    Raises:
        Stopped: the state is saved; the process must end and be run again.
    """
    progress, saves = session.progress, session.saves
    if session.mirrors is not None:
        session.mirrors.look()
    session.position.at_safe_point(phase)
    session.script_checks.pass_point()
    order = _order(session)
    if saves.outcome_known if order is None else order.land:
        saves.land()
    metrics = session.metrics.flush(phase, epoch)
    progress.measure_step()
    last = session.last_batch
    last.pass_point()
    if phase == "end" and session.ranks.leads:
        saves.best.warn_of_the_unmeasured(metrics)
    drill = session.drill
    if drill.wanted.digests:
        drill.show(session.capture, epoch)
        drill.await_stop(session.stop, saves.land)
    session.job_clock.look(save_s=saves.save_s, step_s=progress.step_s, drain_s=_drain_s(session))
    wanted = drill.limit or last.stop
    if not wanted:  # the same on all ranks
        wanted = order.stop if order is not None else _stop_wanted(session)
        if wanted and _stop_waits(session, wanted):
            wanted = None
    first = last.stop if last.saves_first and not progress.unproven_here else None
    reason = wanted or first or saves.reason(metrics, order, epoch, final=final)
    session.display.update(step=session.position.step, metrics=metrics)
    unsaved = bool(wanted) and wanted != drill.limit and drill.aim is None
    unsaved = unsaved and session.waiting.stops_unsaved(saves.saved, saves.count)
    if reason and not unsaved and saves.saved != session.position.here:
        session.alive.mark(steps.SAVE)
        saves.save(reason, metrics, epoch, at_once=drill.is_at_once)
    if wanted:
        stop_now(session, wanted, unsaved=unsaved)
    drill.await_kill(session.stop, saves.land, lambda: saves.saved)
    if session.windows is not None:
        _lead(session, session.windows)
    session.reporter.show(saves.note_s)
    progress.restart_clock()
    session.alive.mark(steps.EPOCH if phase == "end" else steps.STEP)


def save_asked(session: Session) -> None:
    """Save at the next safe point inside a loop of the run, immediately elsewhere."""
    saves, progress = session.saves, session.progress
    if progress.walks.open:
        saves.ask()
        return
    session.lifetime.require()
    session.origin.set_baseline(None)
    if saves.saved != session.position.here or saves.flight is not None:
        saves.secure("asked", session.metrics.flush(session.position.phase))
    elif progress.steps_here == 0 and saves.count:
        raise UsageError(
            f"run.save() twice at step {session.position.step}: "
            "outside of a loop of this run nobody counts "
            "the steps; call run.safe_point() after each, "
            "and run.save() after it when that one is to be saved"
        )


def _stop_wanted(session: Session, ahead_s: float = 0.0) -> str | None:
    """Return why to stop, or None. `ahead_s`:
    seconds until the next opportunity to stop, besides one step.
    """
    saves = session.saves
    # a stop waits for the save in flight, and then for its own
    count = 1 if saves.flight is None else 2
    after_s = session.progress.step_s + ahead_s + _drain_s(session)
    return session.stop.wanted(save_s=count * saves.save_s, step_s=after_s)


def _stop_waits(session: Session, reason: str) -> bool:
    """Whether the stop waits for the end of the epoch's body."""
    saves = session.saves
    save_s = saves.save_s * (1 if saves.flight is None else 2)
    until_s = session.job_clock.grace_until()
    return session.last_batch.stop_waits(reason, until_s, save_s=save_s, drain_s=_drain_s(session))


def _drain_s(session: Session) -> float:
    """How long the mirrors' last copies will probably take after the last save."""
    return 0.0 if session.mirrors is None else session.mirrors.drain_s


def _order(session: Session) -> Order | None:
    """Return what rank 0 orders all ranks to do at this safe point; None with a single rank."""
    windows = session.windows
    if windows is None:
        return None
    order = windows.arrive()
    if session.saves.saved_after(windows.said_at):  # rank 0 did not order that save
        return msgspec.structs.replace(order, save=False, land=False)
    return order


def _lead(session: Session, windows: Windows) -> None:
    """Report a signal received by this rank to rank 0;
    on rank 0, announce what all ranks do at the next edge.
    """
    stop, saves = session.stop, session.saves
    if session.ranks.rank and stop.reason is not None:
        windows.wish(stop.reason)
    if not windows.leading:
        return
    heard = None if stop.reason is not None else session.ranks.wished()
    if heard is not None:
        stop.hear(heard)
    land = saves.outcome_known
    # otherwise all ranks would wait for the slowest one
    save = saves.is_time() and (saves.flight is None or land)
    windows.say(stop=_stop_wanted(session, windows.ahead_s) or "", save=save, land=land)
