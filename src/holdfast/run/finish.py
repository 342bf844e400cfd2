"""Finish: the end of an attempt, whatever ended it:
its loop, a stop, an error, or a reason not to begin.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, NamedTuple, NoReturn

from .. import journal
from ..children import steps
from ..errors import DiskError, NotFinite, StoreError, Superseded
from ..journal import Log
from ..legible import counted, duration
from ..store.attempt import Attempt
from ..store.format import Name
from ..terminal import say, warn
from . import failures, last_batch, origin
from .position import Position
from .ranks import GOOD_BYE_S, exit_barrier, root_cause
from .session import Session


def count_left_pass(session: Session) -> None:
    """Count the pass whose body was left, if there is one, as a step with its own line in the
    metrics.

    It is counted only when the script continues, because the loop may have been left by an
    exception.
    """
    logged = session.walks.take_left_pass()
    if logged is not None:
        session.position.at_safe_point("step")
        session.script_checks.pass_point()
        session.metrics.flush_left(logged)


def end_outer(session: Session) -> dict[str, float]:
    """Note that the outermost loop was left early, if so. Return the metrics of that end."""
    count_left_pass(session)
    outer, logged = session.walks.take_outer()
    if outer is None:
        return {}
    session.position.leave_loop(*outer)
    with session.metrics.instead(logged):
        return session.metrics.flush("end")


def finish(session: Session) -> None:
    """Finish after the block or loop: save a state that is not saved yet, and stop if requested."""
    progress, position, saves, ranks = (
        session.progress,
        session.position,
        session.saves,
        session.ranks,
    )
    session.lifetime.require()
    session.alive.mark(steps.CLOSING)
    progress.walks.close_inside()
    metrics = end_outer(session)
    session.metrics.flush("exit")
    saves.land()
    if position.here.order > (saves.saved or Name(0)).order:
        saves.save("the end", metrics)
    reason = ranks.announce("the end", (session.stop.reason or ranks.wished() or "").encode())
    if reason:
        stop_now(session, reason.decode())
    origin.note_end(session.attempt, session.tracked, progress, session.origin.checkpoint)
    ranks.report("the end of the block")  # another rank may still fail in its block, or be slow
    with exit_barrier(ranks):
        close(session, "end")
    if ranks.leads and (
        progress.steps_here or finished_s(session.attempt.earlier, position) is None
    ):
        session.display.close()
        say(f"{session.path}: {at_the_end(session.attempt, position)}")
    if session.mirrors is not None:
        session.mirrors.say_undrained()


def stop_now(session: Session, reason: str, *, unsaved: bool = False) -> NoReturn:
    """Save the state unless it is saved, or not to be, and stop.

    Raises:
        Stopped: always.
        StoreError: the save in flight, of this same step, failed.
    """
    position, saves = session.position, session.saves
    session.alive.mark(steps.CLOSING)
    if unsaved:
        saves.land(last_chance=True)
        session.waiting.tell()
    else:
        saves.secure(reason, {})
    what = (
        f"not saved: the next start goes on from {saves.saved or 'the beginning'}"
        if unsaved
        else "saved"
    )
    why = f"{reason} at step {position.step}; {what}"
    line = f"{session.path}: stopped by {why}, run me again"
    # some ranks may be steps behind
    stop(
        session,
        reason,
        why,
        line,
        position.here,
        patience_s=GOOD_BYE_S + 3 * session.progress.step_s,
    )


def stop(
    session: Session,
    reason: str,
    why: str,
    line: str,
    at: Name = Name(0),  # noqa: B008  a frozen value
    *,
    patience_s: float = GOOD_BYE_S,
    requeues: bool = True,
) -> NoReturn:
    """Write the journal's last line, for the position `at`, and exit with 75. Print `line`.

    `requeues`: the job may be requeued.

    Raises:
        Stopped: always, with the text `why`.
    """
    ranks = session.ranks
    with exit_barrier(ranks, patience_s):
        close(session, "stop", reason=reason, **at._asdict())
        stopped = session.lifetime.stop(why)
        if requeues:
            session.job_clock.stopped(session.attempt)
        if not ranks.alone:
            # a launcher signals all ranks to end when the first has exited
            session.stop.stay_deaf()
    session.display.close()
    say(line)
    if session.mirrors is not None:
        session.mirrors.say_undrained()
    raise stopped


def close(session: Session, event: str, /, **facts: Any) -> None:
    """Write the attempt's last line. The attempt then counts as ended at the present position.

    Then wait for the mirrors, within their limits: a process that is killed meanwhile has ended in
    order.
    """
    try:
        session.attempt.close(event, **session.position.here._asdict() | facts)
    except DiskError as error:
        if event != "stop":
            raise
        warn(
            f"{error}. The state is saved, only the journal's "
            "last line is missing: run me again all the same"
        )
    if session.mirrors is not None:
        session.mirrors.drain(session.job_clock.gone_by())


def leave(session: Session, error: BaseException | None) -> None:
    """End the attempt's activity: release signals, terminal, loops and memory. Never hides `error`.

    An error that is not a stop is the journal's last line.
    """
    try:
        if error is not None and session.lifetime.over is not None:
            _land_quietly(session)
        elif error is not None:
            session.ranks.report_error(error)
            _land_quietly(session)
            session.ranks.leave(
                f"has left with {failures.describe(error)}, at {session.position.place()}"
            )
            if not isinstance(error, Superseded):
                say_failed(session, error)
                _drain_quietly(session, wait=isinstance(error, Exception))
    finally:
        session.lifetime.leave()
        with suppress(Exception):  # a loader may raise while its loop is closed
            session.walks.close_inside()
        session.around.close()
        session.display.close()
        session.saves.release()
        session.attempt.leave()


def say_failed(session: Session, error: BaseException) -> None:
    """Write the journal's last line: the attempt failed with `error`."""
    checkpoint, position, saved = session.origin.checkpoint, session.position, session.saves.saved
    before: dict[str, Any] = {}
    if session.last_batch.has_failed(error):
        before = {"behind": True, "next": ""}
        with suppress(StoreError, OSError):  # a second error must not hide the first
            before["next"] = session.last_batch.next_start(error, checkpoint, session.store)
    if isinstance(error, DiskError) and saved is not None:  # the journal may have no room for that
        error.add_note(what_is_saved(position.step, saved))
    # when another rank is lost, the framework's collective fails with a RuntimeError
    may_be_anothers = not session.ranks.alone and isinstance(error, RuntimeError)
    with suppress(StoreError):  # a second error must not hide the first
        session.attempt.close(
            "failed",
            step=position.step,
            kind=type(error).__name__,
            place=_place(error),
            error=root_cause(session.ranks, error, failures.describe(error)),
            script=failures.script(),
            checkpoint=checkpoint.path.name if checkpoint else None,
            counts=session.progress.steps_here == 0
            and failures.counts(error)
            and not may_be_anothers,
            **before,
        )
    if before:
        warn(last_batch.after_a_failure_behind(session.store, before["next"], type(error).__name__))


def _place(error: BaseException) -> str:
    """Return the line that raised: "train.py:17"."""
    trace = error.__traceback__  # by hand: at a limit of open files nothing can be imported
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    return f"{trace.tb_frame.f_code.co_filename}:{trace.tb_lineno}" if trace is not None else ""


def _land_quietly(session: Session) -> None:
    """Wait for the save in flight: it is valid, however the block ended."""
    try:
        session.saves.land(last_chance=True)
    except NotFinite:
        return  # it is saved, and was told
    except Exception as error:
        warn(f"the save in flight failed: {error}")


def _drain_quietly(session: Session, *, wait: bool) -> None:
    """Let the mirrors end their copies, after an error; after Ctrl-C without waiting."""
    if session.mirrors is not None:
        with suppress(StoreError):  # a second error must not hide the first
            session.mirrors.drain(session.job_clock.gone_by(), wait=wait)
        session.mirrors.say_undrained()


class Redone(NamedTuple):
    """Steps that a later attempt repeated."""

    steps: int
    exact: bool  # False: an attempt was killed and may have done more than its journal shows


def redone(logs: Sequence[Log]) -> Redone:
    """Count the steps of each attempt after the place from which the next one resumed."""
    begun = [log for log in logs if log.restored is not None]
    steps, exact = 0, True
    for log, after in itertools.pairwise(begun):
        furthest = max((journal.position(event)[0] for event in log.events), default=0)
        steps += max(0, furthest - (after.restored or (0, 0))[0])
        exact = exact and log.closed
    return Redone(steps, exact)


def finished_s(logs: Sequence[Log], position: Position) -> float | None:
    """When an earlier attempt finished the run at this position,
    in Unix seconds; None if unknown.
    """
    for log in reversed(logs if position.finished() else ()):
        if log.last.get("event") == "end" and journal.position(log.last) == journal.position(
            position.here._asdict()
        ):
            return float(log.last["time"])
    return None


def at_the_end(attempt: Attempt, position: Position) -> str:
    """Return one line for the end of a run: steps, attempts and repeated steps."""
    said = (
        "finished" if position.finished() or not position.targets else "ended before its loop did"
    )
    steps = counted(position.step, "step")
    try:
        logs = journal.logs(attempt.root)
        again = redone(logs)
    except OSError:  # all is saved, and the disk fails now
        return f"{said}: {steps}"
    attempts = sum(log.restored is not None for log in logs)
    # Where the run came from a place, journals of earlier attempts stayed elsewhere.
    all_here = [log.attempt for log in logs] == [*range(1, attempt.number + 1)]
    made = (
        f" in {counted(attempts, 'attempt')}"
        if all_here
        else f"; this was attempt {attempt.number}"
    )
    line = f"{said}: {steps}{made}"
    if not again.steps:  # not known for a run that is not exact
        return line
    return (
        f"{line}, {'' if again.exact and all_here else 'at least '}{counted(again.steps, 'step')} "
        "done again"
    )


def what_is_saved(step: int, saved: Name) -> str:
    """Return one line for an attempt that fails at `step`: from where the next one goes on."""
    again = step - saved.step
    after = f"; {counted(again, 'step')} after it will be done again" if again > 0 else ""
    return f"step {saved.step} is saved{after}"


def ago(then_s: float) -> str:
    return f"{duration(round(max(0.0, time.time() - then_s)))} ago"
