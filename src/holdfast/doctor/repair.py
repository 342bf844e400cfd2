"""Repair: puts the mess in a run's directory right, as an attempt of the run: it owns the run meanwhile, or is refused.

No checkpoint that could be read is moved or removed. Each change is one rename, or the removal of what no reader knows.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import cache
from pathlib import Path

from .. import disk, owner
from ..errors import UsageError
from ..store import attempt as attempts
from ..store.attempt import Attempt
from ..store.checkpoint import Checkpoint
from ..store.claiming import strangers
from ..store.committing import writing
from ..store.store import Store
from .mess import ASIDE, BACK, FENCE, LEFT, NAMED, POINT, REMOVE, REPLACE, Mess, find


def repair(root: Path) -> list[Mess]:
    """Put all of it right, and return what it was; journal each. What stays is returned, too.

    Raises:
        UsageError: an attempt of the run is or may be alive.
    """
    require_nobody(root)
    sound = cache(is_sound)  # each is read once
    found = find(root, sound=sound)
    if all(mess.cure in LEFT for mess in found):
        return found
    store = Store(root)
    for mess in found:
        if mess.cure == REPLACE:  # before the claim, which reads it: no attempt can have begun without
            with writing(root, "repair the run"):
                _put_aside(root, mess.path)
    attempt = store.claim()  # fences all earlier attempts: what they left goes; and writes run.json again
    try:
        done = [mess for mess in found if mess.cure in (FENCE, NAMED, REPLACE)]
        for mess in done:
            _record(attempt, mess)
        for mess in find(root, own=attempt.number, sound=sound):
            if mess.cure not in LEFT:
                with writing(root), attempt.acting("repair"):
                    CURES[mess.cure](store, mess)
                _record(attempt, mess)
            done.append(mess)
    finally:
        store.close()
    return done


def require_nobody(root: Path) -> None:
    """
    Raises:
        UsageError: an attempt of the run is or may be alive: it puts its own things right.
    """
    for log in strangers(root) if os.environ.get("HOLDFAST_TAKE_OVER") != "1" else ():
        raise UsageError(
            f"{root}: attempt {log.attempt} may still be running: {owner.describe(log.owner)}; nothing was changed. "
            "Stop it first; if you know that it is gone, set HOLDFAST_TAKE_OVER=1"
        )


def is_sound(path: Path) -> bool:
    """Whether every byte of a checkpoint is on the medium as it was committed.

    Raises:
        Unreadable, OSError: it cannot be read now.
    """
    return not any(Checkpoint(path).problems(cold=True))


def _record(attempt: Attempt, mess: Mess) -> None:
    attempt.record("repaired", path=str(mess.path), what=mess.what, cure=mess.cure)
    attempt.flush(sync=True)


def _remove(_: Store, mess: Mess) -> None:
    disk.remove_tree(mess.path)
    disk.sync_dir(mess.path.parent)


def _put_aside(root: Path, path: Path) -> None:
    disk.make_dirs(root / "quarantine")
    attempts.to_quarantine(root, path)
    disk.sync_dir(root)


def _set_aside(store: Store, mess: Mess) -> None:
    store.quarantine(Checkpoint(mess.path), mess.word)


def _point(store: Store, _: Mess) -> None:
    store.point()


def _bring_back(store: Store, mess: Mess) -> None:
    """Move it by way of the attempt's room: if this is cut short there, the next attempt moves it to quarantine/."""
    attempt = store.claim()
    passing = attempt.room / f"quarantine-{mess.path.name}"
    name = Checkpoint(mess.path).name
    disk.rename_new(mess.path, passing)
    disk.sync_dir(attempt.room)
    disk.sync_dir(mess.path.parent)
    attempts.publish(attempt, passing, name)
    store.point()


def _nothing(_: Store, __: Mess) -> None:
    """The claim has done it."""


CURES: dict[str, Callable[[Store, Mess], None]] = {
    REMOVE: _remove,
    FENCE: _nothing,
    NAMED: _nothing,
    REPLACE: _nothing,
    ASIDE: _set_aside,
    POINT: _point,
    BACK: _bring_back,
}
