"""Safe point: the only place where a run saves and stops: between two steps, where the state is consistent."""

from __future__ import annotations

from contextlib import suppress

import msgspec

from .. import owner
from ..children import steps
from ..errors import DiskError, UsageError
from ..state.tree import flatten
from ..terminal import say
from . import drilled, imports, unproven, unsound
from .ranks import GOOD_BYE_S, exit_barrier
from .session import Session
from .tracked import RESERVED
from .windows import Order, Windows


def step_done(session: Session, *, final: bool = False) -> None:
    """Mark one pass of the body, or one group of passes, as complete."""
    session.require_alive()
    safe_point(session, "step", final=final)


def safe_point(session: Session, phase: str, *, epoch: int | None = None, final: bool = False) -> None:
    """Save if it is time, stop if requested. `epoch`: the one that just ended, at its end.

    Metrics logged before the step began appear in its line but not in its checkpoint: they belong to other weights.

    Raises:
        Stopped: the state is saved; the process must end and be run again.
    """
    progress, saves = session.progress, session.saves
    if session.mirrors is not None:
        session.mirrors.look()
    session.position.at_safe_point(phase)
    passed(session)
    order = _order(session)
    if saves.outcome_known if order is None else order.land:
        saves.land()
    metrics = session.metrics.flush(phase, epoch)
    progress.measure_step()
    progress.last_batch.pass_point(progress.last_point_s, behind=phase == "step" and progress.batches_left == 0)
    if phase == "end" and session.leads:
        session.metrics.best.warn_of_the_unmeasured(metrics)
    if session.drilled.digests:
        drilled.show(session, epoch)
        drilled.await_stop(session)
    session.job_clock.look(save_s=saves.save_s, step_s=progress.step_s, drain_s=session.drain_s)
    last = progress.last_batch
    wanted = session.drill_limit or last.stop
    if not wanted:  # the same on all ranks
        wanted = order.stop if order is not None else _stop_wanted(session)
        if wanted and last.stop_waits(session, wanted):
            wanted = None
    first = last.stop if last.saves_first and not progress.unproven_here else None
    reason = wanted or first or saves.reason(metrics, order, epoch, final=final)
    session.display.update(step=session.position.step, metrics=metrics)
    unsaved = bool(wanted) and wanted != session.drill_limit and unproven.stops_unsaved(session)
    if reason and not unsaved and saves.saved != session.here:
        session.alive.mark(steps.SAVE, session.position.step)
        saves.save(reason, metrics, epoch, at_once=drilled.is_at_once(session))
    if wanted:
        stop_now(session, wanted, unsaved=unsaved)
    drilled.await_kill(session)
    if session.windows is not None:
        _lead(session, session.windows)
    session.show()
    progress.restart_clock()
    session.alive.mark(steps.EPOCH if phase == "end" else steps.STEP, session.position.step)


def passed(session: Session) -> None:
    """Count a safe point of this attempt, and look early for mistakes that would cost hours later.

    The first safe point refuses a state or `run.vars` that cannot be saved. A name added to `run.vars` later is checked
    when it is new. If a value is replaced by one that cannot be saved, the next save refuses it. A warning names
    tracked values that the loop does not use.

    Raises:
        UsageError: a value cannot be saved; the message names its place.
    """
    number = session.progress.pass_point()
    try:
        new = session.vars.take_new()
        if number == 1:
            state, weights = session.tracked.weighed()
            if session.options.stop_on_nan and not weights:
                raise UsageError(unsound.NOTHING_KNOWN)
            held = {**state, RESERVED: {"vars": session.tracked.captured_variables()}}
            session.saves.prepare(flatten(held).leaves.values())
        elif new:
            flatten({RESERVED: {"vars": new}})
        for lost in session.forgotten.look(session, number):
            session.tell(lost.line, kind=lost.kind, name=lost.name)
    except UsageError as error:
        session.store.ranks.report("a save", error)  # the other ranks wait for this message
        raise
    if number == 1 and session.leads:
        session.record("first_step", process_s=round(owner.age_s(), 3))
        with suppress(DiskError):  # the line is kept, and written the next time
            session.attempt.show()
        imports.tell()
    if number == 3 or number & (number - 1) == 0:
        for lost in session.watch.lost():
            session.tell(lost.line, kind=lost.kind, name=lost.name)


def save_asked(session: Session) -> None:
    """Save at the next safe point inside a loop of the run, immediately elsewhere."""
    saves, progress = session.saves, session.progress
    if progress.walks.open:
        saves.ask()
        return
    session.require_alive()
    session.origin.set_baseline(None)
    if saves.saved != session.here or saves.flight is not None:
        saves.secure("asked", session.metrics.flush(session.position.phase))
    elif progress.steps_here == 0 and saves.count:
        raise UsageError(
            f"run.save() twice at step {session.position.step}: outside of a loop of this run nobody counts the "
            "steps; call run.safe_point() after each, and run.save() after it when that one is to be saved"
        )


def _stop_wanted(session: Session, ahead_s: float = 0.0) -> str | None:
    """Return why to stop, or None. `ahead_s`: seconds until the next opportunity to stop, besides one step."""
    saves = session.saves
    count = 1 if saves.flight is None else 2  # a stop waits for the save in flight, and then for its own
    after_s = session.progress.step_s + ahead_s + session.drain_s
    return session.stop.wanted(save_s=count * saves.save_s, step_s=after_s)


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
    """Report a signal received by this rank to rank 0; on rank 0, announce what all ranks do at the next edge."""
    stop, saves = session.stop, session.saves
    if session.ranks.rank and stop.reason is not None:
        windows.wish(stop.reason)
    if not windows.leading:
        return
    heard = None if stop.reason is not None else session.ranks.wished()
    if heard is not None:
        stop.hear(heard)
    land = saves.outcome_known
    save = saves.is_time() and (saves.flight is None or land)  # otherwise all ranks would wait for the slowest one
    windows.say(stop=_stop_wanted(session, windows.ahead_s) or "", save=save, land=land)


def stop_now(session: Session, reason: str, *, unsaved: bool = False) -> None:
    """Save the state unless it is saved, or not to be, write the journal's last line, and exit with 75.

    Raises:
        Stopped: always.
        StoreError: the save in flight, of this same step, failed.
    """
    session.alive.mark(steps.CLOSING, session.position.step)
    if unsaved:
        session.saves.land(last_chance=True)
        session.saves.waiting.tell()
    else:
        session.saves.secure(reason, {})
    what = f"not saved: the next start goes on from {session.saves.saved or 'the beginning'}" if unsaved else "saved"
    ranks, why = session.ranks, f"{reason} at step {session.position.step}; {what}"
    with exit_barrier(ranks, GOOD_BYE_S + 3 * session.progress.step_s):  # some ranks may be steps behind
        session.close("stop", reason=reason)
        stopped = session.stopped(why)
        session.job_clock.stopped(session.attempt)
        if not ranks.alone:
            session.stop.stay_deaf()  # a launcher signals all ranks to end when the first has exited
    session.display.close()
    say(f"{session.path}: stopped by {why}, run me again")
    if session.mirrors is not None:
        session.mirrors.say_undrained()
    raise stopped
