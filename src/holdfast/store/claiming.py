"""Begins the next attempt of a run. Refuses if another may be alive; fences all earlier ones."""

from __future__ import annotations

import errno
import time
import uuid
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import NamedTuple

from .. import disk, journal, owner, scan
from ..errors import StoreError, Superseded, UsageError
from ..journal import Log
from . import symlinks
from .attempt import Attempt, is_over, read_run, remove_if_possible, rename_into_quarantine
from .format import encode_run

_MOST_TRIES = 100  # to take a number: each loses against a process that began meanwhile
_MOST_ROUNDS = 1000  # how often to empty a directory into which an old process keeps writing


class RemoteFacts(NamedTuple):
    """What other directories than the run's own, its mirrors, say about the run."""

    run: str | None = None  # its id
    attempt: int = 0  # the last one there


def claim(
    root: Path,
    *,
    take_over: bool = False,
    private: bool = False,
    note: str | None = None,
    elsewhere: RemoteFacts = RemoteFacts(),  # noqa: B008  a frozen value
) -> Attempt:
    """Begin the next attempt of the run at `root`, after fencing all earlier ones.

    With `private` all other users are kept out of the run's directory, from now on.

    Raises:
        UsageError: another attempt is or may be alive; or a directory to be written to is a
            symbolic link.
        Superseded: an even later attempt began meanwhile.
        StoreError: no try to claim the run succeeded.
    """
    if scan.lexists(root) and not scan.is_dir(root):
        raise UsageError(f"{root} is a file: a run needs a directory of its own")
    symlinks.require_safe_links(root)
    if private:
        symlinks.make_private(root)
    for part in (
        root,
        root / "attempts",
        root / "history",
        root / "checkpoints",
        root / "quarantine",
    ):
        disk.make_dirs(part)
    symlinks.refuse_linked_attempts(root)
    run = _read_or_create_run_id(root, note, elsewhere.run)
    for _ in range(_MOST_TRIES):
        taken = _used_numbers(root)  # before the journals, so that each of these attempts has one
        earlier = journal.logs(root)
        _refuse_while_alive(root, _possibly_alive(root, earlier), take_over=take_over)
        number = 1 + max([elsewhere.attempt, *(log.attempt for log in earlier), *taken])
        attempt = Attempt(root, number, run)
        with _mark_over_on_failure(attempt):
            if _create_attempt_dir(attempt):
                break
    else:
        raise StoreError(
            f"{root}: {_MOST_TRIES} times another process took "
            "the next attempt's number, or what was made in "
            "attempts/ was gone: look for a program that removes files there, "
            "or starts this run again and again"
        )
    attempt.earlier = earlier
    with _mark_over_on_failure(attempt), attempt.translate_errors("begin"):
        _fence_older_attempts(attempt, take_over=take_over)
        # makes a commit durable whose process died before syncing it
        disk.sync_dir(root / "checkpoints")
    return attempt


@contextmanager
def _mark_over_on_failure(attempt: Attempt) -> Iterator[None]:
    try:
        yield
    except BaseException:
        attempt.mark_over()
        raise


def _create_attempt_dir(attempt: Attempt) -> bool:
    """Create `attempts/<number>`, complete with the journal's first line, in one step.

    Returns False if another process took this number, or removed the draft as stale while this one
    was suspended.
    """
    draft = attempt.room.parent / f".claim-{uuid.uuid4().hex}"
    begin = journal.encode_events(
        [
            {
                "event": "begin",
                "attempt": attempt.number,
                "run": attempt.run,
                "owner": owner.describe_this_process(),
            }
        ]
    )
    disk.make_dir(draft)
    try:
        disk.write(draft / attempt.journal.name, [begin])
        disk.sync_dir(draft)
        disk.rename_new(draft, attempt.room)
    except OSError as error:
        # NFS may repeat a rename that succeeded, and report the second try
        if not _has_content(attempt.journal, begin):
            remove_if_possible(draft)
            if isinstance(error, FileExistsError | FileNotFoundError):
                return False
            raise
    disk.sync_dir(attempt.room.parent)
    return True


def _has_content(path: Path, data: bytes) -> bool:
    try:
        return path.read_bytes() == data
    except OSError:
        return False


def _fence_older_attempts(attempt: Attempt, *, take_over: bool) -> None:
    """Fence all older attempts. If a newer one exists, remove this one and raise Superseded."""
    rooms = _attempt_dir_numbers(attempt.root)
    newer = [number for number in rooms if number > attempt.number]
    if newer:
        disk.remove_tree(attempt.room)
        raise Superseded(
            f"{attempt.root}: attempt {max(newer)} began while attempt {attempt.number} did"
        )
    # one began after they were listed
    if {*rooms} - {attempt.number, *(log.attempt for log in attempt.earlier)}:
        attempt.earlier = [
            log for log in journal.logs(attempt.root) if log.attempt < attempt.number
        ]
    logs = {log.attempt: log for log in attempt.earlier}
    older = [
        logs.get(number, Log(number, attempt.root, []))
        for number in rooms
        if number < attempt.number
    ]
    try:
        # one whose journal is gone knows that it is fenced: its room came with it, in one step
        known = [log for log in older if log.attempt in logs]
        _refuse_while_alive(attempt.root, known, take_over=take_over)
    except UsageError:
        attempt.close("end", step=0, reason="refused")
        raise
    for log in older:
        fence_attempt(attempt, log)
        log.forget()  # it may have grown until now
    for draft in stale_claims(attempt.root):
        disk.remove_tree(draft)


def fence_attempt(attempt: Attempt, log: Log) -> None:
    """Fence an older attempt: move its files out, the journal first, then remove its directory."""
    old = attempt.root / "attempts" / str(log.attempt)
    symlinks.refuse_link(old)
    for _ in range(_MOST_ROUNDS):
        # an attempt without its journal knows that it is fenced; if another file went first, it
        # would report that file
        for child in sorted(scan.names(old), key=f"attempt-{log.attempt}.jsonl".__ne__):
            _move_files_out(attempt, log.attempt, old / child)
        try:
            disk.remove_dir(old)
            break
        except FileNotFoundError:
            break
        except OSError as error:  # the old process created a file there again
            if error.errno != errno.ENOTEMPTY:
                raise
    else:
        raise StoreError(f"{old}: another process goes on writing into it; stop it and start again")
    disk.sync_dir(attempt.root / "attempts")
    _discard_fenced(attempt)


def _move_files_out(attempt: Attempt, number: int, path: Path) -> None:
    try:
        history = attempt.root / "history" / path.name
        if path.name == f"attempt-{number}.jsonl":
            if scan.lexists(history):  # the name is taken: keep the journal under another name
                history = history.with_name(f"{path.name}-{uuid.uuid4().hex[:8]}")
            disk.rename_new(path, history)
            disk.sync_dir(history.parent)
        elif path.name.startswith("quarantine-"):
            rename_into_quarantine(attempt.root, path)
        else:
            disk.rename_new(
                path, attempt.room / f"fenced-{number}-{path.name}-{uuid.uuid4().hex[:8]}"
            )
    except FileNotFoundError:
        if attempt.is_fenced:
            raise


def _discard_fenced(attempt: Attempt) -> None:
    for child in scan.names(attempt.room):
        if child.startswith("fenced-"):
            disk.remove_tree(attempt.room / child)


def stale_claims(root: Path) -> list[Path]:
    """Return the drafts of attempt directories whose process is gone."""
    drafts = (
        root / "attempts" / child
        for child in scan.names(root / "attempts")
        if child.startswith(".claim-")
    )
    return [draft for draft in drafts if _stale_claim(draft)]


def _stale_claim(draft: Path) -> bool:
    try:
        for path in scan.glob(draft, "attempt-*.jsonl"):
            log = Log(0, path, journal.read(path))
            if log.owner:
                return owner.proven_gone(log.owner, partial(_last_seen, log))
        # its process died before writing a line; nothing to keep
        return time.time() - draft.stat().st_mtime > 3600
    except FileNotFoundError:  # the draft was renamed: its process succeeded
        return False


def _possibly_alive(root: Path, logs: Iterable[Log]) -> list[Log]:
    """Return the attempts whose process may be alive."""
    rooms = set(_attempt_dir_numbers(root))
    return [log for log in logs if log.attempt in rooms]


def possibly_alive_attempts(root: Path) -> list[Log]:
    """Return the attempts without a closing line whose process may be alive; `claim` refuses while
    there are any.
    """
    return [log for log in _possibly_alive(root, journal.logs(root)) if _may_be_alive(root, log)]


def _may_be_alive(root: Path, log: Log) -> bool:
    if log.closed or owner.is_earlier_start(log.owner):
        return False
    if owner.is_me(log.owner) and is_over(root, log.attempt):
        return False
    return (
        not log.owner
        or owner.is_me(log.owner)
        or not owner.proven_gone(log.owner, partial(_last_seen, log))
    )


def _refuse_while_alive(root: Path, logs: list[Log], *, take_over: bool) -> None:
    for log in logs:
        if not take_over and _may_be_alive(root, log):
            here = " (this very process)" if owner.is_me(log.owner) else ""
            raise UsageError(
                f"{root}: attempt {log.attempt} may still be running: "
                f"{owner.describe(log.owner)}{here}. "
                "Stop it first; if you know that it is gone, "
                "say take_over=True or set HOLDFAST_TAKE_OVER=1"
            )


def _last_seen(log: Log) -> float:
    times = [event["time"] for event in log.events if isinstance(event.get("time"), int | float)]
    return max(times, default=float("inf"))


def _attempt_dir_numbers(root: Path) -> list[int]:
    return [
        number for number in _used_numbers(root) if scan.is_dir(root / "attempts" / str(number))
    ]


def _used_numbers(root: Path) -> list[int]:
    """Return the numbers that a new attempt must not use, those of stray files included."""
    return sorted(int(child) for child in scan.names(root / "attempts") if child.isdecimal())


def _read_or_create_run_id(root: Path, note: str | None, known: str | None) -> str:
    """Return the run's id. For a new run write run.json, with the id `known` if the run exists
    elsewhere.
    """
    path = root / "run.json"
    if not scan.exists(path):
        draft = root / f".run-{uuid.uuid4().hex}.json"
        disk.write(
            draft, [encode_run(known or uuid.uuid4().hex, owner.describe_this_process(), note)]
        )
        try:
            disk.rename_new(draft, path)
        except FileExistsError:
            disk.remove_file(draft)
        disk.sync_dir(root)
    run = read_run(root)
    if not run:
        raise UsageError(
            f"{path} is a symbolic link that leads nowhere: put the file back, or remove the link"
        )
    if known is not None and run != known:
        raise UsageError(
            f"{root} is another run's directory: its id is {run}, and {known} was expected"
        )
    return run
