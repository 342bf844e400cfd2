"""Unproven: a loader whose replay nobody promises. A run is saved where no batch of it is read again: at epochs' ends.

A drill proves such a loader when a killed run has resumed in the middle of its epochs and ended with the same bits. It
leaves the digest of the loader's code in a file beside the run's directory, for the next start.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from .. import disk
from ..data import promise
from ..data.advice import Advice, other_samples
from ..interval import Mark
from ..store import format
from . import settings

if TYPE_CHECKING:
    from .session import Session

EVENT = "unproven"  # of a drilled run's journal
LEAST_STEPS = 1000  # so many steps a save waits for an epoch's end at least, however short its interval in steps
_FILE = "{}-replays.json"  # beside the run's directory: the digests of loaders that a drill has proven
_PROVEN = msgspec.json.Decoder(dict[str, str])


def proven(path: Path) -> dict[str, str]:
    """Return the digests of the loaders' code that a drill has proven for the run at `path`, with their names."""
    try:
        return _PROVEN.decode(_file(path).read_bytes())
    except (OSError, msgspec.DecodeError):
        return {}


def prove(path: Path, found: dict[str, str]) -> Path:
    """Add to what is proven for the run at `path`; return the file."""
    disk.make_dirs(path.parent)
    disk.replace_with(_file(path), [format.json_bytes(proven(path) | found)])
    return _file(path)


def _file(path: Path) -> Path:
    return path.with_name(_FILE.format(path.name))


def noted(session: Session, name: str, unknown: Any) -> None:
    """Note whether all ranks can resume in the middle of the loader `name`. The first loader of that name decides."""
    progress, ranks = session.progress, session.ranks
    if not ranks.alone and name in progress.unproven:
        return

    def mine() -> bytes:
        return b"" if unknown is None else f"{promise.digest_of(unknown)} {promise.name_of(unknown)}".encode()

    def chosen(several: list[bytes]) -> bytes:
        known = proven(session.options.path) if any(several) else {}
        return next((each for each in several if each and each[:32].decode() not in known), b"")

    kind = progress.unproven[name] = ranks.collect("a loader", mine, chosen).decode()
    if kind and session.drilled.digests:
        session.attempt.record(EVENT, code=kind[:32], kind=kind[33:], run=str(settings.own_dir(session.options.path)))


class Waiting:
    """The saves that wait for the end of an epoch, because no start is sure to go on from where they are due."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._told: set[str | tuple[str, str]] = set()
        self.since: Mark | None = None  # when the first of them was due
        self._is_short = False  # it waits for the next one that is due, and no longer

    def done(self) -> None:
        """Note that a save has begun, and tell of a checkpoint from which no start may be able to go on."""
        self.since = None
        self.tell()
        self.tell_inside()

    def decide(self, reason: str | None, now: Mark, *, at_end: bool) -> str | None:
        """Return why to save here, None for not: `reason`, unless the save has to wait, or has waited until now."""
        if at_end:
            return reason or (None if self.since is None else "due")
        if reason is None or not self._session.progress.unproven_here:
            return reason
        self.tell()
        if self._session.progress.lives_on:  # an epoch's end is no better place
            return reason
        if self.since is None:
            self.since = now
            session = self._session
            idle = session.ranks.lead("a save", lambda: b"yes" if _was_idle(session, "killed") else b"")
            self._is_short = bool(idle) or not (self._by_steps and session.position.several_epochs)
            return None
        return reason if self._is_short or now.step - self.since.step >= LEAST_STEPS else None

    @property
    def _by_steps(self) -> bool:
        every = self._session.options.every
        return getattr(every, "steps", None) is not None

    def tell(self) -> None:
        """Say, once for each loader, where this run is saved and what changes that."""
        kind = self._session.progress.unproven_here
        name = self._session.position.current or ""
        lives = self._session.progress.lives_on
        if not kind or (name, "lives") in self._told or (name in self._told and not lives):
            return
        self._told.add((name, "lives") if lives else name)
        if lives:
            self._told.add("")
            self._session.tell(
                f"a {kind[33:]}, the loader {name!r}, keeps an iterator from epoch to epoch ({lives}), which no start "
                f"can bring back: after its first epoch a resume will be refused. {other_samples()}",
                kind="unproven_loader",
                name=name,
                code=kind[:32],
            )
            return
        advice = Advice(
            "a proof",
            f"Prove it once: holdfast drill -- python {Path(sys.argv[0]).name}; or give it state_dict() and "
            "load_state_dict()",
        )
        self._session.tell(
            f"nobody promises that a {kind[33:]}, the loader {name!r}, yields the same batches when it is read again: "
            f"this run is saved at the ends of its epochs. {advice}",
            kind="unproven_loader",
            name=name,
            code=kind[:32],
        )

    def tell_inside(self) -> None:
        """Say, once, that a checkpoint in the middle of an epoch may need its reader's word."""
        kind = self._session.progress.unproven_here
        if kind and "" not in self._told:
            self._told.add("")
            self._session.tell(
                f"saved in the middle of an epoch of a {kind[33:]}, whose replay nobody promises: a resume from there "
                f"may be refused. {other_samples()}",
                kind="unproven_save",
            )


def stops_unsaved(session: Session) -> bool:
    """Whether a stop here saves nothing: the next start goes on from an epoch's end, which is exact.

    So that a run gets on whose attempts are all shorter than an epoch, the second of them in a row saves here.
    """
    progress = session.progress
    if not progress.unproven_here or progress.lives_on or not session.position.several_epochs:
        return False
    if session.aim is not None:
        return False

    def wanted() -> bytes:
        saved = session.saves.saved
        if saved is not None and saved.phase != "end":
            return b""
        return b"" if _was_idle(session, "stop") and not session.saves.count else b"yes"

    return bool(session.ranks.lead("a stop", wanted))


def _was_idle(session: Session, how: str) -> bool:
    """Whether the attempt before ended this way, and has saved nothing. Rank 0 knows."""
    before = next(reversed(session.earlier_logs), None)
    ended = before is not None and (before.last.get("event") if before.closed else "killed") == how
    return before is not None and ended and not any(before.newest("saved"))
