"""Attempt: one process's right to write into a run, and how it loses that right.

Attempt n owns the directory `attempts/<n>/`. Every change that it makes to the run starts there: a
checkpoint is built in it and renamed out; a pruned or quarantined one is renamed into it first. The
next attempt fences this one by removing that directory. From then on every such rename fails,
however late the old process resumes.
"""

from __future__ import annotations

import errno
import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from .. import disk, journal, owner, scan
from ..errors import DiskError, NotFound, StoreError, Superseded, UsageError
from ..journal import Event, Log
from . import symlinks
from .format import MANIFEST, decode_run, parse_name
from .refusal import disk_error

# attempts that this process has ended, even if it could not record that
_over: set[tuple[Path, int]] = set()

_MOST_BYTES = 16 << 20  # of run.json, or of the first lines of a manifest
# how long a process waits to see another one's file; longer than network file systems cache a
# directory
JOIN_S = 10.0


class Attempt:
    """The current attempt of a run: its directory and its journal."""

    def __init__(self, root: Path, number: int, run: str) -> None:
        self.root, self.number, self.run = root, number, run
        self.room = root / "attempts" / str(number)
        self.journal = self.room / f"attempt-{number}.jsonl"
        # the journals of the attempts before it, oldest first; its claim lists them
        self.earlier: list[Log] = []
        self._waiting: list[Event] = []
        self._turn = threading.Lock()  # the thread of a save also writes to the journal
        self._pid = os.getpid()

    @property
    def is_in_forked_child(self) -> bool:
        """Whether this process is a forked child of the process that owns the attempt."""
        return os.getpid() != self._pid

    def record(self, event: str, /, **facts: Any) -> None:
        """Note an event; the next `flush` writes it to the journal."""
        self._waiting.append({"event": event, "time": time.time(), **facts})

    def flush(self, *, sync: bool = False) -> None:
        """Write all noted events in order; with `sync` they survive a power loss.

        Raises:
            Superseded: a later attempt owns the run.
        """
        if self._waiting:
            with self.translate_errors("write the journal"), self._turn:
                count = len(self._waiting)
                journal.append(self.journal, self._waiting[:count], sync=sync)
                del self._waiting[:count]

    def flush_unless_busy(self) -> None:
        """Flush, unless another thread is about to flush."""
        # a look, not `acquire(blocking=False)`: after Ctrl-C that could leave the lock taken
        if self._waiting and not self._turn.locked():
            self.flush()

    def close(self, event: str, /, **facts: Any) -> None:
        """Write the closing line; the attempt then counts as ended."""
        self.record(event, **facts)
        self.flush(sync=True)

    def mark_over(self) -> None:
        """Record that this process does nothing more for the attempt, even if the closing line
        could not be written.
        """
        _over.add((self.root, self.number))

    @contextmanager
    def translate_errors(self, what: str) -> Iterator[None]:
        """Translate OS errors into Holdfast's exceptions.

        Raises:
            UsageError: a forked child would act for its parent, which is alive; or the attempt's
                directory is a link.
        """
        if self.is_in_forked_child:
            raise UsageError(
                f"{self.root}: attempt {self.number} is process "
                f"{self._pid}'s; its forked children only read"
            )
        try:
            symlinks.refuse_link(self.room.parent)
            symlinks.refuse_link(self.room)
            yield
        except OSError as error:
            raise self._as_store_error(what, error) from error
        # a checkpoint that this attempt needs is gone: perhaps a later attempt removed it
        except NotFound:
            self.require_ownership()
            raise

    @property
    def is_fenced(self) -> bool:
        """Return whether a later attempt has fenced this one, or has begun to: fencing moves the
        journal out first.
        """
        try:
            os.lstat(self.journal)
        except (FileNotFoundError, NotADirectoryError):
            return True
        except OSError:  # what cannot be looked at is not known to be gone
            pass
        return False

    def require_ownership(self) -> None:
        """Require that this attempt still owns the run.

        Raises:
            Superseded: a later attempt owns the run.
            DiskError: the run's directory is gone.
        """
        if self.is_fenced:
            gone = FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(self.journal))
            raise self._as_store_error("go on", gone)

    def _superseded_error(self) -> Superseded:
        return Superseded(
            f"{self.root}: attempt {self.number} was "
            "superseded by a later one; it writes nothing more"
        )

    def _as_store_error(self, what: str, error: OSError) -> StoreError:
        with suppress(OSError):  # what cannot be looked at is not known to be gone
            if error.errno in (errno.ENOENT, errno.ESTALE) and not scan.is_dir(self.room.parent):
                return DiskError(
                    f"{self.root}: cannot {what}: "
                    "the run's directory is gone; put it back, or mount it"
                )
            if error.errno in (errno.ENOENT, errno.ESTALE) and self.is_fenced:
                return self._superseded_error()
        return disk_error(self.root, what, error)


class JoinedAttempt(Attempt):
    """An attempt as ranks other than 0 see it: the same directory and fence. Only rank 0 writes the
    journal.
    """

    def record(self, event: str, /, **facts: Any) -> None:
        del event, facts  # no event is kept, so the other methods have nothing to write


def is_over(root: Path, number: int) -> bool:
    """Return whether this process had that attempt and has finished with it."""
    return (root, number) in _over


def join_attempt(root: Path, number: int, run: str) -> Attempt:
    """Join attempt `number` of `run`, which rank 0's process has claimed.

    Raises:
        UsageError: this process does not see the attempt at `root`, or sees another run there.
    """
    attempt = JoinedAttempt(root, number, run)
    with suppress(FileNotFoundError):
        wait_until_visible(
            attempt.room,
            lambda room: scan.is_dir(room) if (found := read_run(root)) == run else bool(found),
        )
        if read_run(root) == run:
            symlinks.require_safe_links(root)
            return attempt
    what = (
        "another run's directory"
        if read_run(root) not in ("", run)
        else f"not there, or without attempt {number}"
    )
    raise UsageError(
        f"{root} on {owner.describe_this_process().get('host')} is {what}: "
        "every rank must see one and the same directory, on a file "
        "system that all of them share"
    )


def wait_until_visible(path: Path, look: Callable[[Path], bool] = scan.is_dir) -> None:
    """Wait until `look(path)` is true: until this process sees what another process made at `path`.

    Raises:
        FileNotFoundError: `look(path)` was false for `JOIN_S` seconds.
    """
    until = time.monotonic() + JOIN_S
    while not look(path):
        if time.monotonic() > until:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(path))
        scan.names(path.parent)  # a listing makes a network file system refresh its cache
        time.sleep(0.05)


def read_run(root: Path) -> str:
    """Return the id in run.json; an empty string if there is no such file.

    Raises:
        Damaged: Holdfast did not write this content.
        StoreError: a later Holdfast did.
    """
    path = root / "run.json"

    def read() -> bytes:
        with open(disk.open_plain(path, follow=True), "rb") as file:
            return file.read(_MOST_BYTES)

    try:
        data = scan.repeat_read(path, read)
    except FileNotFoundError:
        return ""
    except disk.NotPlain:
        data = b""
    return decode_run(
        data, path, "move it away: the next start writes it again from the newest checkpoint"
    )


# -- the three moves that an attempt makes in the run
# ---------------------------------------------------------------


def publish(attempt: Attempt, partial: Path, name: str) -> Path:
    """Commit a checkpoint: sync the names in the complete directory `partial`, then rename it to
    `name`.

    Raises:
        UsageError: a checkpoint with that name exists.
        Superseded: this attempt no longer owns the run.
    """
    target = symlinks.checkpoints_directory(attempt.root) / name
    # sync all names before the rename, because the rename may reach the disk first
    disk.sync_dir(partial)
    try:
        disk.rename_new(partial, target)
    except OSError as error:
        # NFS may repeat a rename that succeeded, and then report the second try's error
        if scan.lexists(partial) or not _is_published_by(target, attempt):
            if not isinstance(error, FileExistsError):
                raise
            attempt.require_ownership()
            if is_checkpoint(target):
                raise UsageError(
                    f"{target} is already committed; checkpoints are immutable"
                ) from error
            # a directory without a manifest would block this step permanently
            move_to_quarantine(attempt, target, "no-manifest")
            disk.rename_new(partial, target)
    disk.sync_dir(target.parent)
    disk.sync_dir(attempt.room)
    return target


def _is_published_by(target: Path, attempt: Attempt) -> bool:
    """Return whether the manifest in `target` names this attempt."""
    try:
        with open(disk.open_plain(target / MANIFEST), "rb") as file:
            head = file.read(_MOST_BYTES)
    except OSError:
        return False
    return f'"run": "{attempt.run}",\n"attempt": {attempt.number},\n'.encode() in head


def discard(attempt: Attempt, path: Path) -> None:
    """Delete a checkpoint. It is renamed first,
    so that no manifest without its shards is ever seen.
    """
    doomed = attempt.room / f"deleting-{path.name}"
    disk.remove_tree(doomed)
    disk.rename_new(path, doomed)
    disk.sync_dir(path.parent)
    remove_if_possible(doomed)


def remove_if_possible(path: Path) -> None:
    """Remove files that are no longer needed.
    Any that remain are deleted when the attempt is fenced.
    """
    try:
        disk.remove_tree(path)
    except OSError:
        return


def retry_removals(attempt: Attempt) -> None:
    """Remove what earlier deletions of this attempt could not remove."""
    with suppress(OSError):
        for child in scan.names(attempt.room):
            if child.startswith("deleting-"):
                remove_if_possible(attempt.room / child)


def move_to_quarantine(attempt: Attempt, path: Path, why: str) -> Path:
    """Move a checkpoint out of `checkpoints` without deleting it.
    `why` becomes part of its name.
    """
    passing = attempt.room / f"quarantine-{path.name}-{why}"
    disk.rename_new(path, passing)
    # sync the new name before the old one is removed, so that a crash never loses both
    disk.sync_dir(attempt.room)
    disk.sync_dir(path.parent)
    return rename_into_quarantine(attempt.root, passing)


def rename_into_quarantine(root: Path, passing: Path) -> Path:
    name = passing.name.removeprefix("quarantine-")
    symlinks.refuse_link(root / "quarantine")
    for number in range(1, 10**6):
        target = root / "quarantine" / (name if number == 1 else f"{name}-{number}")
        try:
            disk.rename_new(passing, target)
        except FileExistsError:
            continue
        disk.sync_dir(target.parent)
        return target
    raise StoreError(f"{root / 'quarantine'} holds too many of {name}")


def update_link(attempt: Attempt, link: str, name: str) -> None:
    """Point the relative link `checkpoints/<link>` at a checkpoint.
    It is for users; readers ignore it.
    """
    draft = attempt.room / f"link-{link}"
    disk.remove_tree(draft)
    disk.symlink(name, draft)
    disk.replace(draft, attempt.root / "checkpoints" / link)


def remove_dangling_link(attempt: Attempt, link: str) -> None:
    """Remove a dangling link through the attempt's own directory,
    so that a fenced process cannot do it.
    """
    draft, path = attempt.room / f"link-{link}", attempt.root / "checkpoints" / link
    if scan.is_symlink(path):
        disk.remove_tree(draft)
        disk.rename_new(path, draft)
        disk.remove_file(draft)


def is_checkpoint(path: Path) -> bool:
    """Whether `path` is a checkpoint: its name has the right form and it has a manifest."""
    return parse_name(path.name) is not None and scan.exists(path / MANIFEST)
