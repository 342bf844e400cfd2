"""Noted: of a drilled run, what its witness sees goes into the journal."""

from __future__ import annotations

from typing import Any

from ..store import format
from . import datasets
from .session import Session, Source


def note(session: Session, at: str) -> None:
    """Journal what the script's variables hold: `at` the "begin" of the first loop, or at a safe "point"."""
    witness = session.witness
    if witness is None or (at == "begin" and witness.begun):
        return
    witness.begun = True
    roots: dict[str, Any] = {f"loader {name!r}": source.loader for name, source in session.sources.items()}
    roots |= session.tracked.objects
    own = {f"run.vars.{name}": value for name, value in session.vars.state_dict().items()}
    position = session.position
    witness.read_by(source.loader for source in session.sources.values())
    facts = witness.note(roots, own) | {"datasets": {name: _read(source) for name, source in session.sources.items()}}
    if at == "begin":
        facts["state"] = format.digest(format.json_bytes(session.tracked.digests().of))[:16]
    session.attempt.record("visible", at=at, step=position.step, phase=position.phase, **facts)


def _read(source: Source) -> dict[str, list[str]]:
    """What the source's dataset draws and changes as it is read."""
    try:
        return datasets.describe(source.loader)
    except Exception:  # a script's objects may raise what they like
        return {}
