"""Saving: what happens at a safe point, the one place where a run saves and stops."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial

import msgspec

from .. import interval
from ..errors import NoSpace, Stopped
from ..interval import Mark
from ..rules import Every
from ..store import format
from ..store.checkpoint import Checkpoint
from ..store.shards import Abandoned, Staged
from ..store.store import Facts
from ..terminal import say, warn
from ..threads import Latch
from . import aimed, best, looks, watched
from .ranks import GOOD_BYE_S, parting, require_one_place
from .session import Flight, Session
from .windows import Order, Windows
from .writer import BeforeEach

LAST_CHANCE = ("asked", "the end")  # besides a stop: reasons for which a full disk is an error
BACKGROUND = ("asked", "new best", "due")  # reasons for which nobody waits
FLUSH_S = 1.0
LEFT = 2  # checkpoints that stops leave to the next save to prune: nobody waits for a read-back then


def step_done(session: Session, *, final: bool = False) -> None:
    """One pass of the body, or one group of them, is complete."""
    session.require_alive()
    session.position.step += 1
    safe_point(session, "step", final=final)


def safe_point(session: Session, phase: str, *, epoch: int | None = None, final: bool = False) -> None:
    """Save if it is time, stop if that was asked for. `epoch`: the one that has ended, at its end.

    Metrics that were logged before the step began are in its line, and not in its checkpoint: they belong to other weights.

    Raises:
        Stopped: the state is saved; the process is to end and to be run again.
    """
    session.position.phase = phase
    passed(session)
    order = _order(session)
    if order.land if order is not None else may_land(session):
        land(session)
    metrics = flush_metrics(session, phase, epoch)
    now = session.mark(epoch, at_end=phase == "end")
    session.step_s = max(session.step_s, now.seconds - session.last_point_s)
    if phase == "end" and session.ranks.rank == 0:
        best.warn_of_the_unmeasured(session, metrics)
    if session.drilled.digests:
        watched.show(session, epoch)
        aimed.await_stop(session, land)
    session.job_clock.look(save_s=session.save_s, step_s=session.step_s)
    wanted = drill_limit(session) or (order.stop if order is not None else stop_wanted(session))
    reason = wanted or _reason_to_save(session, now, metrics, order, final=final)
    session.progress.update(step=session.position.step, metrics=metrics)
    if reason and session.saved != session.here:
        last = bool(wanted) or reason in LAST_CHANCE
        save(session, reason, metrics, epoch, last_chance=last, at_once=aimed.is_at_once(session))
    if wanted:
        stop_now(session, wanted)
    aimed.await_kill(session, land)
    if session.windows is not None:
        _lead(session, session.windows)
    _show(session)
    session.last_point_s = time.monotonic()


def passed(session: Session) -> None:
    """One more step, or one more epoch, lies behind this attempt."""
    session.steps_here += 1
    looks.at_safe_point(session)


def may_land(session: Session) -> bool:
    """Whether the outcome of the save in flight is there."""
    return session.flight is not None and session.writer.done


def stop_wanted(session: Session, ahead_s: float = 0.0) -> str | None:
    """Why to stop, or None. `ahead_s`: how long the next chance to is away, besides a step."""
    saves = 1 if session.flight is None else 2  # a stop waits for the one in flight, and then for its own
    return session.stop.wanted(save_s=saves * session.save_s, step_s=session.step_s + ahead_s)


def _order(session: Session) -> Order | None:
    """What rank 0 wants of all ranks at this safe point; None when there are no others."""
    windows = session.windows
    if windows is None:
        return None
    order = windows.arrive()
    if session.saved_at > windows.said_at:  # it did not know of that save
        return msgspec.structs.replace(order, save=False, land=False)
    return order


def _lead(session: Session, windows: Windows) -> None:
    """Of several ranks: wish for what reached this one only, and on rank 0 say what all do at the next edge."""
    stop = session.stop
    if session.ranks.rank and stop.reason is not None and not session.wished:
        session.wished = True
        session.ranks.wish(stop.reason)
    if not windows.leading:
        return
    heard = None if stop.reason is not None else session.ranks.wished()
    if heard is not None:
        stop.hear(heard)
    land = session.flight is not None and session.writer.done
    save = _is_time(session) and (session.flight is None or land)  # else all would wait for the slowest rank
    windows.say(stop=stop_wanted(session, windows.ahead_s) or "", save=save, land=land)


def save(
    session: Session,
    reason: str,
    metrics: Mapping[str, float],
    epoch: int | None = None,
    *,
    last_chance: bool = True,
    at_once: bool = False,
) -> None:
    """Commit the state, in the background if that will do, and not `at_once`. A full disk lets the loop go on, loudly,
    unless this save is the last chance.

    Raises:
        NoSpace: it does not fit, and this is the last chance: a stop, the end, or the caller's wish.
        StoreError: what the save before this one ended with, if it was in the background.
    """
    began = time.monotonic()
    over = session.readback.give_way()
    hurried = session.stop.reason is not None and session.ranks.alone
    if hurried and session.flight is not None and session.flight.reason == "due":
        session.writer.abandon()  # what is newer will be durable sooner
    land(session)
    if reason == "the end":
        session.store.read_anew()  # nobody comes after it who would find what has rotted since
    session.asked = False
    background = session.options.background and reason in BACKGROUND and not at_once
    try:
        staged = session.stage(background=background)
    except Exception as error:
        session.store.ranks.report("a save", error)  # the others have come to it, or will
        raise
    at = session.position.epoch if epoch is None else epoch
    flight = Flight(
        session.here,
        reason,
        Facts(session.position.phase, at, metrics, session.options.note, session.document()),
        last_chance=last_chance,
        before=session.saved,
        began_s=began,
        stall_s=time.monotonic() - began,
        snapshot=staged.snapshot,
    )
    session.saved, session.ranked, session.flight = flight.name, None, flight
    session.saves_here += 1
    session.saved_at = 0 if session.windows is None else session.windows.point
    session.last_save = session.mark(epoch, at_end=session.position.phase == "end")
    commit = partial(_commit_and_read_on, session, staged, flight, over)
    in_place = staged.snapshot is None
    others_wait = background and not session.ranks.alone  # they take the outcome when rank 0 says so: then we do, too
    if (in_place and not others_wait) or not _took_off(session, flight, commit):
        _settle(session, flight, partial(commit, lambda: None), last_chance=last_chance)
    elif in_place:
        session.writer.rest()


def _took_off(session: Session, flight: Flight, commit: Callable[[BeforeEach], object]) -> bool:
    """Whether it runs beside the loop; else the system gives no more threads. What the loop is to copy is copied."""
    beside = True
    try:
        session.writer.submit(commit)
    except RuntimeError:
        beside = False
    try:
        if flight.snapshot is not None:
            flight.snapshot.copy()  # the writer has begun with what is there; cut short, it has begun in vain
    except BaseException:
        session.asked = True  # the next safe point has what is missing
        raise
    return beside


def secure(session: Session, reason: str, metrics: Mapping[str, float]) -> None:
    """Return when the state of this very safe point is durable, whether it was in flight, discarded or not begun.

    Raises:
        StoreError: it cannot be saved.
    """
    flight = session.flight
    land(session, last_chance=True)
    if session.saved == session.here:
        return
    if flight is not None and flight.name == session.here:
        save(session, reason, flight.facts.metrics, flight.facts.epoch, at_once=True)
    else:
        save(session, reason, metrics, at_once=True)


def _commit_and_read_on(
    session: Session, staged: Staged, flight: Flight, over: Latch, before_each: BeforeEach
) -> Checkpoint:
    """Commit, and let what the next save will link be read until that begins."""
    checkpoint = _commit(session, staged, flight, before_each)
    if session.options.background and flight.reason in BACKGROUND and not _is_stopping(session):
        session.readback.begin(over)
    return checkpoint


def _commit(session: Session, staged: Staged, flight: Flight, before_each: BeforeEach) -> Checkpoint:
    """The part of a save that need not stall the loop."""
    with session.store.ranks.together("a save", known=(Abandoned,)):
        session.attempt.flush(sync=True)  # metrics before their checkpoint: no step may miss its line
    require_one_place(session.store.ranks, flight.name, flight.facts.epoch)

    checkpoint = session.store.commit(
        staged,
        step=flight.name.step,
        facts=flight.facts,
        before_each=before_each,
        before_last=session.writer.let_go,  # this rank's share is written: its loop need not wait for the others'
        leave=lambda: LEFT if _is_stopping(session) else 0,
    )
    save_s = time.monotonic() - flight.began_s
    session.save_s = max(session.save_s, save_s)
    if session.ranks.rank:
        return checkpoint
    with session.attempt.acting("save"):  # a successor may have pruned it already
        size_bytes = checkpoint.size_bytes
    session.attempt.record(
        "saved",
        step=flight.name.step,
        phase=flight.name.phase,
        checkpoint=str(flight.name),
        stall_s=round(_stall_s(flight, staged, save_s), 6),
        save_s=round(save_s, 6),
        size_bytes=size_bytes,
        reason=flight.reason,
    )
    with suppress(NoSpace):  # it is committed; the line is kept, and written by the next
        session.attempt.flush()
    return checkpoint


def _stall_s(flight: Flight, staged: Staged, save_s: float) -> float:
    """How long the loop has waited for a save that took `save_s`."""
    if staged.snapshot is None:
        return save_s
    return flight.snapshot.copied_s - flight.began_s if flight.snapshot is not None else flight.stall_s


def _is_stopping(session: Session) -> bool:
    return session.stop.reason is not None or drill_limit(session) is not None


def land(session: Session, *, last_chance: bool = False) -> None:
    """Wait for the save in flight, and take its outcome.

    Raises:
        StoreError: it failed; NoSpace only when it was the last chance, or this is.
    """
    if session.flight is not None:
        if session.flight.snapshot is not None:
            session.flight.snapshot.give_up()
        _settle(session, session.flight, session.writer.wait, last_chance=last_chance or session.flight.last_chance)


def _settle(session: Session, flight: Flight, outcome: Callable[[], object], *, last_chance: bool) -> None:
    """Take the outcome of a save; what does not come is not saved."""
    try:
        if outcome() is None:  # Ctrl-C came before it was under way
            session.saved = flight.before
    except BaseException as error:
        if session.writer.in_flight:  # only the waiting has ended: a second Ctrl-C
            raise
        session.saved = flight.before
        spared = isinstance(error, NoSpace) and not last_chance
        if not spared and not isinstance(error, Abandoned):
            raise
        if str(error):  # else it has only given way to a newer one
            session.asked = session.asked or not spared  # the next safe point has what was missing
            if session.ranks.rank == 0:
                warn(f"step {flight.name.step} is not saved, and training goes on: {error}")
            session.attempt.record("save_failed", step=flight.name.step, error=str(error))
    finally:
        if not session.writer.in_flight:
            session.flight, session.ranked = None, None


def stop_now(session: Session, reason: str) -> None:
    """Write the journal's last line and leave with 75.

    Raises:
        Stopped: always.
        StoreError: the save in flight failed, which was of this very step.
    """
    secure(session, reason, {})
    position = session.position
    with parting(session.ranks, GOOD_BYE_S + 3 * session.step_s):  # some may be steps behind
        session.attempt.close("stop", reason=reason, step=position.step, phase=position.phase)
        session.over = Stopped(f"{reason} at step {position.step}; saved")
        session.job_clock.stopped(session.attempt)
        session.stop.deaf |= not session.ranks.alone  # a launcher tells all to end when the first has left
    session.progress.close()
    say(f"{session.path}: stopped by {reason} at step {position.step}; saved, run me again")
    raise session.over


def flush_metrics(session: Session, phase: str, epoch: int | None = None) -> dict[str, float]:
    """Turn what was logged since the last safe point into one line; the numbers measured on the present weights."""
    walks = session.walks
    known = walks.left_metrics if phase == "end" and walks.left_at == session.position.step else {}
    if not session.logged:
        return known
    at = session.position.epoch if epoch is None else epoch
    values = dict(session.logged)
    session.attempt.record("metrics", step=session.position.step, phase=phase, epoch=at, values=values)
    measured = {name: value for name, value in values.items() if name not in session.early}
    session.logged, session.early = {}, set()
    return known | format.unpack_metrics(measured)


def _reason_to_save(
    session: Session, now: Mark, metrics: Mapping[str, float], order: Order | None, *, final: bool
) -> str | None:
    if final:
        return "the end"
    if session.asked:
        return "asked"
    aim = aimed.aim_of(session)
    if aim is not None and aimed.wants_save(session, aim):
        return "due"
    if (aim is None or not aimed.is_past(session, aim)) and best.is_new(session, metrics):
        return "new best"
    every = _every(session)
    if order is not None and every is not None and every.minutes is not None:  # by the clock of rank 0
        return "due" if order.save else None
    mends = session.readback.found_damage and session.ranks.alone and every is not None
    return "due" if mends or interval.due(every, last=session.last_save, now=now) else None


def _every(session: Session) -> Every | None:
    forced, aim = session.drilled.save_every_steps, aimed.aim_of(session)
    if aim is not None and (forced is None or aimed.is_past(session, aim)):
        return None
    return session.options.every if forced is None else Every(steps=forced)


def _is_time(session: Session) -> bool:
    every, now = _every(session), session.mark(at_end=False)
    return every is not None and every.minutes is not None and interval.due(every, last=session.last_save, now=now)


def _show(session: Session) -> None:
    """Let readers of a running run see its journal, a little behind."""
    now_s = time.monotonic()
    if now_s - session.flushed_s > FLUSH_S:
        if now_s - session.noted_s > (now_s - session.began_s) / 100:  # what a kill costs is known to a hundredth
            session.attempt.record("at", step=session.position.step, phase=session.position.phase)
            session.noted_s = now_s
        with suppress(NoSpace):  # kept, and written by the next
            session.attempt.show()
        session.show_board()
        session.flushed_s = time.monotonic()


def drill_limit(session: Session) -> str | None:
    limit = session.drilled.steps
    return "drill limit" if limit is not None and session.position.step >= limit else None
