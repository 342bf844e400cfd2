"""Ask: run one command of a scheduler, with a time limit."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from ..errors import ClusterError

LIMIT_S = 10.0
_READ_S = 0.1  # to read the output of a command that has ended

# Output in English, as the manuals document it, and times as Unix seconds.
_PLAIN = {"LC_ALL": "C", "SLURM_TIME_FORMAT": "%s"}

# The server is unreachable or its answer was lost. Unlike a refusal, this is worth a retry.
_AWAY = re.compile(
    r"Unable to contact|Connection refused|timed out|"
    r"Socket timed out|Communication connection failure|Zero Bytes"
    r"|Transport endpoint|backup slurmctld|slurmctld is in standby|"
    r"Resource temporarily unavailable|Connection reset"
    r"|Unexpected message received|try again",
    re.IGNORECASE,
)


class Absent(ClusterError):
    """The command is not installed, or not in this container."""


class SchedulerSilent(ClusterError):
    """The scheduler could not be reached; a retry may succeed."""


class CommandResult(NamedTuple):
    code: int
    out: str
    err: str


def run_command(
    command: Sequence[str],
    *,
    text: str = "",
    limit_s: float = LIMIT_S,
    environment: Mapping[str, str] | None = None,
) -> CommandResult:
    """Run `command` and return its result.

    `text` is its input. `environment` replaces ours completely; a submitted job inherits it.

    Raises:
        Absent: the command does not exist.
        Silent: it did not answer within `limit_s`, or it could not reach its own server.
    """
    answer = RunningCommand(command, limit_s, environment, reads=True).communicate(text, limit_s)
    if answer.code and _AWAY.search(answer.err):
        raise SchedulerSilent(f"{command[0]}: {_message_of(answer)}")
    return answer


def run_successfully(
    command: Sequence[str], *, text: str = "", environment: Mapping[str, str] | None = None
) -> CommandResult:
    """Run `command` as `run_command` does, and require that it succeeds.

    Raises:
        ClusterError: the command failed; the message quotes its output.
    """
    return require_success(
        run_command(command, text=text, environment=environment), " ".join(command[:2])
    )


def require_success(answer: CommandResult, what: str) -> CommandResult:
    """Return `answer`, unless it reports a failure; `what` names the command in the message.

    Raises:
        ClusterError: the exit code of `answer` is not 0.
    """
    if answer.code:
        raise ClusterError(f"{what}: {_message_of(answer)}")
    return answer


class RunningCommand:
    """A command that was started. `poll_result` returns its result, of at most 64 KiB.

    It is killed after `limit_s`.

    No thread waits for it: a loader's worker may be forked at any time, and would inherit a lock
    that a thread holds.
    """

    def __init__(
        self,
        command: Sequence[str],
        limit_s: float = LIMIT_S,
        environment: Mapping[str, str] | None = None,
        *,
        reads: bool = False,
    ) -> None:
        import subprocess

        self._name, self._limit_s, self._ends_s = command[0], limit_s, time.monotonic() + limit_s
        self._pid = os.getpid()
        around = (
            {**_without_user_filters(os.environ), **_PLAIN} if environment is None else environment
        )
        pipe, stdin = subprocess.PIPE, subprocess.PIPE if reads else subprocess.DEVNULL
        try:
            self._child = subprocess.Popen(
                command, env=around, stdin=stdin, stdout=pipe, stderr=pipe
            )
        except OSError as error:
            raise Absent(f"{command[0]} cannot be started: {error.strerror}") from error

    def poll_result(self) -> CommandResult | None:
        """Return the result; None while the command runs. Never waits.

        Raises:
            Silent: the time limit has passed.
        """
        ended = self._child.poll() is not None
        if not ended and time.monotonic() <= self._ends_s:
            return None
        return self.communicate("", _READ_S * ended)

    def communicate(self, text: str, wait_s: float) -> CommandResult:
        """Send the input `text`, wait for the command's end, and return its result.

        Raises:
            Silent: the command did not end within `wait_s`.
        """
        import subprocess

        try:
            out, err = self._child.communicate(text.encode(), wait_s)
        except subprocess.TimeoutExpired as late:
            if self._child.poll() is None:
                raise SchedulerSilent(
                    f"{self._name} did not answer within {self._limit_s:g} s"
                ) from None
            # a process that it has left holds them open
            out, err = late.output or b"", late.stderr or b""
        finally:
            self.close()
        return CommandResult(
            self._child.returncode, out.decode(errors="replace"), err.decode(errors="replace")
        )

    def close(self) -> None:
        """Kill the command if it runs, and close its pipes.

        A forked child, whose parent owns the command, does nothing.
        """
        if os.getpid() == self._pid:
            with self._child:
                self._child.kill()


def _without_user_filters(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the environment without the user's own settings of what squeue shows and scancel
    ends.
    """
    return {
        name: value
        for name, value in environment.items()
        if not name.startswith(("SQUEUE_", "SCANCEL_"))
    }


def _message_of(answer: CommandResult) -> str:
    """Return the command's own message, on one line."""
    lines = (answer.err.strip() or answer.out.strip()).splitlines()
    said = "; ".join(
        " ".join(re.sub(r"^\w+: (error|fatal): ", "", line).split())
        for line in lines
        if line.strip()
    )
    return said[:500] or f"exit code {answer.code} and no word"
