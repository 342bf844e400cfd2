"""Opening: begin an attempt, fresh or from a checkpoint of an earlier one."""

from __future__ import annotations

import os
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any, NoReturn

import msgspec

from .. import scan, settings
from ..children import steps
from ..cluster import job_leader
from ..cluster.hold import HOLD, format_not_started
from ..collective import relaunch
from ..data.order import derive_key
from ..errors import Mismatch, Unreadable, UsageError
from ..job import job
from ..legible import is_text
from ..provenance import document
from ..rules import rule_text
from ..state import rng
from ..stateful import fingerprint
from ..stateful.objects import adapter_for
from ..stateful.tracked import RESERVED, StateDigests, digest_state, framework_modules
from ..store import format, unsound
from ..store.checkpoint import Checkpoint
from ..store.format import parse_name
from ..terminal import say, warn
from . import weights
from .failures import ReadRetries, translate_read_errors
from .finish import earlier_finish_time_s, format_time_since, journal_and_stop, save_and_stop
from .origin import Reentry
from .position import Position
from .ranks import require_same_loop, run_on_all_ranks
from .resume import Restorer
from .session import Session
from .weights import StartFrom


def begin_attempt(session: Session, again: Reentry | None = None) -> None:
    """Restore the newest valid checkpoint into the live objects, or start fresh; print one line
    about it.

    `again`: the last block of this process tracked the same objects. If no other attempt has saved
    since, the live values stay, and nothing is restored. It succeeds on all ranks or fails on all
    ranks.
    """
    options, ranks, origin, attempt = (
        session.options,
        session.ranks,
        session.origin,
        session.attempt,
    )
    _stop_if_on_hold(session)
    _stop_if_relaunched(session)
    read_retries = ReadRetries(
        ranks, session.job_clock, session.reporter, partial(_stop_before_restore, session)
    )
    fetcher = None if session.mirrors is None else session.mirrors.fetcher
    restorer = Restorer(
        options, session.tracked, ranks, session.store, origin, attempt, fetcher, read_retries
    )
    restorer.quarantine_newer()
    with ranks.together("the types of the state"):
        types = session.capture.allowed_types()
    restorer.restore_newest(types, again if options.go_back is None else None)
    if origin.checkpoint is None and options.branch_from is not None:
        checkpoint = Checkpoint(_checkpoint_path(session, read_retries, options.branch_from))
        read_retries.retry_until_readable(lambda: restorer.restore(checkpoint, types))
        attempt.record("branched", source=str(checkpoint.path), step=checkpoint.step)
    start_from = options.start_from if origin.checkpoint is None else None
    if start_from is not None and not ranks.alone:  # each rank might choose another checkpoint
        start_from = msgspec.structs.replace(
            start_from, path=_checkpoint_path(session, read_retries, start_from.path)
        )
    reports = (
        {}
        if start_from is None
        else read_retries.retry_until_readable(lambda: _read_initial_weights(session, start_from))
    )
    with ranks.together("the beginning"):
        _begin_on_this_rank(session, "" if start_from is None else str(start_from.path), reports)
    limit = session.drill.step_limit_reason
    # the last attempt was killed before its last line
    if session.saves.saved is not None and limit is not None:
        save_and_stop(session, limit)


def install_signal_handlers(session: Session, *, in_block: bool) -> None:
    """Handle the signals, and keep them from the workers of loaders."""
    around = session.around
    session.tracked.call_adapters("record_baseline")
    around.callback(session.tracked.call_adapters, "drop_baseline")
    session.alive.connect(session.ranks.rank, session.ranks.world, private=session.options.private)
    around.callback(session.alive.report_end)
    if in_block:
        around.enter_context(session.stop)
    else:
        around.callback(session.stop.__exit__)  # entered when a loop begins
    # persistent workers end here, not in the garbage collector
    around.callback(session.progress.sources.clear)
    around.callback(session.saves.readback.close)
    around.callback(session.script_checks.close)
    around.callback(session.job_clock.close)
    if session.mirrors is not None:
        around.callback(session.mirrors.close)
    for module in framework_modules():
        around.enter_context(module.workers_ignore_stops())
    around.callback(session.reporter.update_board)


def _stop_if_on_hold(session: Session) -> None:
    """Stop before the restore if this is a batch job and the run is on hold."""
    ranks, path = session.ranks, session.path
    if ranks.run_on_rank_0(
        "hold", lambda: b"1" if job() is not None and scan.exists(path / HOLD) else b""
    ):
        if ranks.leads and (supervisor := job_leader.supervisor_directory()) is not None:
            job_leader.report_run_path(supervisor, path)  # the hold file is there
        journal_and_stop(session, "held", "held", format_not_started(path), requeues=False)


def _stop_if_relaunched(session: Session) -> None:
    """Stop before the restore if torchrun has restarted the process after a stop of the run."""
    before = relaunch.note_start(session.ranks, session.attempt)
    if before is not None:
        reason, at, restart = before
        line = (
            f"{session.path}: stopped by {reason} at step {at.step}, "
            "and torchrun has started it again at once "
            f"(restart {restart} of this launch): it does not go on here; run me again"
        )
        journal_and_stop(
            session,
            reason,
            f"{reason}; started again by torchrun, and left again",
            line,
            at,
            requeues=False,
        )


def _stop_before_restore(session: Session, reason: str, error: Unreadable) -> NoReturn:
    """Stop because a signal came while a checkpoint could not be read."""
    tried = session.origin.checkpoint
    at = (tried and parse_name(tried.path.name)) or format.CheckpointName(0)
    line = f"{session.path}: stopped by {reason}, while {error}; nothing was changed, run me again"
    journal_and_stop(session, reason, f"{reason}, while a checkpoint could not be read", line, at)


def _checkpoint_path(
    session: Session, read_retries: ReadRetries, path: str | os.PathLike[str]
) -> Path:
    """Return the path of the checkpoint that `path` refers to, as rank 0 sees it."""
    at = translate_read_errors(Path(path))(
        lambda: os.fsencode(weights.open_checkpoint(path).path.absolute())
    )
    found = read_retries.retry_until_readable(
        lambda: session.ranks.run_on_rank_0("the choice of a checkpoint", at)
    )
    return Path(os.fsdecode(found))


def _record_environment(session: Session) -> None:
    """Journal in what the attempt runs, so that a report can tell what has changed."""
    supervisor = job_leader.supervisor_directory()
    session.attempt.record(
        "environment",
        supervisor=None if supervisor is None else str(supervisor),
        # runs git now and caches its answer: the first save starts no process
        **document(session.options.hyperparameters, session.options.dataset),
    )


def _read_initial_weights(session: Session, source: StartFrom) -> dict[str, weights.Report]:
    """Read the weights of a new run, on every rank.

    Raises:
        UsageError: they would go into parts that are cut over ranks.
    """
    wanted = {name.partition("/")[0] for name in source.names}
    for name in session.tracked.cut_states():
        if not wanted or name in wanted:
            raise UsageError(
                f"start_from: {name!r} is cut over ranks (ModelParts), and is not read from there: "
                f"`holdfast export {source.path} --part {name} -o model.safetensors` writes the "
                "whole model; load its layers from that file before Run, without start_from. "
                "Other models are read if StartFrom(..., names=...) names only them"
            )
    read = translate_read_errors(Path(source.path))(
        lambda: weights.read_initial_weights(source, session.tracked.self_restoring_objects())
    )
    return run_on_all_ranks(session.ranks, "the weights", read)


def _begin_on_this_rank(
    session: Session, source: str, reports: Mapping[str, weights.Report]
) -> None:
    checkpoint = session.origin.checkpoint
    if checkpoint is None:
        _begin_fresh(session, source, reports)
    else:
        _restore_run_memory(session, checkpoint, session.origin.memory)
    with session.attempt.translate_errors("begin"):
        session.job_clock.report_run_path(fresh=checkpoint is None)
    if session.ranks.leads:
        _call_tracker(session)
        _record_environment(session)
        with session.attempt.translate_errors("read what earlier attempts noted"):
            session.saves.use_past_measurements()
        for log in session.attempt.earlier:
            log.forget()
    if session.mirrors is not None:
        saved = session.saves.saved  # None after a branch, too
        session.mirrors.start_copying(None if saved is None else str(saved))
    session.attempt.flush(sync=True)
    board = session.options.board
    if session.ranks.leads and board is not False:
        # a drilled run keeps its own next to it
        session.reporter.begin_board(None if board is True or settings.is_drilled() else board)
    if session.options.trackers and session.ranks.leads and not settings.is_drilled():
        session.around.callback(
            session.reporter.begin_trackers(
                session.options.trackers, session.options.hyperparameters
            ).close
        )
    session.progress.restart_step_clock()
    session.alive.mark_phase(steps.FIRST)


class LoopStart:
    """What happens between the restore and the first body of a loop: the script runs again there,
    and may change what was restored.
    """

    def __init__(self, session: Session) -> None:
        self._session = session

    def undo_changes(self, *, ready: bool = True) -> None:
        """Undo and report the script's changes of the state between the restore and the first loop.

        `ready`: the loop has reached the position, so random numbers are restored, too.
        """
        session = self._session
        baseline = session.origin.baseline
        if baseline is None:
            session.drill.journal_variables("begin")
            return
        session.tracked.restore_late_reducers()  # a collective: every rank begins this loop
        # the epoch's body has drawn from them again
        session.tracked.refill_generators(session.origin.generators)
        changed = _restore_baseline(session, baseline)
        if changed:
            more = f" and {len(changed) - 3} more" if len(changed) > 3 else ""
            warn(
                "code that runs again before the loop's next step "
                "changed restored values; they are put back as saved: "
                f"{', '.join(changed[:3])}{more}"
            )
            session.attempt.record("put_back", leaves=changed[:100])
        if ready:
            _restore_rng(session)
            session.origin.set_baseline(None)
            session.metrics.restore(session.origin.memory.get("means"))
            session.drill.journal_variables("begin")
            session.drill.mark_output()

    def restore_epoch_rng(self) -> None:
        """Restore the random numbers from the beginning of an epoch that is resumed in its middle.

        The epoch's body then draws the same numbers again before its inner loop; `zip(a, b)`, for
        example, begins both loaders.
        """
        session = self._session
        if session.origin.baseline is not None and session.progress.epoch_rng is not None:
            rng.restore(session.progress.epoch_rng)
            session.tracked.refill_generators(session.progress.epoch_generators)

    def require_loop_entered(self) -> None:
        """Require that the epoch began the loop in which the checkpoint was saved.

        Raises:
            Mismatch: the epoch ended without beginning that loop.
        """
        session = self._session
        if session.origin.baseline is not None:
            name = session.position.current
            raise Mismatch(
                f"{session.path}: the checkpoint lies inside the loop {name!r}, "
                f"and run.batches(..., name={name!r}) did "
                "not begin in this epoch"
            )

    def note_epoch_begin(self) -> None:
        """Note the random numbers with which an epoch begins."""
        self._session.progress.note_epoch_begin(self._session.tracked.generators())

    def require_settled(self, loader: str) -> None:
        """Require that the state before the next fetch of `loader` has been restored.

        Raises:
            Mismatch: it has not, because no batch was fetched since.
        """
        session = self._session
        if session.origin.baseline is not None:
            raise Mismatch(
                f"{session.path}: the checkpoint lies behind the "
                "last batch that this epoch took of the loader "
                f"{loader!r}, so that its random numbers "
                "were not restored: call loop.settle() when the "
                "batches have ended, before the validation"
            )

    def require_same_loop(self, kind: str, total: int) -> None:
        """Require that all ranks begin the same outermost loop."""
        require_same_loop(self._session.ranks, kind, total)


def _begin_fresh(session: Session, source: str, reports: Mapping[str, weights.Report]) -> None:
    session.progress.choose_seed(
        next((int(module.initial_seed()) for module in framework_modules()), 0)
    )
    _report_begin(session, None, f"starts fresh (attempt {session.attempt.number})")
    for name, report in reports.items():
        session.attempt.record("started_from", source=source, name=name, report=str(report))
        say(f"{name} starts from {source}: {report}")
    _apply_overrides(session, {})


def _restore_run_memory(session: Session, checkpoint: Checkpoint, memory: dict[str, Any]) -> None:
    """Restore what the run itself saved. Random numbers are last,
    because the other steps may draw some.
    """
    session.progress.restore(Position.from_stored(memory["position"]), memory)
    went_back, step = session.position.went_back, session.options.go_back
    if step is not None and step not in went_back:
        went_back.append(step)
    again = session.origin.again
    if again is None or not again.keeps_vars:
        session.tracked.variables.load_state_dict(memory["vars"], session.tracked.places)
    session.capture.durations.update(memory.get("durations", {}))
    session.metrics.restore(memory.get("means"))
    session.capture.mark_inexact_from(checkpoint.not_exact_from)
    session.store.go_on(checkpoint)
    # otherwise a branch
    session.saves.restore(checkpoint, ours=checkpoint.path.parent.parent == session.store.root)
    _report_resume(session, checkpoint)
    if session.ranks.leads:
        unsound.report_resumed(session.store, session.reporter.warn, checkpoint)
    changed = fingerprint.describe_changes(
        memory["fingerprint"]["environment"], fingerprint.describe_environment()
    )
    for line in changed:
        session.reporter.warn_changed(line)
    for name, lines in session.origin.overridden_options.items():
        for line in lines if name not in session.options.overrides else ():
            option = line.partition(" ")[0]
            changed_by = f'overrides={{"{name}": {{"{option}": ...}}}} changes it'
            session.reporter.warn_changed(f"{name}: {line}, which is used; {changed_by}", prefix="")
    if again is None:
        _check_probe(session, changed)
    _apply_overrides(session, memory["overrides"])
    if again is not None:
        return
    # Each rank's view lists other leaves. All must come to the same answer: an object may ask all
    # ranks for its state.
    digests_now = session.capture.digests(
        checkpoint.manifest.leaves if session.ranks.alone else None
    )
    session.origin.set_baseline(digests_now, session.tracked.generators())
    _restore_rng(session)


def _report_resume(session: Session, checkpoint: Checkpoint) -> None:
    attempt = f"(attempt {session.attempt.number})"
    done_s = (
        earlier_finish_time_s(session.attempt.earlier, session.position)
        if session.ranks.leads
        else None
    )
    if session.origin.again is not None:
        where = (
            f"goes on at {session.position.describe()} {attempt} "
            "with the values that this process holds"
        )
    elif done_s is not None:
        over = (
            f"already finished at step {session.position.step}, "
            f"{format_time_since(format.created_s(checkpoint.head.created))} {attempt}"
        )
        where = f"{over}; its loop's body runs again only up to a larger total"
    else:
        saved = (
            f"from {checkpoint.name}, "
            f"saved {format_time_since(format.created_s(checkpoint.head.created))}"
        )
        where = f"resumes at {session.position.describe()} {attempt}, {saved}"
    if session.capture.not_exact_from is not None:
        where += f", not exact from step {session.capture.not_exact_from}"
    _report_begin(session, checkpoint.name, where)


def _report_begin(session: Session, name: str | None, line: str) -> None:
    """Journal and print how the attempt begins, and which newer checkpoints were rejected."""
    rejected = session.origin.rejected
    keep = rule_text(session.options.keep)
    session.reporter.record("restored", checkpoint=name, rejected=rejected, keep=keep)
    lines = [f"{name} ({why})" for name, why in rejected]
    say(
        f"{session.path}: {line}"
        + (f"; set aside in {session.path / 'quarantine'}: {', '.join(lines)}" if lines else "")
    )


def _check_probe(session: Session, changed: list[str]) -> None:
    """Compare the probe's result with the saved one.
    Raise if it differs and the environment is unchanged.
    """
    kept = session.origin.memory["probe"]
    if session.options.probe is None or kept is None:
        return
    if not digest_state({"probe": session.capture.call_probe()}).changed_keys(
        digest_state({"probe": kept})
    ):
        return
    if not changed:
        raise Mismatch(
            f"{session.path}: after the restore the probe gives another result than before the save"
        )
    warn(
        "the probe's result differs from the one before the save; "
        f"changed meanwhile: {'; '.join(changed)}"
    )


def _apply_overrides(session: Session, applied: Mapping[str, Any], *, again: bool = False) -> None:
    """Set the caller's overrides that no earlier attempt applied; report them unless this is
    `again`.
    """
    inside = session.tracked.self_restoring_objects() if session.options.overrides else {}
    for name, changes in session.options.overrides.items():
        if dict(changes) != applied.get(name):
            target = session.tracked.objects.get(name, inside.get(name))
            lines = adapter_for(target).override(target, changes, inside.values())
            for line in () if again else lines:
                session.attempt.record("override", name=name, what=line)
                say(f"override: {name}: {line}")


def _restore_baseline(session: Session, baseline: StateDigests) -> list[str]:
    """Restore the state of the restore once more if the script changed it. Return what had changed.

    The hooks of a module or an optimizer may store other bytes than those of the checkpoint, which
    the baseline has for big leaves. So the state after the second restore decides.
    """
    checkpoint, memory, before = (
        session.origin.checkpoint,
        session.origin.memory,
        session.capture.digests(),
    )
    if checkpoint is None or not baseline.changed_keys(before):
        return []
    with translate_read_errors(checkpoint.path):
        types = session.capture.allowed_types()
        session.tracked.restore(
            checkpoint, session.tracked.plan_restore(checkpoint, types, compare=False)
        )
        # loaded again: the script may have changed the first copy in place
        fresh = checkpoint.load(part=RESERVED, types=types)
    session.tracked.variables.load_state_dict(fresh["vars"], session.tracked.places)
    _apply_overrides(session, memory["overrides"], again=True)
    restored = session.capture.digests()
    session.origin.set_baseline(restored)
    return [key.removeprefix("tree:") for key in restored.changed_keys(before)]


def _restore_rng(session: Session) -> None:
    checkpoint, rank = session.origin.checkpoint, session.ranks.rank
    # seed numbers that differ from other ranks'
    if checkpoint is not None and rank >= checkpoint.world:
        rng.seed(derive_key("rank", session.progress.seed, session.position.step, rank))
        return
    for skipped in rng.restore(session.origin.memory["rng"]):
        session.reporter.warn_changed(
            f"random numbers of {skipped} are in the checkpoint and cannot be put back here"
        )


def _call_tracker(session: Session) -> None:
    """Call the tracker with its last id and the step from which this attempt resumes."""
    if session.options.tracker is None:
        return
    before = (
        str(event["id"])
        for log in reversed(session.attempt.earlier)
        for event in log.newest("tracker")
    )
    known = next(before, None)
    found = session.options.tracker(known, session.position.step)
    if found is not None and not is_text(str(found)):
        raise UsageError(
            f"tracker returned the id {str(found)!r}, "
            "which is no text: the next attempt could not get it back"
        )
    if found is not None and str(found) != known:
        session.attempt.record("tracker", id=str(found))
