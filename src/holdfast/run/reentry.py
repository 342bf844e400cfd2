"""Reentry: a second block of the same run in one process continues with the live objects, if no other attempt came
between.

The script's changes between two blocks are kept, as without Holdfast, and so are its draws of random numbers.
"""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Callable
from typing import Any

from ..errors import UsageError
from ..state.captured import Attributes, captured
from ..state.tree import flatten
from .objects import OBJECTS, is_generator
from .origin import Ended, Reentry
from .session import Session
from .tracked import Tracked

MOST_RUNS = 8
MOST_MEMBERS = 1000
MOST_BYTES = 1 << 20  # of a container that is kept alive until the next block
_CONTAINERS = (dict, list)  # they take no weak references; nor do NumPy's generators

_ended: dict[tuple[str, int], Ended] = {}  # by directory and thread: how this process's last block of a run ended


def note_end(session: Session) -> None:
    """Note that the block has ended without an error, at the end of this process's own loops."""
    position, totals, checkpoint = session.position, session.progress.walks.totals, session.origin.checkpoint
    if session.progress.steps_here:
        attempt = session.attempt.number
    elif checkpoint is not None and position.targets and position.targets == totals:
        attempt = checkpoint.head.attempt
    else:  # the checkpoint may lie beyond the end of this block's loops
        return
    inside = {path.partition("/")[0] for path in session.tracked.inside() if "/" in path}
    objects = {name: _held(each, bare=name not in inside) for name, each in _all(session.tracked).items()}
    while len(_ended) >= MOST_RUNS:
        del _ended[next(iter(_ended))]
    _ended[_key(session.path)] = Ended(str(session.here), attempt, objects)


def take(path: str | os.PathLike[str], tracked: Tracked, *, same_run: bool) -> Reentry | None:
    """Return, once, how the last block at `path` ended; None if there is none, or it tracked other objects."""
    ended = _ended.pop(_key(path), None)
    if ended is None:
        return None
    now = _all(tracked)
    if ended.objects.keys() != now.keys() or not (same_run or ended.objects):
        return None
    pairs = [(held, now[name]) for name, held in ended.objects.items() if held is not None]
    if not all(_is_same(held(), each) for held, each in pairs):
        return None
    unknown = next((name for name, held in ended.objects.items() if held is None), "")
    return Reentry(ended, same_run, "" if same_run else unknown)


def _all(tracked: Tracked) -> dict[str, Any]:
    """Return the tracked objects and those in their containers and attributes, which a script may replace."""
    return {**tracked.inside(), **tracked.objects}


def _key(path: str | os.PathLike[str]) -> tuple[str, int]:
    return os.path.realpath(path), threading.get_ident()


def _held(value: Any, *, bare: bool) -> Callable[[], Any] | None:
    """Return a reference to the object, weak if possible; None if a strong one would keep too much alive.

    `bare`: it contains no object with its own state.
    """
    if isinstance(value, Attributes):
        target, names = _held(value.target, bare=bare), value.names
        return None if target is None else lambda: Attributes(target(), names)
    if is_generator(value) or (type(value) is dict and "__builtins__" in value):  # a module's names stay anyway
        return lambda: value
    if isinstance(value, _CONTAINERS):
        return (lambda: value) if bare and _is_small(value) else None
    try:
        return weakref.ref(value)
    except TypeError:
        return None


def _is_small(value: Any) -> bool:
    try:
        leaves = flatten({"value": captured(value, OBJECTS)}).leaves.values()
    except UsageError:  # a defaultdict, whose factory cannot be saved: the live one keeps it
        return len(value) <= MOST_MEMBERS
    return sum(block.data.nbytes for block in leaves) <= MOST_BYTES


def _is_same(before: Any, now: Any) -> bool:
    if isinstance(before, Attributes) and isinstance(now, Attributes):
        return before.target is now.target and before.names == now.names
    return before is now
