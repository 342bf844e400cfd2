"""Failures: a checkpoint that is damaged or cannot be read, and errors that may be its fault.

A read that fails says nothing about the bytes: no checkpoint is set aside for it, and no older one
is taken. `ReadRetries` waits and reads again, as long as the run has time.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any, NoReturn, TypeVar

import msgspec

from .. import owner
from ..errors import Damaged, HoldfastError, StoreError, Unreadable
from ..job import job
from ..journal import Event, Log
from ..ranks import Ranks
from ..store import format
from ..store.checkpoint import Checkpoint
from ..store.format import parse_name
from ..store.problems import Problem
from ..store.shards import SaveAbandoned
from ..store.store import Store
from ..terminal import say, warn
from .report import Reporter
from .stop import JobClock

MOST_PASSED = 7  # the most due saves that are skipped between two tries
_QUIET = 2  # so many saves in a row without known damage: the disk is trusted again
_ADVICE = (
    "if that goes on, saves become rarer: "
    "look at the system's log (dmesg), and save to another disk"
)
MOST_FAILURES = 2  # failures of the same kind from one checkpoint before it is set aside

# These errors are the program's or the machine's fault, never the checkpoint's.
_BLAMELESS = (HoldfastError, ImportError, NameError, SyntaxError, MemoryError, OSError)


def may_blame_checkpoint(error: BaseException) -> bool:
    """Whether this failure before the first step may have been caused by the checkpoint."""
    memory = "OutOfMemory" in type(error).__name__
    return isinstance(error, Exception) and not isinstance(error, _BLAMELESS) and not memory


def describe(error: BaseException) -> str:
    first_line = (str(error).splitlines() or [""])[0]
    return ": ".join(filter(None, (type(error).__name__, first_line)))[:500]


def program_version() -> str:
    """Return the version of the program: the modification time of its file."""
    try:
        return str(os.stat(sys.argv[0]).st_mtime_ns)
    except (OSError, IndexError):  # interactive, or started by `python -c`
        return ""


def why_not_retry_checkpoint(name: str, logs: Sequence[Log]) -> str | None:
    """Return why the checkpoint `name` is not tried again; None if it may be tried.

    `logs`: of the attempts before this one. A checkpoint is not tried again if the last attempts,
    of the same program version, resumed from it and failed with the same error before their first
    step. If another checkpoint led to the same error, the program is at fault.
    """
    found = _failure_before_first_step(logs[-1]) if len(logs) >= MOST_FAILURES else None
    if (
        found is None
        or found[0] != name
        or any(_failure_before_first_step(log) != found for log in logs[-MOST_FAILURES:])
    ):
        return None
    text = found[1]
    if any(
        failure and failure[0] != name and failure[1] == text
        for failure in map(_failure_before_first_step, logs)
    ):
        return None
    return f"failed {MOST_FAILURES} times before the first step with: {text}"


def failure_after_last_batch(name: str, logs: Sequence[Log]) -> Event | None:
    """Return the last attempt's failure in the code behind the loop, if it resumed at an epoch's
    last batch.

    The attempt resumed from the checkpoint `name`, with the same program version.
    """
    for event in logs[-1].newest("failed") if logs else ():
        if (
            event.get("behind")
            and event.get("checkpoint") == name
            and event.get("script") == program_version()
        ):
            return event
    return None


def _failure_before_first_step(log: Log) -> tuple[str, str] | None:
    for event in log.newest("failed"):
        if event.get("counts") and event.get("script") == program_version():
            return str(event.get("checkpoint")), str(event.get("error"))
    return None


@contextmanager
def translate_read_errors(place: Path) -> Iterator[None]:
    """Raise an OSError about a file in `place` as Unreadable.
    It says which file, and on which host.
    """
    try:
        yield
    except OSError as error:
        if not isinstance(error.filename, str | bytes | os.PathLike):
            raise
        path, place = Path(os.fsdecode(error.filename)).absolute(), place.absolute()
        if not path.is_relative_to(place):
            raise
        here = str(owner.describe_this_process()["host"])
        text = f"{path}: cannot be read on {here}: [Errno {error.errno}] {error.strerror}"
        raise Unreadable(text, [(path.relative_to(place).as_posix(), here)]) from None


def require_sound(checkpoint: Checkpoint) -> None:
    """
    Raises:
        Damaged: its bytes differ from the committed ones.
    """
    for problem in checkpoint.problems():
        raise Damaged(str(problem))


def quarantine_checkpoint(store: Store, checkpoint: Checkpoint, word: str, why: str) -> None:
    store.quarantine(checkpoint, word)
    store.claim().record("quarantined", name=checkpoint.path.name, why=why)
    store.claim().flush(sync=True)


class SaveFailures(msgspec.Struct):
    """Counts failures and damage of one attempt's saves. On several ranks all count alike.

    After damage the next safe point saves once more. If that is damaged, too, saves become rarer:
    on a disk that damages what it writes, each of them leaves a checkpoint in quarantine/ that
    takes space.
    """

    _store: Store
    _tell: Callable[..., None]
    _failed: int = 0  # saves in a row that failed
    _damaged: int = 0  # checkpoints that were found damaged, since the disk was last trusted
    _own: int = 0  # of several ranks: files that this one alone found damaged, before all did
    _quiet: int = 0  # saves since the last damage
    _passing: int = 0  # due saves still to be skipped

    def record_failure(
        self,
        name: format.CheckpointName,
        error: BaseException,
        before: format.CheckpointName | None,
    ) -> bool:
        """Report and journal that a save failed. Return whether the next safe point is to
        save instead.
        """
        advice = ""
        self._failed += 1
        told, again = _should_report(self._failed), False
        if isinstance(error, Damaged | SaveAbandoned):  # its own files, or the files to link
            told, again = (
                self._count_damage(),
                self._damaged == 1 or isinstance(error, SaveAbandoned),
            )
        if isinstance(error, Damaged):
            advice = self._quarantine_damaged(name, before)
        if told and self._store.ranks.leads:
            warn(f"step {name.step} is not saved, and training goes on: {error}{advice}")
        self._store.claim().record("save_failed", step=name.step, error=str(error))
        return again

    def record_damage(self, problem: Problem) -> bool:
        """Report that the last checkpoint is damaged. Return whether the next safe point is
        to save again.
        """
        alone = self._store.ranks.alone
        if not alone:  # the other ranks do not know of it, and all must save at the same steps
            self._own += 1
        if self._count_damage() if alone else _should_report(self._own):
            self._tell(f"{problem}; the next save writes it anew; {_ADVICE}")
        return alone and self._damaged == 1

    def record_success(self, name: format.CheckpointName) -> None:
        """Note that a save succeeded."""
        if self._failed:
            say(f"{self._store.root}: step {name.step} is saved; {self._failed} before it failed")
        self._failed = 0
        self._quiet += 1
        if self._quiet > _QUIET:
            self._damaged = self._passing = 0

    def should_skip_save(self) -> bool:
        """Whether to skip this due save."""
        if self._passing == 0:
            return False
        self._passing -= 1
        return True

    def _count_damage(self) -> bool:
        """Return whether to report it."""
        self._damaged, self._quiet = self._damaged + 1, 0
        self._passing = min(MOST_PASSED, 2 ** (self._damaged - 1) - 1)
        return _should_report(self._damaged)

    def _quarantine_damaged(
        self, name: format.CheckpointName, before: format.CheckpointName | None
    ) -> str:
        """Move a checkpoint to quarantine/ that was damaged when it was read back after its
        commit.
        """
        store = self._store
        if store.parent != str(name):
            return ""
        store.continue_after(before)
        where = "the next start moves it to quarantine/"
        with suppress(StoreError):
            quarantine_checkpoint(
                store, store.index.checkpoint(name), "damaged", "damaged on its way to the disk"
            )
            where = "it is in quarantine/"
        return f"; what the disk holds is not what was written; {where}; {_ADVICE}"


def _should_report(count: int) -> bool:
    """Whether to report number `count` in a row: the first, second, fourth, eighth."""
    return count & (count - 1) == 0


T = TypeVar("T")

MOST_S = 300.0  # without a known end of the job
SHARE = 10.0  # of the time that the job has left, one tenth is waited at most
FIRST_S, LONGEST_S = 1.0, 30.0  # between two tries
_LOOK_S = 0.1  # between two checks for a signal
_AGAIN, _ENOUGH = b"again", b""


class ReadRetries(msgspec.Struct):
    """How long one start waits for files that it cannot read:
    all its waits together. Rank 0 decides.
    """

    _ranks: Ranks
    _job_clock: JobClock
    _reporter: Reporter
    _stop: Callable[[str, Unreadable], NoReturn]  # ends the attempt after a signal
    _began_s: float | None = None  # since the first file could not be read
    _most_s: float = 0.0
    _pause_s: float = FIRST_S

    @property
    def waited_s(self) -> float:
        return 0.0 if self._began_s is None else time.monotonic() - self._began_s

    def wait_and_decide(self, error: Unreadable) -> bytes:
        """Wait before the next try; return what follows: another try, giving up, or a signal
        that came.
        """
        if self._began_s is None:
            self._begin(error)
        left_s = self._most_s - self.waited_s
        until_s = time.monotonic() + min(self._pause_s, self._ranks.timeout_s / 4, left_s)
        self._pause_s = min(2 * self._pause_s, LONGEST_S)
        while (reason := self._job_clock.stop.reason) is None and time.monotonic() < until_s:
            time.sleep(_LOOK_S)
        if reason is not None:
            return reason.encode()
        return _AGAIN if left_s > 0 else _ENOUGH

    def _begin(self, error: Unreadable) -> None:
        left_s = self._job_clock.time_left_s()
        self._began_s, self._most_s = time.monotonic(), min(MOST_S, left_s / SHARE)
        self._reporter.warn(f"{error}; tries again for up to {self._most_s:.0f} s")
        with suppress(StoreError):  # the disk may fail altogether
            self._reporter.attempt.flush_unless_busy()

    def retry_until_readable(self, work: Callable[[], T]) -> T:
        """Run `work` on all ranks; wait and repeat it while a file cannot be read. Return its
        result.

        Raises:
            Unreadable: a file could not be read in all the time that there is.
            Stopped: a signal came meanwhile; nothing was changed.
        """
        while True:
            try:
                return work()
            except Unreadable as error:
                fault = error
            word = self._ranks.run_on_rank_0(
                "the wait for a file", partial(self.wait_and_decide, fault)
            )
            if word == _ENOUGH:
                raise fault
            if word != _AGAIN:
                self._stop(word.decode(), fault)

    def give_up_error(self, error: Unreadable, older: Checkpoint | None) -> Unreadable:
        """Return the error to raise after the last try; it says what the user can do."""
        here = job()
        hosts = ",".join(dict.fromkeys(host for _, host in error.files))
        elsewhere = (
            f" (sbatch --exclude={hosts})" if here is not None and here.scheduler == "slurm" else ""
        )
        at = None if older is None else parse_name(older.path.name)
        back = (
            ""
            if at is None
            else f"; Run(..., go_back={at.step}) goes on from the checkpoint before it"
        )
        return Unreadable(
            f"{error}; tried for {self.waited_s:.0f} s. "
            "Nothing was changed. Start it again, on another node "
            f"if there is one{elsewhere}{back}",
            error.files,
        )


def same_failure_elsewhere(error: Unreadable, name: str, logs: Sequence[Log]) -> str:
    """Return in words which file of the checkpoint `name` an earlier attempt on another node could
    not read; or "".

    `logs`: of the attempts before this one. An attempt that restored the checkpoint has read all of
    it.
    """
    for log in reversed(logs):
        if any(event.get("checkpoint") == name for event in log.newest("restored")):
            return ""
        for event in log.newest("unreadable"):
            if event.get("checkpoint") == name:
                for file, host in error.files:
                    for other in _hosts_that_failed(event.get("files"), file) - {host}:
                        return f"{file} cannot be read, neither on {other} nor on {host}"
    return ""


def _hosts_that_failed(files: Any, file: str) -> set[str]:
    """Return the nodes on which `file` could not be read,
    of a journal's event: its content is not trusted.
    """
    with suppress(TypeError, ValueError):
        return {str(host) for name, host in files if name == file}
    return set()
