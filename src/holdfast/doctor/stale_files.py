"""Stale files: finds useless files in a run's directory,
and says what will happen to each. It changes nothing.
"""

from __future__ import annotations

import os
import re
import shlex
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from .. import disk, journal, scan
from ..errors import Damaged, NotFound, StoreError
from ..journal import Log
from ..store import claiming
from ..store.attempt import is_checkpoint, read_run
from ..store.checkpoint import Checkpoint
from ..store.checkpoint_index import CheckpointIndex
from ..store.format import MANIFEST, parse_name
from .files import FORGOTTEN_S, NAME

STARTS = "the next start removes it"
REMOVE = "nothing needs it: remove it"
SAVES = "it is no checkpoint: remove it, or the save of that step moves it to quarantine/"
RENEWS = "the next save renews it"
LATER = "ask again later"
DAMAGED = "the next start that comes to it takes a mirror's copy, or moves it to quarantine/"
DAMAGE = ("damaged", "incomplete")  # reasons that a whole checkpoint overcomes
_QUARANTINED = re.compile(r"(step-\d{9,18}(?:-end)?)-([a-z-]+?)(?:-\d+)?")
_IN_A_ROOM = {
    "deleting-": "a checkpoint that it was removing",
    "quarantine-": "a checkpoint on its way to or from quarantine/",
    "fenced-": "what an even older attempt left",
    "link-": "a link that it was making",
    "step-": "a checkpoint that it did not complete",
}


class StaleFile(NamedTuple):
    path: Path
    what: str
    todo: str
    stops: bool = False  # every start is refused until it is repaired


def find_stale_files(root: Path) -> list[StaleFile]:
    """Return the problems of the run at `root`,
    where no attempt may be alive; unreadable files included.
    """
    index = CheckpointIndex(root)
    return [
        *_run_file(index),
        *_attempt_leftovers(root),
        *_unfinished_drafts(root),
        *_blocking_paths(root),
        *_quarantined(root),
        *_broken_links(index),
    ]


def _run_file(index: CheckpointIndex) -> Iterator[StaleFile]:
    path = index.root / "run.json"
    try:
        read_run(index.root)
    except Damaged:
        move = _move_command(path, path.with_name("run.json.odd"))
        todo = f"`{move}`; the next start writes it again"
        yield StaleFile(path, "is not what Holdfast wrote, and no start goes on", todo, stops=True)
    except OSError as error:
        yield _unreadable_file(path, error)
    if not scan.lexists(path) and index.run() is not None:
        yield StaleFile(
            path, "is gone", "the next start writes it again, from the newest checkpoint"
        )


def _attempt_leftovers(root: Path) -> Iterator[StaleFile]:
    for number in scan.names(root / "attempts"):
        room = root / "attempts" / number
        for child in scan.names(room) if number.isdecimal() and not scan.is_symlink(room) else ():
            if child != f"attempt-{number}.jsonl":
                what = next(
                    (what for word, what in _IN_A_ROOM.items() if child.startswith(word)), "a file"
                )
                yield StaleFile(
                    room / child, f"{what}, left by attempt {number}, which has ended", STARTS
                )


def _unfinished_drafts(root: Path) -> Iterator[StaleFile]:
    for path in claiming.stale_claims(root):
        yield StaleFile(path, "the draft of a start that was killed", STARTS)
    for pattern, what in (
        (".run-*.json", "the draft of a start that was killed"),
        (f"{NAME}-*", "left by a `holdfast doctor` that was killed"),
        ("pins/.*.part", "left by a `holdfast pin` that was killed"),
    ):
        for path in scan.glob(root, pattern):
            if time.time() - path.lstat().st_mtime > FORGOTTEN_S:
                yield StaleFile(path, what, REMOVE)
    for path in scan.glob(root, ".*.new"):
        if disk.is_abandoned(path):
            yield StaleFile(path, "a file that its writer, which is gone, did not complete", REMOVE)


def _blocking_paths(root: Path) -> Iterator[StaleFile]:
    """Yield paths that have a checkpoint's name but can never be read as one:
    each would block its step.
    """
    folder = root / "checkpoints"
    for path in (folder / name for name in scan.names(folder) if parse_name(name) is not None):
        try:
            has_manifest = is_checkpoint(path)
            is_link = scan.is_symlink(path) and not scan.exists(path)
            why = _incomplete(path) if has_manifest else None
        except Damaged as error:
            yield StaleFile(path, f"its manifest is damaged: {error}", DAMAGED)
            continue
        except (StoreError, OSError) as error:
            yield _unreadable_file(path, error)
            continue
        if is_link:
            yield StaleFile(path, f"is a link to {os.readlink(path)}, which is gone", SAVES)
        elif not has_manifest:
            yield StaleFile(path, f"has no {MANIFEST}: a copy that did not end", SAVES)
        elif why is not None:
            yield StaleFile(path, why, DAMAGED)


def _unreadable_file(path: Path, error: Exception) -> StaleFile:
    return StaleFile(path, f"cannot be read now: {error}", LATER)


def _incomplete(path: Path) -> str | None:
    """Return which file of a checkpoint is missing or has another length; None if all are right.

    Raises:
        Damaged: its manifest is.
        StoreError, OSError: it cannot be read now.
    """
    with suppress(NotFound):
        for name, file in Checkpoint(path).manifest.files.items():
            try:
                size = os.lstat(path / name).st_size
            except (FileNotFoundError, NotADirectoryError):
                return f"lacks {name}: a copy that did not end, or a file that was deleted"
            if size != file.size_bytes:
                return f"{name} has {size} bytes of {file.size_bytes}: a copy that did not end"
    return None


def _quarantined(root: Path) -> Iterator[StaleFile]:
    """Yield checkpoints that were quarantined as damaged and are whole now;
    only their layout is checked.
    """
    taken, logs = {*scan.names(root / "checkpoints")}, journal.logs(root)
    for path in scan.glob(root / "quarantine", "step-*"):
        named = _QUARANTINED.fullmatch(path.name)
        if named is None or named[2] not in DAMAGE or named[1] in taken or scan.is_symlink(path):
            continue
        try:
            is_back = _is_in_lineage(root, path, named[1], logs) and _is_whole(path)
        except (StoreError, OSError) as error:
            yield _unreadable_file(path, error)
            continue
        if is_back:
            move = _move_command(path, root / "checkpoints" / named[1])
            todo = f"if `holdfast verify {shlex.quote(str(path))}` finds every byte right: `{move}`"
            yield StaleFile(path, "lacks no file, and the run has not gone on without it", todo)


def _move_command(path: Path, to: Path) -> str:
    return shlex.join(["mv", str(path), str(to)])


def _is_in_lineage(root: Path, path: Path, name: str, logs: Sequence[Log]) -> bool:
    """Whether that checkpoint is in the run's lineage:
    no later attempt resumed from an earlier place.
    """
    try:
        head = Checkpoint(path).head
        ours = str(head.name) == name and head.run == (
            read_run(root) or CheckpointIndex(root).run()
        )
    except (Damaged, NotFound):
        return False
    later = (log.restored for log in logs if log.attempt > head.attempt)
    return ours and all(restored is None or restored >= head.name.order for restored in later)


def _is_whole(path: Path) -> bool:
    try:
        Checkpoint(path).check_layout()
    except (Damaged, NotFound):
        return False
    return True


def _broken_links(index: CheckpointIndex) -> Iterator[StaleFile]:
    for link, find_it in (("latest", index.latest), ("best", lambda: index.best(None))):
        path = index.root / "checkpoints" / link
        leads = os.readlink(path) if scan.is_symlink(path) else None
        with suppress(StoreError, OSError):  # its target is unknown
            try:
                wanted = find_it().path.name
            except NotFound:
                wanted = None
            if leads != wanted and (leads is not None or not scan.lexists(path)):
                yield StaleFile(
                    path, f"leads to {leads or 'nothing'} instead of {wanted or 'nothing'}", RENEWS
                )
