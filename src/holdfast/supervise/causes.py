"""Causes: why a start of the command ended,
from the evidence, and the action that follows. Pure.
"""

from __future__ import annotations

import re
import signal
from itertools import dropwhile
from typing import Literal, NamedTuple

from ..cluster.cause import BAD_NODE

Action = Literal["again", "back off", "leave"]

MEMORY, DISK, REPEATS = "out of memory", "disk full", "same error twice"
NOT_FINITE = "weights not finite"
UNTRUSTED = "checkpoint not trusted"
UNREADABLE = "checkpoint unreadable"
ACTIONS: dict[str, tuple[Action, str]] = {  # the action, and the evidence for the cause
    MEMORY: (
        "back off",
        "the cgroup's count of kills or the kernel's log; an exception for want of memory",
    ),
    DISK: ("back off", "the text of the error, or the run's file system has no space left"),
    UNREADABLE: (
        "back off",
        "the error `Unreadable`: a start that has waited could not read a file of its checkpoint",
    ),
    BAD_NODE: (
        "back off",
        "an input/output error, a mount that is away, or a GPU that is broken or lost",
    ),
    REPEATS: (
        "leave",
        "the last start failed at the same step, in the same place, with the same exception",
    ),
    NOT_FINITE: (
        "leave",
        "the run with `stop_on_nan` says so in its journal, or at the end of its output",
    ),
    UNTRUSTED: ("leave", "the error `Untrusted`: the key of the run has not signed its checkpoint"),
    "killed by SIGSEGV": ("again", "the exit status; the same for every other signal"),
    "error": ("again", "an exit code other than 0 and 75"),
    "node lost": (
        "again",
        "the scheduler has started the job again without a signal, and nothing had asked for that",
    ),
    "time limit": ("leave", "the scheduler's record; the job is requeued"),
    "preempted": ("leave", "the scheduler's record; the job is requeued"),
    "cancelled": ("leave", "the scheduler's record"),
}
WORDS: dict[Action, str] = {
    "again": "is started again at once, the second time after 1 s, then 2, 4, ...",
    "back off": "is started again after 5 s, then 10, 20, ...",
    "leave": "is not started again here",
}
FIRST_S: dict[Action, tuple[float, float]] = {
    "again": (0.0, 1.0),
    "back off": (5.0, 10.0),
    "leave": (0.0, 0.0),
}
MOST_S = 300.0
# The next try may go well: the network is at fault, a file system, or another process.
_PASSING = re.compile(
    r"(Connection\w*Error|BrokenPipeError|InterruptedError|"
    r"BlockingIOError|\w*Timeout(Error|Expired)?|HTTPError|URLError"
    r"|SSLError|ProxyError|RemoteDisconnected|IncompleteRead|"
    r"ChunkedEncodingError|ProtocolError|gaierror"
    r"|Dist(Network|Backend|Store)Error)$"
)
_PASSING_TEXT = re.compile(
    # of an OSError: input/output, a stale file, no route, ...
    r"\[Errno (5|11|16|37|100|101|10[347]|11[0-36]|121)\]"
    r"|Input/output error|Stale file handle"  # the same in words, of a DiskError
    r"|[Cc]onnection (closed|reset|refused|aborted|timed out)|"
    r"[Tt]imed out|[Tt]emporar(y failure|ily unavailable)|NCCL"
)
# Errors for which only the machine can be at fault: of an OSError, or as other programs write them.
_NODE = re.compile(
    r"\[Errno (5|116|121)\]|\[Errno (107|112)\] [^\n]*: ['\"]|"
    r"Input/output error|Stale (NFS )?file handle"
    r"|/[^\n:]*: (Transport endpoint is not connected|Host is down)"
)
# CUDA's and NVML's own words, and the Xids for which NVIDIA names the hardware. Sources:
# cudaGetErrorString, nvmlErrorString, NVIDIA's "XID Errors".
_BROKEN_GPU = re.compile(
    r"uncorrectable (ECC|NVLink) error (encountered|detected)|has fallen off the bus|GPU is lost"
    r"|\bXid( \([^)\n]*\))?:? (48|64|74|79|94|95|119|120)\b"
)
_NO_SPACE = re.compile(
    r"No space left on device|Disk quota exceeded|\[Errno (28|122)\]|^(\w+\.)*NoSpace\b"
)
_NO_MEMORY = re.compile(
    r"^(\w+\.)*(MemoryError|OutOfMemoryError|_?ArrayMemoryError)\b|"
    r"[Cc]an(no|')t allocate memory|std::bad_alloc"
)
_UNREADABLE = re.compile(r"^(\w+\.)*Unreadable\b")
_FINAL = {"NotFinite": NOT_FINITE, "Untrusted": UNTRUSTED}  # by the name of the exception
_LAST_LINES = 10  # of a program that says nothing in Python's words
_KILLED = re.compile(r"killed by signal: Killed|exit(ed)? with signal 9|SIGKILL")
_KIND = re.compile(r"([A-Za-z_][\w.]*)(: |$)")
_FRAME = re.compile(r'^  File "(.*)", line (\d+)', re.MULTILINE)


class StartError(NamedTuple):
    """The exception that ended a start. Two that differ in their text alone count as the same."""

    kind: str  # "ValueError"; "" if there was none, or it is not known
    place: str = ""  # "train.py:17"
    step: int | None = None
    text: str = ""
    # the run handles it at the next start, for example sets a checkpoint aside
    may_mend: bool = False

    def would_repeat(self, before: StartError) -> bool:
        """Whether the next start would fail with the same error."""
        same = (self.kind, self.place, self.step) == (before.kind, before.place, before.step)
        passing = _PASSING.search(self.kind) or _PASSING_TEXT.search(self.text)
        return bool(self.kind) and same and not self.may_mend and not passing


class EndEvidence(NamedTuple):
    """The evidence about the end of a start that neither finished nor stopped."""

    code: int  # in subprocess's notation
    error: StartError = StartError("")
    before: StartError = StartError("")  # of the start before, if that failed as well
    memory_kills: int = 0  # by the kernel, in the command's cgroup, while it ran
    own_kills: int = 0  # those in the kernel's log that were processes of the command
    disk_is_full: bool = False
    gpu_is_broken: bool = False


def find_cause(seen: EndEvidence) -> str:
    """Return why the start ended, in the words of `ACTIONS`."""
    error, killed = seen.error, seen.code in {-signal.SIGKILL, 128 + signal.SIGKILL}
    if (final := _FINAL.get(error.kind.rpartition(".")[2])) is not None:
        return final
    lost_one = killed or _KILLED.search(error.text)
    if seen.own_kills or (seen.memory_kills and lost_one) or _NO_MEMORY.search(error.text):
        return REPEATS if error.would_repeat(seen.before) and not lost_one else MEMORY
    unexplained = not error.kind and (seen.code >= 0 or seen.code == -signal.SIGBUS) and not killed
    if (seen.disk_is_full and unexplained) or _NO_SPACE.search(error.text):
        return DISK
    if _UNREADABLE.search(error.text):
        return UNREADABLE
    if seen.gpu_is_broken or (_NODE.search(error.text) and not killed):
        return BAD_NODE
    if seen.code < 0:
        return f"killed by {_signal_name(-seen.code)}"
    return REPEATS if error.would_repeat(seen.before) else "error"


def action_for(cause: str) -> Action:
    """Return the action for a cause: "again", "back off" or "leave"."""
    return ACTIONS.get(cause, ("again", ""))[0]


def wait_s(cause: str, number: int) -> float:
    """Return the wait before the next start after the `number`th failure in a row."""
    first_s, second_s = FIRST_S[action_for(cause)]
    return first_s if number <= 1 else growing_wait_s(second_s, number - 2)


def growing_wait_s(first_s: float, times: int) -> float:
    """Return a wait that begins at `first_s`, and was doubled so many times; at most `MOST_S`."""
    return min(first_s * 2.0 ** min(times, 30), MOST_S)


def parse_error(tail: str) -> StartError:
    """Return the exception at the end of a Python program's output;
    an empty one if it ends otherwise.
    """
    _, begin, trace = tail.rpartition("Traceback (most recent call last):\n")
    lines = trace.splitlines()
    # also of a message with several lines
    said = [*dropwhile(lambda line: line.startswith("  "), lines)]
    frames, kind = _FRAME.findall(trace), _KIND.match(said[0]) if said else None
    if not begin or not frames or not kind:
        return StartError("", text="\n".join(tail.splitlines()[-_LAST_LINES:])[-2000:])
    path, number = frames[-1]
    text = "\n".join(said).rstrip()
    return StartError(kind[1], f"{path}:{number}: {text}", text=text)


def reports_broken_gpu(tail: str) -> bool:
    """Whether the output reports a broken or lost GPU. Of several ranks only one may print
    that, and early.
    """
    return _BROKEN_GPU.search(tail) is not None


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
