"""Attempt: one process's right to write into a run, and its loss.

Attempt n owns the directory `attempts/<n>/` and every change it makes to the run starts from there: a checkpoint is
built in it and renamed out, a pruned or quarantined one is renamed into it first. Whoever comes next fences it by
removing that directory; from then on every such rename fails, however late the ghost wakes up.
"""

from __future__ import annotations

import errno
import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import msgspec

from .. import disk, journal, owner
from ..errors import Damaged, NoSpace, NotFound, StoreError, Superseded, UsageError
from ..journal import Event
from . import places
from .format import MANIFEST, parse_name

JOIN_S = 10.0  # that a process waits to see what another one made: longer than network file systems cache a directory


class Attempt:
    """The living attempt of a run: its private room and its journal."""

    def __init__(self, root: Path, number: int, run: str) -> None:
        self.root, self.number, self.run = root, number, run
        self.room = root / "attempts" / str(number)
        self.journal = self.room / f"attempt-{number}.jsonl"
        self._waiting: list[Event] = []
        self._turn = threading.Lock()  # a save in flight writes to the journal too
        self._pid = os.getpid()

    @property
    def inherited(self) -> bool:
        """Whether this process is a forked child of the one that owns the attempt."""
        return os.getpid() != self._pid

    def record(self, event: str, /, **facts: Any) -> None:
        """Remember an event; it reaches the journal with the next `flush`."""
        self._waiting.append({"event": event, "time": time.time(), **facts})

    def flush(self, *, sync: bool = False) -> None:
        """Write what was recorded, in order; with `sync` it survives a power loss.

        Raises:
            Superseded: a later attempt owns the run.
        """
        if self._waiting:
            with self.acting("write the journal"), self._turn:
                count = len(self._waiting)
                journal.append(self.journal, self._waiting[:count], sync=sync)
                del self._waiting[:count]

    def show(self) -> None:
        """As `flush`, unless another thread is about to."""
        if self._waiting and not self._turn.locked():  # tried instead, and taken, Ctrl-C could leave it so
            self.flush()

    def close(self, event: str, /, **facts: Any) -> None:
        """Say good-bye: with this as its last line, the attempt counts as gone."""
        self.record(event, **facts)
        self.flush(sync=True)

    @contextmanager
    def acting(self, what: str) -> Iterator[None]:
        """Turn what the system says into what it means for this attempt.

        Raises:
            UsageError: a forked child would act for its living parent, or the attempt's room is a symbolic link.
        """
        if self.inherited:
            raise UsageError(
                f"{self.root}: attempt {self.number} is process {self._pid}'s; its forked children only read"
            )
        places.refuse_link(self.room.parent)
        places.refuse_link(self.room)
        try:
            yield
        except OSError as error:
            raise self._meaning(what, error) from error
        except NotFound:  # a checkpoint that this attempt counts on: perhaps its successor has removed it
            self.require()
            raise

    def require(self) -> None:
        """Raise Superseded when a later attempt owns the run."""
        if not self.room.is_dir():
            raise self._superseded()

    def _superseded(self) -> Superseded:
        return Superseded(f"{self.root}: attempt {self.number} was superseded by a later one; it writes nothing more")

    def _meaning(self, what: str, error: OSError) -> StoreError:
        if error.errno in (errno.ENOENT, errno.ESTALE) and not self.room.parent.is_dir():
            return StoreError(f"{self.root}: cannot {what}: the run's directory is gone")
        if error.errno in (errno.ENOENT, errno.ESTALE) and not self.room.is_dir():
            return self._superseded()
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            return NoSpace(f"{self.root}: no space left to {what}; free some, or keep fewer checkpoints")
        if error.errno == errno.EXDEV:
            return StoreError(
                f"{self.root}: cannot {what}: its checkpoints lie on another file system than its attempts, and are "
                "moved between the two; link the run's whole directory there instead"
            )
        return StoreError(
            f"{self.root}: cannot {what}: {os.strerror(error.errno or 0)} ({error.filename or self.room})"
        )


class Joined(Attempt):
    """The attempt on another rank than 0: the same room and the same fence. Its journal is rank 0's to write."""

    def record(self, event: str, /, **facts: Any) -> None:
        del event, facts  # then no other method has anything to write


def join(root: Path, number: int, run: str) -> Attempt:
    """Take part in attempt `number` of `run`, which another process of ours has claimed.

    Raises:
        UsageError: this process does not see it at `root`, or sees another run there.
    """
    attempt = Joined(root, number, run)
    with suppress(FileNotFoundError):
        appear(attempt.room, lambda room: room.is_dir() if (found := read_run(root)) == run else bool(found))
        if read_run(root) == run:
            return attempt
    what = "another run's directory" if read_run(root) not in ("", run) else f"not there, or without attempt {number}"
    raise UsageError(
        f"{root} on {owner.me().get('host')} is {what}: every rank must see one and the same directory, on a file "
        "system that all of them share"
    )


def appear(path: Path, look: Callable[[Path], bool] = Path.is_dir) -> None:
    """Wait until this process sees what another one made at `path`: until `look(path)` is true.

    Raises:
        FileNotFoundError: it was not so within `JOIN_S` seconds.
    """
    until = time.monotonic() + JOIN_S
    while not look(path):
        if time.monotonic() > until:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(path))
        children(path.parent)  # a listing makes a network file system refresh its cache
        time.sleep(0.05)


def children(path: Path) -> list[str]:
    try:
        return sorted(os.listdir(path))
    except FileNotFoundError:
        return []


def read_run(root: Path) -> str:
    """The id in run.json; empty when the file is absent.

    Raises:
        Damaged: it is not what Holdfast wrote.
    """
    path = root / "run.json"
    try:
        with open(disk.open_plain(path, follow=True), "rb") as file:
            facts = msgspec.json.decode(file.read())
    except FileNotFoundError:
        return ""
    except (disk.NotPlain, msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        facts = None
    run = facts.get("run") if isinstance(facts, Mapping) else None
    if not isinstance(run, str) or not run:
        raise Damaged(f"{path}: not what Holdfast wrote; put a copy of it back, or move it away: the run gets a new id")
    return run


# -- the three moves that an attempt makes in the run ---------------------------------------------------------------


def publish(attempt: Attempt, partial: Path, name: str) -> Path:
    """Commit: from here on the checkpoint exists. `partial` holds everything but its own durability.

    Raises:
        UsageError: a checkpoint of that name is committed already.
        Superseded: this attempt lost the run.
    """
    target = places.checkpoints(attempt.root) / name
    disk.sync_dir(partial)  # every name before the rename: the rename may reach the disk first
    try:
        disk.rename_new(partial, target)
    except FileExistsError as error:
        attempt.require()
        if is_checkpoint(target):
            raise UsageError(f"{target} is already committed; checkpoints are immutable") from error
        set_aside(attempt, target, "no-manifest")  # what is left of one would block its step for ever
        disk.rename_new(partial, target)
    except FileNotFoundError:
        if not _mine(target, attempt):  # NFS may say so after a rename that it did, and then repeated
            raise
    disk.sync_dir(target.parent)
    disk.sync_dir(attempt.room)
    return target


def _mine(target: Path, attempt: Attempt) -> bool:
    try:
        head = (target / MANIFEST).read_bytes()
    except OSError:
        return False
    return f'"run": "{attempt.run}",\n"attempt": {attempt.number},\n'.encode() in head


def discard(attempt: Attempt, path: Path) -> None:
    """Delete a checkpoint so that its manifest never outlives its shards."""
    doomed = attempt.room / f"deleting-{path.name}"
    disk.remove_tree(doomed)
    disk.rename_new(path, doomed)
    disk.sync_dir(path.parent)
    clean_up(doomed)


def clean_up(path: Path) -> None:
    """Remove what nobody counts on any more. What stays (a reader on NFS holds it open) goes with the attempt."""
    try:
        disk.remove_tree(path)
    except OSError:
        return


def set_aside(attempt: Attempt, path: Path, why: str) -> Path:
    """Move a checkpoint out of the way, never deleting it. `why` becomes part of its name."""
    passing = attempt.room / f"quarantine-{path.name}-{why}"
    disk.rename_new(path, passing)
    disk.sync_dir(attempt.room)  # the new name before the old one's end: it must never be nowhere
    disk.sync_dir(path.parent)
    return to_quarantine(attempt.root, passing)


def to_quarantine(root: Path, passing: Path) -> Path:
    name = passing.name.removeprefix("quarantine-")
    places.refuse_link(root / "quarantine")
    for number in range(1, 10**6):
        target = root / "quarantine" / (name if number == 1 else f"{name}-{number}")
        try:
            disk.rename_new(passing, target)
        except FileExistsError:
            continue
        disk.sync_dir(target.parent)
        return target
    raise StoreError(f"{root / 'quarantine'} holds too many of {name}")


def point(attempt: Attempt, link: str, name: str) -> None:
    """Let `checkpoints/<link>` name a checkpoint, for people: relative, and not what readers go by."""
    draft = attempt.room / f"link-{link}"
    disk.remove_tree(draft)
    disk.symlink(name, draft)
    disk.replace(draft, attempt.root / "checkpoints" / link)


def unpoint(attempt: Attempt, link: str) -> None:
    """Take away a link that leads nowhere any more; by way of the room, so that no ghost does it."""
    draft, path = attempt.room / f"link-{link}", attempt.root / "checkpoints" / link
    if path.is_symlink():
        disk.remove_tree(draft)
        disk.rename_new(path, draft)
        disk.remove_file(draft)


def is_checkpoint(path: Path) -> bool:
    """Whether a checkpoint exists at `path`: its name fits and it has a manifest."""
    return parse_name(path.name) is not None and (path / MANIFEST).exists()
