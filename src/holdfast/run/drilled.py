"""Drilled: what an attempt in a drill does at its safe points: it saves, waits for signals and journals its state.

The drill compares two runs by these journal lines. To write them, nothing is drawn, iterated or changed.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

from ..store import format
from ..store.format import Name
from ..terminal import mark
from .position import LoaderSource
from .ranks import merged
from .session import Session
from .tracked import RESERVED, digests

MOST_S = 30.0  # longest wait; a drill that has died sends no signal
_NAP_S = 0.001


# Where to save, and where to wait for the drill's signal


def is_at_once(session: Session) -> bool:
    """Whether a save here must be durable before the run continues: a later save may replace one in the background."""
    aim = session.aim
    return aim is not None and session.here in (aim.brink, aim.place if aim.exact else None)


def await_stop(session: Session) -> None:
    """At the place where the drill stops the run, wait for the drill's signal."""
    if session.aim is not None and session.here == session.aim.hold:
        _wait(session)


def await_kill(session: Session) -> None:
    """Wait to be killed before the run ends: a short run would end before the drill has seen the save."""
    aim = session.aim
    if aim is not None and session.here == aim.brink:
        place, saves = Name(*aim.place).order, session.saves
        _wait(session, lambda: saves.saved is not None and saves.saved.order >= place)


def _wait(session: Session, of_use: Callable[[], bool] = lambda: True) -> None:
    if session.ranks.alone:
        session.saves.land()  # the save in flight may need the loop to continue
    until = time.monotonic() + MOST_S
    while session.leads and session.stop.reason is None and of_use() and time.monotonic() < until:
        time.sleep(_NAP_S)


# What the drill compares

# Sums of metrics (a metric may be a duration), what a clock says, and which objects somebody held at that moment.
PROCESSES_OWN = ("means", "durations", "bound_anew")


def show(session: Session, epoch: int | None) -> None:
    """Journal the digests of the state, and mark the place in the output. `epoch`: the one that just ended."""
    memory = session.memory(probe=False)
    for name in PROCESSES_OWN:
        memory.pop(name, None)
    found = digests_of_each({**session.tracked.capture(), RESERVED: memory})
    at = session.position.epoch if epoch is None else epoch
    session.record("digests", epoch=at, leaves=merged(session.ranks, found))
    note(session, "point")
    session.attempt.flush()
    mark_output(session)


def digests_of_each(captured: Mapping[str, Any]) -> dict[str, str]:
    """Digest each object separately, so that a value shared by two objects is compared by its numbers: after a resume
    it may be two values.
    """
    return {key: digest for name, each in captured.items() for key, digest in digests({name: each}).of.items()}


def mark_output(session: Session) -> None:
    """Write the run's position as a line into the output. Several ranks share one output, so they write none."""
    if session.drilled.marks and session.ranks.alone:
        step, phase = session.here
        mark(f"\x1eholdfast {step} {phase} {session.attempt.number}\x1e\n")


def note(session: Session, at: str) -> None:
    """Journal the values of the script's variables: `at` the "begin" of the first loop, or at a safe "point"."""
    witness = session.witness
    if witness is None or (at == "begin" and witness.begun):
        return
    sources = session.progress.sources
    roots: dict[str, Any] = {f"loader {name!r}": source.loader for name, source in sources.items()}
    roots |= session.tracked.objects
    own = {f"run.vars.{name}": value for name, value in session.tracked.captured_variables().items()}
    witness.read_by(source.loader for source in sources.values())
    facts = witness.note(roots, own) | {"datasets": {name: _read(source) for name, source in sources.items()}}
    if at == "begin":
        facts["entered"] = session.watch.entered_in
        facts["state"] = format.digest(format.json_bytes(session.tracked.digests().of))[:16]
    session.record("visible", at=at, **facts)


def _read(source: LoaderSource) -> dict[str, list[str]]:
    """Return the random functions that the source's dataset calls, and the attributes that it changes when read."""
    from . import datasets

    try:
        return datasets.describe(source.loader)
    except Exception:  # a script's objects may raise anything
        return {}
