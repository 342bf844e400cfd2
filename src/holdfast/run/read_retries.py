"""ReadRetries: waits while a file of a checkpoint cannot be read, and tries again. It ends with the
time that it has.

A read that fails says nothing about the bytes: no checkpoint is set aside for it, and no older one
is taken.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, NoReturn, TypeVar

import msgspec

from ..errors import StoreError, Unreadable
from ..job import job
from ..journal import Log
from ..ranks import Ranks
from ..store.checkpoint import Checkpoint
from ..store.format import parse_name
from .job_clock import JobClock
from .report import Reporter

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
