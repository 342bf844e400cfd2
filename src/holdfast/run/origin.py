"""Origin: where an attempt's state came from: a checkpoint, or the objects of the last block in
this process.

A second block of the same run in one process continues with the live objects, if no other attempt
came between. The script's changes between two blocks are kept, as without Holdfast, and so are its
draws of random numbers.
"""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import msgspec

from ..errors import UsageError
from ..state.captured import AttributeSet, capture_objects
from ..state.tree import flatten
from ..stateful.objects import OBJECTS, is_generator
from ..stateful.tracked import StateDigests, Tracked
from ..store.attempt import Attempt
from ..store.checkpoint import Checkpoint
from .position import RunProgress

MOST_RUNS = 8
MOST_MEMBERS = 1000
MOST_BYTES = 1 << 20  # of a container that is kept alive until the next block
_CONTAINERS = (dict, list)  # they take no weak references; nor do NumPy's generators


class EndedBlock(NamedTuple):
    """The end of a block, and the checkpoint that holds the state at that end."""

    checkpoint: str
    attempt: int  # that saved it
    # what each name tracked; None: that cannot be told
    objects: Mapping[str, Callable[[], Any] | None]


class Reentry(NamedTuple):
    """A new block over the objects of the last one."""

    ended: EndedBlock
    keeps_vars: bool  # it is the same Run
    unknown: str  # the name of an object that cannot be told from another one; empty: there is none


class AttemptOrigin(msgspec.Struct):
    """Where this attempt's state came from: the checkpoint that it restores (None: a fresh
    start), and rejected ones.
    """

    checkpoint: Checkpoint | None = None
    memory: dict[str, Any] = {}  # what the checkpoint stored of the run itself
    again: Reentry | None = None  # set: the live objects count, and were not restored
    rejected: list[tuple[str, str]] = []  # name of a newer checkpoint, and the reason
    # options in the script that the checkpoint's values replaced
    overridden_options: dict[str, list[str]] = {}
    baseline: StateDigests | None = (
        None  # digests of the restored state, until the first loop begins
    )
    generators: dict[str, Any] = {}  # copies of the tracked generators in that state

    def note_candidate(self, checkpoint: Checkpoint | None) -> None:
        """Note `checkpoint` as the one that this attempt is about to restore."""
        self.checkpoint = checkpoint

    def note_restored(
        self, checkpoint: Checkpoint, memory: dict[str, Any], again: Reentry | None = None
    ) -> None:
        self.checkpoint, self.memory, self.again = checkpoint, memory, again

    def reject(self, name: str, why: str) -> None:
        self.rejected.append((name, why))

    def override_options(self, found: dict[str, list[str]]) -> None:
        """Note the script's optimizer options before the first restore, which may overwrite
        them and then fail.
        """
        self.overridden_options = found

    def set_baseline(
        self, baseline: StateDigests | None, generators: dict[str, Any] | None = None
    ) -> None:
        """Set the state that must stay unchanged until the first loop begins; None: the loop has
        begun.

        `generators`: copies of the tracked generators in that state; None: those that are known.
        """
        self.baseline = baseline
        self.generators = self.generators if generators is None else generators


# by directory and thread: how this process's last block of a run ended
_ended: dict[tuple[str, int], EndedBlock] = {}


def note_end(
    attempt: Attempt, tracked: Tracked, progress: RunProgress, checkpoint: Checkpoint | None
) -> None:
    """Note that the block has ended without an error, at the end of this process's own loops.

    `checkpoint`: where the attempt began.
    """
    position, number = progress.position, attempt.number
    if not progress.steps_here:
        if checkpoint is None or not position.targets or position.targets != progress.walks.totals:
            return  # the checkpoint may lie beyond the end of this block's loops
        number = checkpoint.head.attempt
    inside = {path.partition("/")[0] for path in tracked.self_restoring_objects() if "/" in path}
    objects = {
        name: _reference_to(each, bare=name not in inside)
        for name, each in _all_objects(tracked).items()
    }
    while len(_ended) >= MOST_RUNS:
        del _ended[next(iter(_ended))]
    _ended[_directory_key(attempt.root)] = EndedBlock(
        str(position.checkpoint_name), number, objects
    )


def take_ended_block(
    path: str | os.PathLike[str], tracked: Tracked, *, same_run: bool
) -> Reentry | None:
    """Return, once, how the last block at `path` ended;
    None if there is none, or it tracked other objects.
    """
    ended = _ended.pop(_directory_key(path), None)
    if ended is None:
        return None
    now = _all_objects(tracked)
    if ended.objects.keys() != now.keys() or not (same_run or ended.objects):
        return None
    pairs = [(held, now[name]) for name, held in ended.objects.items() if held is not None]
    if not all(_is_same(held(), each) for held, each in pairs):
        return None
    unknown = next((name for name, held in ended.objects.items() if held is None), "")
    return Reentry(ended, same_run, "" if same_run else unknown)


def _all_objects(tracked: Tracked) -> dict[str, Any]:
    """Return the tracked objects and those in their containers and attributes,
    which a script may replace.
    """
    return {**tracked.self_restoring_objects(), **tracked.objects}


def _directory_key(path: str | os.PathLike[str]) -> tuple[str, int]:
    return os.path.realpath(path), threading.get_ident()


def _reference_to(value: Any, *, bare: bool) -> Callable[[], Any] | None:
    """Return a reference to the object, weak if possible; None if a strong one would keep too much
    alive.

    `bare`: it contains no object with its own state.
    """
    if isinstance(value, AttributeSet):
        target, names = _reference_to(value.target, bare=bare), value.names
        return None if target is None else lambda: AttributeSet(target(), names)
    # a module's names stay anyway
    if is_generator(value) or (type(value) is dict and "__builtins__" in value):
        return lambda: value
    if isinstance(value, _CONTAINERS):
        return (lambda: value) if bare and _is_small(value) else None
    try:
        return weakref.ref(value)
    except TypeError:
        return None


def _is_small(value: Any) -> bool:
    try:
        leaves = flatten({"value": capture_objects(value, OBJECTS)}).leaves.values()
    except UsageError:  # a defaultdict, whose factory cannot be saved: the live one keeps it
        return len(value) <= MOST_MEMBERS
    return sum(block.data.nbytes for block in leaves) <= MOST_BYTES


def _is_same(before: Any, now: Any) -> bool:
    if isinstance(before, AttributeSet) and isinstance(now, AttributeSet):
        return before.target is now.target and before.names == now.names
    return before is now
