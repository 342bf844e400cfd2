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
from ..provenance import redact
from ..store.attempt import Attempt
from ..store.format import CheckpointName
from ..terminal import say, warn
from . import deferred_saves, failures, origin
from .position import Position
from .ranks import GOOD_BYE_S, exit_barrier, root_cause
from .session import Session


class AttemptEnd:
    """Ends an attempt, and its loops that were left before their end."""

    def __init__(self, session: Session) -> None:
        self._session, self.path = session, session.path

    @property
    def saved_step(self) -> int:
        """The step of the newest save; 0 without one."""
        saved = self._session.saves.saved
        return 0 if saved is None else saved.step

    def count_left_pass(self) -> None:
        """Count the pass whose body was left, if there is one, as a step with its own line in the
        metrics.

        It is counted only when the script continues, because the loop may have been left by an
        exception.
        """
        session = self._session
        logged = session.walks.take_left_pass()
        if logged is not None:
            session.position.record_safe_point("step")
            session.script_checks.check_safe_point()
            session.metrics.flush_left_pass(logged)

    def end_left_loop(self) -> dict[str, float]:
        """Record that the outermost loop was left early, if it was. Return that end's metrics."""
        self.count_left_pass()
        session = self._session
        outer, logged = session.walks.take_left_outermost()
        if outer is None:
            return {}
        session.position.record_loop_left(*outer)
        with session.metrics.replacing_logged(logged):
            return session.metrics.flush("end")

    def finish_run(self) -> None:
        """End the run after its block or loop: save an unsaved state, and stop if a stop was
        requested.
        """
        session = self._session
        progress, position, saves, ranks = (
            session.progress,
            session.position,
            session.saves,
            session.ranks,
        )
        session.lifetime.require_running()
        session.alive.mark_phase(steps.CLOSING)
        progress.walks.close_inside()
        metrics = self.end_left_loop()
        session.metrics.flush("exit")
        saves.collect_outcome()
        if position.checkpoint_name.order > (saves.saved or CheckpointName(0)).order:
            saves.save("the end", metrics)
        reason = ranks.announce(
            "the end", (session.stop.reason or ranks.pending_request() or "").encode()
        )
        if reason:
            save_and_stop(session, reason.decode())
        origin.note_end(session.attempt, session.tracked, progress, session.origin.checkpoint)
        ranks.report("the end of the block")  # another rank may still fail in its block, or be slow
        with exit_barrier(ranks):
            close_attempt(session, "end")
        if ranks.leads and (
            progress.steps_here or earlier_finish_time_s(session.attempt.earlier, position) is None
        ):
            session.display.close()
            say(f"{session.path}: {format_run_summary(session.attempt, position)}")
        if session.mirrors is not None:
            session.mirrors.report_missing_copies()

    def release_attempt(self, error: BaseException | None) -> None:
        """Release signals, terminal, loops and memory of the attempt. Never hides `error`.

        If `error` is not a stop, it becomes the journal's last line.
        """
        session = self._session
        try:
            if error is not None and session.lifetime.over is not None:
                _await_pending_save(session)
            elif error is not None:
                session.ranks.report_error(error)
                _await_pending_save(session)
                session.ranks.leave(
                    f"has left with {failures.describe(error)}, at {session.position.describe()}"
                )
                if not isinstance(error, Superseded):
                    self.journal_failure(error)
                    _drain_mirrors(session, wait=isinstance(error, Exception))
        finally:
            session.lifetime.note_left()
            with suppress(Exception):  # a loader may raise while its loop is closed
                session.walks.close_inside()
            session.around.close()
            session.display.close()
            session.saves.release()
            session.attempt.mark_over()

    def journal_failure(self, error: BaseException) -> None:
        """Write the journal's last line: the attempt failed with `error`."""
        session = self._session
        checkpoint, position = session.origin.checkpoint, session.position
        saved, last = session.saves.saved, session.last_batch
        before: dict[str, Any] = {}
        if last.failed_because_resumed_here(error):
            before = {"behind": True, "next": ""}
            with suppress(StoreError, OSError):  # a second error must not hide the first
                before["next"] = last.next_resume_point(error, checkpoint, session.store)
        # the journal may have no room for that
        if isinstance(error, DiskError) and saved is not None:
            error.add_note(format_resume_hint(position.step, saved))
        # when another rank is lost, the framework's collective fails with a RuntimeError
        may_be_anothers = not session.ranks.alone and isinstance(error, RuntimeError)
        with suppress(StoreError):  # a second error must not hide the first
            session.attempt.close(
                "failed",
                step=position.step,
                kind=type(error).__name__,
                place=_raising_line(error),
                error=redact([root_cause(session.ranks, error, failures.describe(error))])[0],
                script=failures.program_version(),
                checkpoint=checkpoint.path.name if checkpoint else None,
                counts=session.progress.steps_here == 0
                and failures.may_blame_checkpoint(error)
                and not may_be_anothers,
                **before,
            )
        if before:
            warn(
                deferred_saves.format_last_batch_failure(
                    session.store, before["next"], type(error).__name__
                )
            )

    def count_leaving(self) -> None:
        """Count that the loop was left, which is part of the state, where that state is saved."""
        session = self._session
        if session.saves.saved == session.position.checkpoint_name:
            session.position.record_safe_point("step")

    def log_after_end(self, values: dict[str, float | str]) -> None:
        """Log numbers after the end. They are durable on return."""
        session = self._session
        session.metrics.log(values)
        session.metrics.flush("exit")
        close_attempt(session, "end")


def save_and_stop(session: Session, reason: str, *, unsaved: bool = False) -> NoReturn:
    """Save the state unless it is saved or must not be saved, then stop.

    Raises:
        Stopped: always.
        StoreError: the pending save of this same step failed.
    """
    position, saves = session.position, session.saves
    session.alive.mark_phase(steps.CLOSING)
    if unsaved:
        saves.collect_outcome(last_chance=True)
        session.waiting.report_where_saved()
    else:
        saves.ensure_durable(reason, {})
    what = (
        f"not saved: the next start goes on from {saves.saved or 'the beginning'}"
        if unsaved
        else "saved"
    )
    why = f"{reason} at step {position.step}; {what}"
    line = f"{session.path}: stopped by {why}, run me again"
    # some ranks may be steps behind
    journal_and_stop(
        session,
        reason,
        why,
        line,
        position.checkpoint_name,
        patience_s=GOOD_BYE_S + 3 * session.progress.step_s,
    )


def journal_and_stop(
    session: Session,
    reason: str,
    why: str,
    line: str,
    at: CheckpointName = CheckpointName(0),  # noqa: B008  a frozen value
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
        close_attempt(session, "stop", reason=reason, **at._asdict())
        stopped = session.lifetime.note_stopped(why)
        if requeues:
            session.job_clock.prepare_requeue(session.attempt)
        if not ranks.alone:
            # a launcher signals all ranks to end when the first has exited
            session.stop.ignore_signals_afterwards()
    session.display.close()
    say(line)
    if session.mirrors is not None:
        session.mirrors.report_missing_copies()
    raise stopped


def close_attempt(session: Session, event: str, /, **facts: Any) -> None:
    """Write the attempt's last line. The attempt then counts as ended at the present position.

    Then wait for the mirrors and trackers, within their limits: a process that is killed meanwhile
    has ended in order.
    """
    try:
        session.attempt.close(event, **session.position.checkpoint_name._asdict() | facts)
    except DiskError as error:
        if event != "stop":
            raise
        warn(
            f"{error}. The state is saved, only the journal's "
            "last line is missing: run me again all the same"
        )
    if session.mirrors is not None:
        session.mirrors.drain(session.job_clock.must_exit_by())
    if session.reporter.trackers is not None:
        session.reporter.trackers.drain(session.job_clock.must_exit_by())
        with suppress(DiskError):  # what it told
            session.attempt.flush(sync=True)


def _raising_line(error: BaseException) -> str:
    """Return the line that raised: "train.py:17"."""
    trace = error.__traceback__  # by hand: at a limit of open files nothing can be imported
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    return f"{trace.tb_frame.f_code.co_filename}:{trace.tb_lineno}" if trace is not None else ""


def _await_pending_save(session: Session) -> None:
    """Wait for the pending save: its checkpoint is valid, however the block ended."""
    try:
        session.saves.collect_outcome(last_chance=True)
    except NotFinite:
        return  # it is saved, and was told
    except Exception as error:
        warn(f"the save in flight failed: {error}")


def _drain_mirrors(session: Session, *, wait: bool) -> None:
    """Wait for the mirrors' copies after an error. After Ctrl-C do not wait."""
    if session.mirrors is not None:
        with suppress(StoreError):  # a second error must not hide the first
            session.mirrors.drain(session.job_clock.must_exit_by(), wait=wait)
        session.mirrors.report_missing_copies()


class RepeatedSteps(NamedTuple):
    """Steps that a later attempt repeated."""

    steps: int
    exact: bool  # False: an attempt was killed and may have done more than its journal shows


def count_repeated_steps(logs: Sequence[Log]) -> RepeatedSteps:
    """Count the steps of each attempt that the next attempt repeated."""
    begun = [log for log in logs if log.restored is not None]
    steps, exact = 0, True
    for log, after in itertools.pairwise(begun):
        furthest = max((journal.position(event)[0] for event in log.events), default=0)
        steps += max(0, furthest - (after.restored or (0, 0))[0])
        exact = exact and log.closed
    return RepeatedSteps(steps, exact)


def earlier_finish_time_s(logs: Sequence[Log], position: Position) -> float | None:
    """Return when an earlier attempt ended the finished run at this position, in Unix seconds;
    None: unknown.
    """
    for log in reversed(logs if position.finished() else ()):
        if log.last.get("event") == "end" and journal.position(log.last) == journal.position(
            position.checkpoint_name._asdict()
        ):
            return float(log.last["time"])
    return None


def format_run_summary(attempt: Attempt, position: Position) -> str:
    """Return one line at the end of a run: steps, attempts and repeated steps."""
    said = (
        "finished" if position.finished() or not position.targets else "ended before its loop did"
    )
    steps = counted(position.step, "step")
    try:
        logs = journal.logs(attempt.root)
        again = count_repeated_steps(logs)
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


def format_resume_hint(step: int, saved: CheckpointName) -> str:
    """Return one line for an attempt that fails at `step`: the step from which the next one
    resumes.
    """
    again = step - saved.step
    after = f"; {counted(again, 'step')} after it will be done again" if again > 0 else ""
    return f"step {saved.step} is saved{after}"


def format_time_since(then_s: float) -> str:
    return f"{duration(round(max(0.0, time.time() - then_s)))} ago"
