"""Going back: before the restore, checkpoints newer than the step to which the run goes back are set aside. On
rank 0.
"""

from __future__ import annotations

from contextlib import suppress
from typing import Any

from ..errors import Damaged, NotFound
from ..store.checkpoint import Checkpoint
from ..store.format import Name, parse_name
from ..terminal import say
from .damaged import reading, require_sound, set_aside
from .position import Position
from .resume import require_wanted
from .session import Session
from .tracked import RESERVED


def begin_from_places(session: Session) -> bytes:
    """On rank 0: set aside checkpoints that are not in the run's lineage.

    Before the run goes back, fetch the newest checkpoint: it shows whether the run went back before.
    """
    if session.mirrors is not None:
        places, step = session.mirrors.fetcher, session.options.go_back
        with reading(session.store.root):
            places.set_strays_aside()
            if step is not None:
                places.newer_than(next(places.store.index.newest_first(), None))
                places.fetch(step, finite=session.options.stop_on_nan)
    return b""


def go_back(session: Session) -> bytes:
    """On rank 0: set aside checkpoints newer than the step to which the run goes back.

    A restart does not repeat that.
    """
    step, store = session.options.go_back, session.store
    if step is None:
        return b""
    with reading(store.root):
        if _went_back_before(session, step):
            say(f"{session.path}: went back to step {step} before; go_back={step} is not done twice")
            return b""
        target = store[_to_go_back_to(session, step)]
        require_sound(target)
        require_wanted(session, target)
    to = _name(target)
    newer = [checkpoint for checkpoint in store.checkpoints() if _name(checkpoint).order > to.order]
    for checkpoint in newer:
        set_aside(store, checkpoint, "went-back", f"the run went back to step {step}")
    names = [checkpoint.path.name for checkpoint in newer]
    if session.mirrors is not None:
        session.mirrors.fetcher.go_back(to)
    session.attempt.record("went_back", step=to.step, phase=to.phase, names=names)
    say(f"{session.path}: goes back to step {step}; moved to quarantine: {', '.join(names) or 'nothing'}")
    return b""


def _name(checkpoint: Checkpoint) -> Name:
    """Return its name from its directory: its manifest may be unreadable."""
    return parse_name(checkpoint.path.name) or checkpoint.head.name


def _to_go_back_to(session: Session, step: int) -> str | int:
    """With `stop_on_nan`, the newest checkpoint of that step whose weights are finite, if there is one."""
    finite: list[str] = []
    store = session.store
    for name in store.index.names() if session.options.stop_on_nan else ():
        with suppress(Damaged, NotFound):
            finite += [str(name)] if name.step == step and not store.index.checkpoint(name).head.not_finite else []
    return finite[-1] if finite else step


def _went_back_before(session: Session, step: int) -> bool:
    """Whether the newest checkpoint descends from that step.

    If it cannot be read, an older one and the journal decide. With `stop_on_nan` the newest one with finite weights
    decides: no start resumes from another one, so that going back must be repeated.
    """
    told: set[Any] = set()
    for checkpoint in reversed(session.store.checkpoints()):
        try:
            if session.options.stop_on_nan and checkpoint.head.not_finite:
                continue
            memory = checkpoint.load(part=RESERVED, placeholders=True)  # the user's types are placeholders
            return step in told or step in Position.of(memory["position"]).went_back
        except (Damaged, NotFound, LookupError, TypeError):  # the restore reports it
            continue
        except OSError:
            told = {event.get("step") for log in session.earlier_logs for event in log.newest("went_back")}
    return step in told
