"""Opening: begin an attempt, fresh or from a checkpoint of an earlier one."""

from __future__ import annotations

import os
from collections.abc import Mapping
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import msgspec

from ..children import steps
from ..data.order import key
from ..errors import Mismatch, UsageError
from ..legible import is_text
from ..provenance import document
from ..state import rng
from ..store import format
from ..store.checkpoint import Checkpoint
from ..terminal import say, warn
from . import drilled, fingerprint, going_back, relaunch, resume, summary, unsound, weights
from .damaged import reading
from .objects import adapter_for
from .origin import Reentry
from .position import Position
from .ranks import agreed, led_at_length
from .read_retries import ReadRetries
from .safe_point import stop_now
from .session import Session
from .tracked import RESERVED, Digests, digests, framework_modules
from .weights import StartFrom

LAST_SAVES = 100  # of an earlier attempt; the first save is expected to take as long as the longest of them


def begin(session: Session, again: Reentry | None = None) -> None:
    """Restore the newest valid checkpoint into the live objects, or begin fresh; print one line that shows which.

    `again`: the last block of this process tracked the same objects. If no other attempt has saved since, the live
    values count, and nothing is restored.

    Succeeds on all ranks or fails on all ranks.
    """
    options, ranks, origin, read_retries = session.options, session.ranks, session.origin, ReadRetries(session)
    relaunch.exit_if_held(session)
    relaunch.exit_again_after_a_stop(session)
    from_places = session.mirrors is not None  # on rank 0; a fetch may take long
    led_at_length(ranks, "the places", lambda: going_back.begin_from_places(session), beside=from_places)
    back = partial(led_at_length, ranks, "going back", lambda: going_back.go_back(session), beside=from_places)
    read_retries.wait_for(back)
    with ranks.together("the types of the state"):
        types = session.types()
    resume.restore_newest(session, read_retries, types, again if options.go_back is None else None)
    if origin.checkpoint is None and options.branch_from is not None:
        checkpoint = Checkpoint(_place(session, read_retries, options.branch_from))
        read_retries.wait_for(lambda: resume.restore(session, checkpoint, types))
        session.attempt.record("branched", source=str(checkpoint.path), step=checkpoint.step)
    start_from = options.start_from if origin.checkpoint is None else None
    if start_from is not None and not ranks.alone:  # each rank might choose another checkpoint
        start_from = msgspec.structs.replace(start_from, path=_place(session, read_retries, start_from.path))
    reports = {} if start_from is None else read_retries.wait_for(lambda: _weights(session, start_from))
    with ranks.together("the beginning"):
        _begin_here(session, "" if start_from is None else str(start_from.path), reports)
    if session.saves.saved is not None and session.drill_limit:  # the last attempt was killed before its last line
        stop_now(session, "drill limit")


def _place(session: Session, read_retries: ReadRetries, path: str | os.PathLike[str]) -> Path:
    """Return the path of the checkpoint that `path` refers to, as rank 0 sees it."""
    at = reading(Path(path))(lambda: os.fsencode(weights.at(path).path.absolute()))
    found = read_retries.wait_for(lambda: session.ranks.lead("the choice of a checkpoint", at))
    return Path(os.fsdecode(found))


def _weights(session: Session, source: StartFrom) -> dict[str, weights.Report]:
    """Read the weights of a new run, on every rank."""
    read = reading(Path(source.path))(lambda: weights.begin_from(source, session.tracked.inside()))
    return agreed(session.ranks, "the weights", read)


def _begin_here(session: Session, source: str, reports: Mapping[str, weights.Report]) -> None:
    checkpoint = session.origin.checkpoint
    if checkpoint is None:
        _begin_fresh(session, source, reports)
    else:
        _restore_own(session, checkpoint, session.origin.memory)
    with session.attempt.acting("begin"):
        session.job_clock.begin(fresh=checkpoint is None)
    if session.leads:
        _track(session)
        document()  # runs git now and caches its answer: the first save starts no process
        with session.attempt.acting("read what earlier attempts noted"):
            session.saves.expect(_cost_of_saving(session))
            session.saves.recall(session.earlier_logs)
        for log in session.earlier_logs:
            log.forget()
    if session.mirrors is not None:
        ours = checkpoint is not None and checkpoint.path.parent.parent == session.store.root  # otherwise a branch
        session.mirrors.begin(checkpoint.path.name if checkpoint is not None and ours else None)
    session.attempt.flush(sync=True)
    if session.leads:
        session.begin_board()
    session.progress.restart_clock()
    session.alive.mark(steps.FIRST, session.position.step)


def settle(session: Session, *, ready: bool = True) -> None:
    """Undo and report state changes by the script between the restore and the first loop.

    `ready`: the position is reached, so random numbers are restored as well.
    """
    baseline = session.origin.baseline
    if baseline is None:
        drilled.note(session, "begin")
        return
    session.tracked.warm_late()  # a collective: every rank begins this loop
    session.tracked.refill_generators(session.origin.generators)  # the epoch's body has drawn from them again
    changed = _put_back(session, baseline)
    if changed:
        more = f" and {len(changed) - 3} more" if len(changed) > 3 else ""
        warn(
            "code that runs again before the loop's next step changed restored values; they are put back as saved: "
            f"{', '.join(changed[:3])}{more}"
        )
        session.attempt.record("put_back", leaves=changed[:100])
    if ready:
        _restore_rng(session)
        session.origin.set_baseline(None)
        session.metrics.restore(session.origin.memory.get("means"))
        drilled.note(session, "begin")
        drilled.mark_output(session)


def begin_again(session: Session) -> None:
    """Restore the random numbers from the beginning of an epoch that is resumed in its middle.

    The epoch's body then draws the same numbers again before its inner loop; `zip(a, b)`, for example, begins both
    loaders.
    """
    if session.origin.baseline is not None and session.progress.epoch_rng is not None:
        rng.restore(session.progress.epoch_rng)
        session.tracked.refill_generators(session.progress.epoch_generators)


def require_settled(session: Session) -> None:
    """Require that the epoch entered the loop of the checkpoint.

    Raises:
        Mismatch: an epoch ended without beginning the loop inside which the checkpoint was saved.
    """
    if session.origin.baseline is not None:
        name = session.position.current
        raise Mismatch(
            f"{session.path}: the checkpoint lies inside the loop {name!r}, and run.batches(..., name={name!r}) did "
            "not begin in this epoch"
        )


def _begin_fresh(session: Session, source: str, reports: Mapping[str, weights.Report]) -> None:
    session.progress.choose_seed(next((int(module.initial_seed()) for module in framework_modules()), 0))
    _record_restored(session, None)
    say(f"{session.path}: starts fresh (attempt {session.attempt.number}){_rejected(session)}")
    for name, report in reports.items():
        session.attempt.record("started_from", source=source, name=name, report=str(report))
        say(f"{name} starts from {source}: {report}")
    _override(session, {})


def _restore_own(session: Session, checkpoint: Checkpoint, memory: dict[str, Any]) -> None:
    """Restore what the run itself saved. Random numbers are last, because the other steps may draw some."""
    position = Position.of(memory["position"])
    session.progress.restore(position, memory)
    if session.options.go_back is not None and session.options.go_back not in position.went_back:
        position.went_back.append(session.options.go_back)
    again = session.origin.again
    if again is None or not again.keeps_vars:
        session.vars.load_state_dict(memory["vars"], session.tracked.places)
    session.durations.update(memory.get("durations", {}))
    session.metrics.restore(memory.get("means"))
    session.begin_inexact(checkpoint.not_exact_from)
    session.store.go_on(checkpoint)
    session.saves.restore(checkpoint, ours=checkpoint.path.parent.parent == session.store.root)  # otherwise a branch
    _announce(session, checkpoint)
    if session.leads:
        unsound.tell_resumed(session.store, session.tell, checkpoint)
    changed = fingerprint.changes(memory["fingerprint"]["environment"], fingerprint.environment())
    for line in changed:
        session.tell_changed(line)
    for name, lines in session.origin.overridden_options.items():
        for line in lines if name not in session.options.overrides else ():
            option = line.partition(" ")[0]
            changed_by = f'overrides={{"{name}": {{"{option}": ...}}}} changes it'
            session.tell_changed(f"{name}: {line}, which is used; {changed_by}", prefix="")
    if again is None:
        _check_probe(session, changed)
    _override(session, memory["overrides"])
    if again is not None:
        return
    # Each rank's view lists other leaves. All must come to the same answer: an object may ask all ranks for its state.
    digests_now = session.digests(checkpoint.manifest.leaves if session.ranks.alone else None)
    session.origin.set_baseline(digests_now, session.tracked.generators())
    _restore_rng(session)


def _announce(session: Session, checkpoint: Checkpoint) -> None:
    _record_restored(session, checkpoint.name)
    attempt = f"(attempt {session.attempt.number})"
    finished_s = summary.finished_s(session) if session.leads else None
    if session.origin.again is not None:
        where = f"goes on at {session.place()} {attempt} with the values that this process holds"
    elif finished_s is not None:
        over = f"already finished at step {session.position.step}, {summary.ago(finished_s)} {attempt}"
        where = f"{over}; its loop's body does not run again"
    else:
        saved = f"from {checkpoint.name}, saved {summary.ago(format.seconds(checkpoint.head.created))}"
        where = f"resumes at {session.place()} {attempt}, {saved}"
    if session.not_exact_from is not None:
        where += f", not exact from step {session.not_exact_from}"
    say(f"{session.path}: {where}{_rejected(session)}")


def _record_restored(session: Session, name: str | None) -> None:
    session.record("restored", checkpoint=name, rejected=session.origin.rejected)


def _rejected(session: Session) -> str:
    """Return which newer checkpoints were rejected, and why; empty if none."""
    lines = [f"{name} ({why})" for name, why in session.origin.rejected]
    return f"; set aside in {session.path / 'quarantine'}: {', '.join(lines)}" if lines else ""


def _check_probe(session: Session, changed: list[str]) -> None:
    """Compare the probe's result with the saved one. Raise if it differs and the environment is unchanged."""
    kept = session.origin.memory["probe"]
    if session.options.probe is None or kept is None:
        return
    if not digests({"probe": session.ask_probe()}).changed(digests({"probe": kept})):
        return
    if not changed:
        raise Mismatch(f"{session.path}: after the restore the probe gives another result than before the save")
    warn(f"the probe's result differs from the one before the save; changed meanwhile: {'; '.join(changed)}")


def _override(session: Session, applied: Mapping[str, Any], *, again: bool = False) -> None:
    """Set the caller's overrides, except those that an earlier attempt applied; tell of them unless this is `again`."""
    inside = session.tracked.inside() if session.options.overrides else {}
    for name, changes in session.options.overrides.items():
        if dict(changes) != applied.get(name):
            target = session.tracked.objects.get(name, inside.get(name))
            lines = adapter_for(target).override(target, changes, inside.values())
            for line in () if again else lines:
                session.attempt.record("override", name=name, what=line)
                say(f"override: {name}: {line}")


def _put_back(session: Session, baseline: Digests) -> list[str]:
    """Restore the state that was restored on entry once more, unless it is still there. Return what had changed.

    The hooks of a module or an optimizer may store other bytes than those of the checkpoint, which the baseline has for
    big leaves. So the state after the second restore decides.
    """
    checkpoint, memory, before = session.origin.checkpoint, session.origin.memory, session.digests()
    if checkpoint is None or not baseline.changed(before):
        return []
    with reading(checkpoint.path):
        types = session.types()
        session.tracked.restore(checkpoint, session.tracked.plan(checkpoint, types, compare=False))
        # loaded again: the script may have changed the first copy in place
        fresh = checkpoint.load(part=RESERVED, types=types)
    session.vars.load_state_dict(fresh["vars"], session.tracked.places)
    _override(session, memory["overrides"], again=True)
    restored = session.digests()
    session.origin.set_baseline(restored)
    return [key.removeprefix("tree:") for key in restored.changed(before)]


def _restore_rng(session: Session) -> None:
    checkpoint, rank = session.origin.checkpoint, session.ranks.rank
    if checkpoint is not None and rank >= checkpoint.world:  # seed numbers that differ from other ranks'
        rng.seed(key("rank", session.progress.seed, session.position.step, rank))
        return
    for skipped in rng.restore(session.origin.memory["rng"]):
        session.tell_changed(f"random numbers of {skipped} are in the checkpoint and cannot be put back here")


def _track(session: Session) -> None:
    """Call the tracker with its last id and the step from which this attempt resumes."""
    if session.options.tracker is None:
        return
    before = (str(event["id"]) for log in reversed(session.earlier_logs) for event in log.newest("tracker"))
    known = next(before, None)
    found = session.options.tracker(known, session.position.step)
    if found is not None and not is_text(str(found)):
        raise UsageError(
            f"tracker returned the id {str(found)!r}, which is no text: the next attempt could not get it back"
        )
    if found is not None and str(found) != known:
        session.attempt.record("tracker", id=str(found))


def _cost_of_saving(session: Session) -> float:
    """Seconds of the longest of the last saves, of the last attempt that saved; 0.0 if none did.

    Used until a save is measured.
    """
    for log in reversed(session.earlier_logs):
        costs = [float(event.get("save_s", 0)) for event in islice(log.newest("saved"), LAST_SAVES)]
        if costs:
            return max(costs)
    return 0.0
