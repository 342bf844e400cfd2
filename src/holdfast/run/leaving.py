"""Leaving: how a loop was left, and what happens when the run, its block or its process ends."""

from __future__ import annotations

import sys
from collections.abc import Collection
from contextlib import suppress
from opcode import opname
from types import CodeType, FrameType
from typing import Any, NamedTuple

from ..children import steps
from ..errors import DiskError, NotFinite, StoreError, Superseded
from ..store import format
from ..terminal import say, warn
from . import reentry, resume, summary
from .ranks import exit_barrier, root_cause
from .safe_point import passed, stop_now
from .session import Session


def count_left_pass(session: Session) -> None:
    """Count the pass whose body was left, if there is one, as a step with its own line in the metrics.

    It is counted only when the script continues, because the loop may have been left by an exception.
    """
    logged = session.progress.walks.take_left_pass()
    if logged is not None:
        session.position.at_safe_point("step")
        passed(session)
        session.metrics.flush_left(logged)


def end_outer(session: Session) -> dict[str, float]:
    """Note that the outermost loop was left early, if so. Return the metrics of that end."""
    count_left_pass(session)
    outer, logged = session.progress.walks.take_outer()
    if outer is None:
        return {}
    session.position.leave_loop(*outer)
    with session.metrics.instead(logged):
        return session.metrics.flush("end")


def finish(session: Session) -> None:
    """Finish after the block or loop: save a state that is not saved yet, and stop if requested."""
    session.require_alive()
    session.alive.mark(steps.CLOSING, session.position.step)
    session.progress.walks.close_inside()
    metrics = end_outer(session)
    saves = session.saves
    session.metrics.flush("exit")
    saves.land()
    if session.here.order > (saves.saved or format.Name(0)).order:
        saves.save("the end", metrics)
    reason = session.ranks.announce("the end", (session.stop.reason or session.ranks.wished() or "").encode())
    if reason:
        stop_now(session, reason.decode())
    reentry.note_end(session)
    session.ranks.report("the end of the block")  # another rank may still fail in its block, or be slow
    with exit_barrier(session.ranks):
        session.close("end")
    if session.leads and (session.progress.steps_here or summary.finished_s(session) is None):
        session.display.close()
        say(f"{session.path}: {summary.at_the_end(session)}")
    if session.mirrors is not None:
        session.mirrors.say_undrained()


def leave(session: Session, error: BaseException | None) -> None:
    """Write the journal's last line, and restore signals and terminal. Never hides `error`."""
    try:
        if error is not None and session.over is not None:
            _land_quietly(session)
        elif error is not None:
            session.ranks.report_error(error)
            _land_quietly(session)
            session.ranks.leave(f"has left with {resume.describe(error)}, at {session.place()}")
            if not isinstance(error, Superseded):
                say_failed(session, error)
                _drain_quietly(session, wait=isinstance(error, Exception))
    finally:
        session.leave()


def say_failed(session: Session, error: BaseException) -> None:
    """Write the journal's last line: the attempt failed with `error`."""
    checkpoint, afresh = session.origin.checkpoint, session.progress.steps_here == 0
    before: dict[str, Any] = {}
    if session.progress.last_batch.has_failed(session, error):
        before = {"behind": True, "next": ""}
        with suppress(StoreError, OSError):  # a second error must not hide the first
            before["next"] = resume.place_before(session, error)
    if isinstance(error, DiskError) and session.saves.saved is not None:  # the journal may have no room for that
        error.add_note(summary.what_is_saved(session, session.saves.saved))
    # when another rank is lost, the framework's collective fails with a RuntimeError
    may_be_anothers = not session.ranks.alone and isinstance(error, RuntimeError)
    with suppress(StoreError):  # a second error must not hide the first
        session.attempt.close(
            "failed",
            step=session.position.step,
            kind=type(error).__name__,
            place=_place(error),
            error=root_cause(session.ranks, error, resume.describe(error)),
            script=resume.script(),
            checkpoint=checkpoint.path.name if checkpoint else None,
            counts=afresh and resume.counts(error) and not may_be_anothers,
            **before,
        )
    if before:
        warn(resume.after_a_failure_behind(session.store, before["next"], type(error).__name__))


def _place(error: BaseException) -> str:
    """Return the line that raised: "train.py:17"."""
    traceback = error.__traceback__
    while traceback is not None and traceback.tb_next is not None:
        traceback = traceback.tb_next
    return f"{traceback.tb_frame.f_code.co_filename}:{traceback.tb_lineno}" if traceback is not None else ""


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
    mirrors = session.mirrors
    if mirrors is not None:
        with suppress(StoreError):  # a second error must not hide the first
            mirrors.drain(session.job_clock.gone_by(), wait=wait)
        mirrors.say_undrained()


_POPS = frozenset({"POP_TOP", "POP_ITER"})  # CPython uses the second since 3.14
_SUSPENDED = frozenset({"YIELD_VALUE", "RESUME"})  # a generator around ours, such as tqdm's, that is closed too
_GENERATOR = 0x20  # of a code's flags, as inspect.CO_GENERATOR
_TAKES = frozenset({"FOR_ITER"})  # an iterator around ours raised, or reached its own limit (islice)


class Left(NamedTuple):
    """How a loop was left."""

    on_purpose: bool  # by `break` or `return`
    unclear: bool  # an iterator around it may have reached its own limit
    code: CodeType | None  # code of the function or module that contains the loop


def how(ours: Collection[CodeType]) -> Left:
    """Determine how a loop was left, while its generator (its code is in `ours`) is being closed on this thread.

    The generator receives GeneratorExit in each case. The frame that released it shows the difference: `break` and
    `return` pop the iterator with a special instruction; an exception leaves the frame at the instruction that raised
    it. Unlisted instructions count as an exception: then nothing is committed as finished, and the next start resumes
    from the last save.
    """
    frame: FrameType | None = sys._getframe(1)  # noqa: SLF001  the frames are what this is about
    while frame is not None and frame.f_code not in ours:
        frame = frame.f_back
    frame = frame.f_back if frame is not None else None
    while frame is not None and frame.f_code.co_flags & _GENERATOR and _instruction(frame) in _SUSPENDED:
        frame = frame.f_back
    if frame is None:
        return Left(on_purpose=False, unclear=False, code=None)
    now = _instruction(frame)
    return Left(on_purpose=now in _POPS, unclear=now in _TAKES, code=frame.f_code)


def _instruction(frame: FrameType) -> str:
    return opname[frame.f_code.co_code[frame.f_lasti]] if frame.f_lasti >= 0 else ""
