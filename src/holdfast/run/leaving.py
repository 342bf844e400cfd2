"""Leaving: what happens when a loop was left, when the run has done its work, and when its block or process ends."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

from ..errors import StoreError, Superseded
from ..store import format
from ..terminal import say, warn
from . import resume, saving, summary
from .ranks import blamed, parting
from .session import Session


def count_left_pass(session: Session) -> None:
    """Count the pass of a body that was left, if one was: a step, with a line of its own.

    Not when it was left, because an exception may have left it, and then the block, too: only when the script goes on.
    """
    left = session.walks.left_pass
    if left is None:
        return
    session.walks.left_pass = None
    after = session.logged, session.early
    session.logged, session.early = left
    session.position.step += 1
    session.position.phase = "step"
    saving.passed(session)
    session.walks.left_metrics = saving.flush_metrics(session, "step")
    session.walks.left_at = session.position.step
    session.logged, session.early = after


def end_outer(session: Session) -> dict[str, float]:
    """Note that the outermost loop was left before its end, if it was; the metrics that belong to the end."""
    count_left_pass(session)
    walks, position = session.walks, session.position
    if walks.outer is None:
        return {}
    kind, total = walks.outer
    walks.outer = None
    position.left[kind], position.phase = total, "end"
    if position.in_epoch:
        position.end_epoch()
    after, session.logged, walks.logged_inside = session.logged, walks.logged_inside, {}
    metrics = saving.flush_metrics(session, "end")
    session.logged = after
    return metrics


def finish(session: Session) -> None:
    """The work is done: save what is not saved yet, and stop if that was asked for."""
    session.require_alive()
    session.walks.close_inside()
    metrics = end_outer(session)
    position = session.position
    saving.flush_metrics(session, "exit")
    saving.land(session)
    if session.here.order > (session.saved or format.Name(0)).order:
        saving.save(session, "the end", metrics)
    reason = session.ranks.announce("the end", (session.stop.reason or session.ranks.wished() or "").encode())
    if reason:
        saving.stop_now(session, reason.decode())
    session.ranks.report("the end of the block")  # another rank may fail in it still, or take long
    with parting(session.ranks):
        session.attempt.close("end", step=position.step, phase=position.phase)
    if session.ranks.rank == 0 and (session.steps_here or summary.finished_s(session) is None):
        session.progress.close()
        say(f"{session.path}: {summary.at_the_end(session)}")


def leave(session: Session, error: BaseException | None) -> None:
    """Say good-bye in the journal, give signals and terminal back. Never hides `error`."""
    try:
        if error is not None:
            if session.over is None:
                session.ranks.confess(error)
            _land_quietly(session)
            if session.over is None:
                session.ranks.leave(f"has left with {resume.describe(error)}{_where(session)}")
        if error is not None and session.over is None and not isinstance(error, Superseded):
            say_failed(session, error)
            if isinstance(error, NameError) and session.steps_here == 0 and session.position.in_epoch:
                warn(
                    "resumed inside an epoch; if it was after the last batch, the loop's body has not run, and what only "
                    "the body sets has no value: keep it in run.vars"
                )
    finally:
        session.left = True
        with suppress(Exception):  # of a loader: what is held of its loops ends now
            session.walks.close_inside()
        session.around.close()
        session.progress.close()
        session.arena.release()


def say_failed(session: Session, error: BaseException) -> None:
    """The journal's last line: the attempt has failed with `error`."""
    with suppress(StoreError):  # nothing may hide the error itself
        session.attempt.close("failed", **_failure(session, error))


def _land_quietly(session: Session) -> None:
    """The save in flight is as good as any, whatever ended the block."""
    try:
        saving.land(session)
    except Exception as error:
        warn(f"the save in flight failed: {error}")


def _failure(session: Session, error: BaseException) -> dict[str, Any]:
    checkpoint = session.resumed.checkpoint
    return {
        "step": session.position.step,
        "error": blamed(session.ranks, error, resume.describe(error)),
        "script": resume.script(),
        "checkpoint": checkpoint.path.name if checkpoint else None,
        "counts": session.steps_here == 0 and resume.counts(error) and not _may_be_anothers(session, error),
    }


def _where(session: Session) -> str:
    """Where a rank has left, for the others."""
    return f", at step {session.position.step}, epoch {session.position.epoch}"


def _may_be_anothers(session: Session, error: BaseException) -> bool:
    """Whether a rank may have been lost: a collective then fails here with a framework's own error, which is one of these."""
    return not session.ranks.alone and isinstance(error, RuntimeError)
