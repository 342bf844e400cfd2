"""Place: the supervisor's directory, with its journal.
Only one supervisor at a time is alive in each.
"""

from __future__ import annotations

import errno
import itertools
import os
import time
import uuid
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

from .. import disk, journal, modes, owner, scan
from ..cluster import chain, script
from ..cluster.chain import EarlierOwner
from ..errors import NoSpace, UsageError
from ..job import Job, job
from ..journal import CLOSING, Event
from ..legible import counted
from ..terminal import say, warn

JOURNAL = "supervisor.jsonl"
# must be durable after a power loss, or before the scheduler ends us
SYNCED = (*CLOSING, "requeued", "excluded")
_FULL = (errno.ENOSPC, errno.EDQUOT)
BEAT_S = 10.0  # between two signs of life
# after so long without one an earlier start of this job, whose node is lost, counts as ended
SILENT_S = 60.0
TAKEN = b"taken"  # written by a later start that waits no longer for an earlier one
LOOK_S = 1.0  # at an earlier start that is still at work


class SupervisorDirectory:
    """A directory that only this supervisor uses,
    as long as other supervisors check before they enter.
    """

    def __init__(self, path: Path, begin: Event) -> None:
        self.path = path
        self.journal = path / JOURNAL
        self.lost = False  # a later start continued without this one, and owns the directory
        self._id = uuid.uuid4().hex[:12]
        self._waiting: list[Event] = []
        self._beat_s, self._beats, self._asked = -BEAT_S, 0, False
        self.give_sign_of_life()  # before the line that a later start looks for
        self.record("begin", supervisor=self._id, owner=owner.describe_this_process(), **begin)

    def give_sign_of_life(self) -> bool:
        """Write a sign of life now and then; return whether a later start of this job asks this one
        to leave.

        Slurm starts a job again whose node it has lost, also if the node itself still works.
        """
        if time.monotonic() >= self._beat_s + BEAT_S:
            self._write_sign()
        asked = self._is_asked_to_leave()
        if asked and not self._asked:  # we may have slept on a clock that slept, too
            self._asked = True
            self._write_sign()
            self._is_asked_to_leave()
        return asked

    def _write_sign(self) -> None:
        self._beat_s, self._beats = time.monotonic(), self._beats + 1
        with suppress(OSError):  # without space or permission no later start can write either
            disk.replace_with(_sign_path(self.path, self._id), [str(self._beats).encode()])

    def _is_asked_to_leave(self) -> bool:
        """Whether to leave; asked after our sign:
        either we see the later start's request, or it sees our sign.
        """
        try:
            said = _leave_path(self.path, self._id).read_bytes()
        except OSError:
            return self.lost
        self.lost = self.lost or said == TAKEN
        return True

    def record(self, event: str, /, **facts: Any) -> None:
        """Note what has happened. If the journal cannot be written,
        warn once and write the lines later.
        """
        if self.lost:
            return
        known = {name: value for name, value in facts.items() if value is not None}
        self._waiting.append({"event": event, "time": time.time(), **known})
        try:
            journal.append(self.journal, self._waiting, sync=event in SYNCED)
            self._waiting.clear()
        except OSError as error:
            if len(self._waiting) == 1:
                warn(
                    f"{self.journal}: {os.strerror(error.errno or 0)}; "
                    "supervising goes on, the journal waits"
                )

    def close(self, event: str, /, **facts: Any) -> None:
        """Write the closing line."""
        self.record(event, supervisor=self._id, **facts)
        for file in (_sign_path(self.path, self._id), _leave_path(self.path, self._id)):
            with suppress(OSError):
                disk.remove_file(file)
        if self._waiting:
            warn(f"{self.journal}: not written, at its end: {counted(len(self._waiting), 'line')}")

    def count_events(self, event: str) -> int:
        """Return the number of such events in the journal,
        including those of earlier supervisors.
        """
        with suppress(OSError):
            return sum(each["event"] == event for each in journal.read(self.journal))
        return 0

    def earlier_supervisors(self) -> list[Event]:
        """Return earlier supervisors of this directory that wrote no closing line and may be
        alive.
        """
        return supervisors_maybe_alive(self.journal, before=self._id)


def enter_directory(
    path: Path | None,
    name: str,
    root: Path,
    begin: Event,
    told: Callable[[], object] = lambda: None,
) -> SupervisorDirectory:
    """Begin to use `path`, created if needed; if it is None, the first free directory in `root` of
    that name.

    `told`: whether this supervisor has been told to stop, and waits for no earlier start of its job
    any more.

    Raises:
        UsageError: a supervisor is alive in `path`, or may be.
        NoSpace: it cannot be created.
    """
    names = (name if number == 1 else f"{name}-{number}" for number in itertools.count(1))
    first = path or root / name
    for chosen in [path] if path is not None else (root / each for each in names):
        if path is None and supervisors_maybe_alive(chosen / JOURNAL):
            continue
        wait_for_earlier_starts(chosen.absolute(), told)
        place = _enter_path(chosen.absolute(), begin)
        others = place.earlier_supervisors()
        if not others:
            if chosen != first:
                say(
                    f"another `holdfast run` is at work in {first.absolute()}; "
                    "this one keeps its journal in "
                    f"{place.path}. If it is to be the same work, stop one of them"
                )
            return place
        place.close("failed", why="the place is taken")
    who = owner.describe(others[0].get("owner") or {})
    raise UsageError(
        f"{path}: another `holdfast run` may still be running there: "
        f"{who}. Stop it first, or give this one a "
        "directory of its own with --run; if you know that it is gone, set HOLDFAST_TAKE_OVER=1"
    )


def wait_for_earlier_starts(path: Path, told: Callable[[], object]) -> None:
    """Ask earlier starts of this job to leave `path`, and wait until they have, or until `told` is
    true.

    Starts of a job that Slurm says is over count as well. Only one whose node is lost can still be
    at work. It is never taken over by force: while it gives signs of life, its command may write
    the same files as ours would.
    """
    here = job()
    for begin in _unclosed_supervisors(path / JOURNAL):
        facts = begin.get("owner") or {}
        over = chain.job_is_over(facts, here)
        if (over or owner.is_earlier_start(facts)) and not _is_proven_gone(begin):
            _wait_for_start(path, begin, told)
        if over and not told():
            _close_journal(path / JOURNAL, begin)


def _wait_for_start(path: Path, begin: Event, told: Callable[[], object]) -> None:
    name, seen, since_s = str(begin.get("supervisor")), b"", 0.0
    if not scan.exists(_sign_path(path, name)):  # it could not write any
        return
    with suppress(OSError):
        disk.replace_with(_leave_path(path, name), [])
    who = owner.describe(begin.get("owner") or {})
    say(
        f"{path}: an earlier start of this job may still "
        f"be at work ({who}): waits until it has left"
    )
    while not told() and any(
        str(each.get("supervisor")) == name for each in _unclosed_supervisors(path / JOURNAL)
    ):
        if (sign := _read_content(_sign_path(path, name))) != seen:
            seen, since_s = sign, time.monotonic()
        elif time.monotonic() > since_s + SILENT_S and _take_over_silent(path, name, seen):
            say(f"{path}: no sign of life of it for {SILENT_S:.0f} s: goes on")
            return
        time.sleep(LOOK_S)


def _take_over_silent(path: Path, supervisor: str, seen: bytes) -> bool:
    """Tell an earlier start that it has been replaced; return whether it still gives no sign of
    life.

    If it wakes up, it looks for this after its first sign, and exits at once without writing
    another byte.
    """
    leave = _leave_path(path, supervisor)
    with suppress(OSError):
        disk.replace_with(leave, [TAKEN])
    if _read_content(_sign_path(path, supervisor)) == seen:
        return True
    with suppress(OSError):
        disk.replace_with(leave, [])
    return False


def _sign_path(path: Path, supervisor: str) -> Path:
    return path / f"alive-{supervisor}"


def _leave_path(path: Path, supervisor: str) -> Path:
    return path / f"leave-{supervisor}"


def _read_content(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError:
        return b""


def supervisors_maybe_alive(path: Path, before: str | None = None) -> list[Event]:
    """Return the first lines of supervisors that may be alive;
    if `before` is given, only of those before it.
    """
    return [begin for begin in _unclosed_supervisors(path, before) if not _is_gone(begin)]


def _unclosed_supervisors(path: Path, before: str | None = None) -> list[Event]:
    """Return the first lines of supervisors without a closing line."""
    begun: dict[str, Event] = {}
    try:
        events = journal.read(path)
    except (FileNotFoundError, NotADirectoryError):
        return []
    for event in events:
        name = str(event.get("supervisor"))
        if event["event"] == "begin":
            if name == before:
                break
            begun[name] = event
        elif event["event"] in CLOSING:
            begun.pop(name, None)
    return [*begun.values()]


def working_directory() -> Path:
    """Return the working directory.

    Raises:
        UsageError: the working directory is gone.
    """
    try:
        return Path.cwd()
    except FileNotFoundError as error:
        raise UsageError("the working directory has been removed; nothing was started") from error


def directory_name_for(command: Sequence[str]) -> str:
    """Return a name for the command. Within a job it contains the job's id, so that jobs do not
    share a directory.
    """
    here, name = job(), script.name_for_command(command).strip(".") or "job"
    return f"{name}-{here.id}" if here else name


def command_label(command: Sequence[str]) -> str:
    """Return the command's name for messages:
    the script or program as given, without its interpreter.
    """
    name = script.name_for_command(command)
    words = (word for word in command if not word.startswith("-"))
    return next((word for word in words if script.name_for_command([word]) == name), command[0])


def _enter_path(path: Path, begin: Event) -> SupervisorDirectory:
    try:
        disk.make_dirs(path)
        # a private run makes that file private, and so all later files
        modes.inherit_mode(path, of=path / JOURNAL)
        with suppress(FileExistsError):
            disk.write(path / JOURNAL, [])
        disk.sync_dir(path)
    except OSError as error:
        if error.errno in _FULL:
            raise NoSpace(
                f"{path}: no space left for the supervisor's journal; nothing was started"
            ) from error
        raise
    return SupervisorDirectory(path, begin)


def _is_gone(begin: Event) -> bool:
    facts = begin.get("owner")
    if not isinstance(facts, dict) or os.environ.get("HOLDFAST_TAKE_OVER") == "1":
        return True
    return owner.is_earlier_start(facts) or owner.is_me(facts) or _is_proven_gone(begin)


def _is_proven_gone(begin: Event) -> bool:
    return owner.proven_gone(begin.get("owner") or {}, lambda: float(begin.get("time") or 0.0))


def wait_for_earlier_tasks(directory: Path, here: Job | None) -> None:
    """Wait until the supervisors of earlier tasks of this array have ended in `directory`."""
    path = directory / JOURNAL
    chain.wait_for_earlier_tasks(
        directory,
        lambda: [
            EarlierOwner(begin.get("owner") or {}, partial(_close_journal, path, begin))
            for begin in supervisors_maybe_alive(path)
        ],
        here,
    )


def _close_journal(path: Path, begin: Event) -> None:
    facts = {"supervisor": begin.get("supervisor"), "why": chain.OVER}
    journal.append(path, [{"event": "failed", "time": time.time(), **facts}], sync=True)
