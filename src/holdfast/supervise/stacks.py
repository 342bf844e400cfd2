"""Stacks: where the processes of a command are, as text for people. Nothing here changes what they
do.

A run itself writes the stacks of its threads, at a signal that is sent only to processes that catch
it. py-spy shows other Python processes, if it is installed and the system allows it. /proc shows
all.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sysconfig
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from .. import disk, owner
from ..children import processes, steps
from ..children.warden import send_signal
from ..provenance import redact

ANSWER_S, QUIET_S = 1.0, 0.05  # for one process's stacks to come, and to be whole
ALL_S = 10.0  # for the stacks of all processes; after that only /proc is read
MOST = 256  # processes whose stacks are kept
STOPPED, ON_GPU = "state: T", "uses a GPU"  # lines of the text
_LIBRARY = re.compile(r"/(site|dist)-packages/|<frozen|/lib/python\d")
_FRAME = re.compile(r'File "(?P<file>[^"]+)", line (?P<line>\d+) in (?P<name>.+)')


class StackMemory:
    """Memory into which runs write their stacks."""

    def __init__(self) -> None:
        """Create the memory that receives the stacks.

        Raises:
            OSError: the system has no such memory.
        """
        self._descriptor = disk.create_shared("holdfast-stacks", 0)
        self.path = Path(f"/proc/{os.getpid()}/fd/{self._descriptor}")

    def close(self) -> None:
        os.close(self._descriptor)

    def collect_stacks(self, pids: Sequence[int], signals: Mapping[int, int]) -> dict[int, str]:
        """Return the stacks of these processes, each after its parent.

        `signals`: on which each slot's process writes its own. A fork of it has the same.
        """
        until = time.monotonic() + ALL_S
        numbers: dict[int | None, int] = {}
        found: dict[int, str] = {}
        for pid in pids[:MOST]:
            text = ""
            number = numbers[pid] = signals.get(pid) or numbers.get(owner.parent_pid(pid), 0)
            if (
                time.monotonic() < until
                and not processes.is_stopped(pid)
                and not processes.is_traced(pid)
            ):
                answers = number and self._can_write_stacks(pid, number)
                text = (
                    self._request_stack(pid, number)
                    if answers
                    else _run_py_spy(pid, until - time.monotonic())
                )
            command = " ".join(redact(processes.command_line(pid)))
            gpu = ON_GPU if processes.has_mapped(pid, "/dev/nvidia") else ""
            found[pid] = "\n".join(
                filter(None, [command, gpu, text.strip(), processes.describe_process(pid)])
            )
        return found

    def _can_write_stacks(self, pid: int, number: int) -> bool:
        """Whether the process is a run or a fork of one, and catches the signal."""
        return processes.has_mapped(pid, steps.MEMORY) and processes.any_catches_signal(
            [pid], number
        )

    def _request_stack(self, pid: int, number: int) -> str:
        disk.empty_shared(self._descriptor)
        send_signal([pid], number)
        until, size, since = time.monotonic() + ANSWER_S, 0, time.monotonic()
        while time.monotonic() < until and not (size and time.monotonic() > since + QUIET_S):
            time.sleep(0.01)
            now = os.fstat(self._descriptor).st_size
            if now != size:
                size, since = now, time.monotonic()
        return os.pread(self._descriptor, size, 0).decode(errors="replace")


def _run_py_spy(pid: int, limit_s: float) -> str:
    """Return what py-spy prints of a Python process;
    "" if there is no py-spy, or it may not look.
    """
    tool = shutil.which("py-spy") or shutil.which("py-spy", path=sysconfig.get_path("scripts"))
    if tool is None or "python" not in processes.program_path(pid):
        return ""
    with suppress(OSError, subprocess.TimeoutExpired):
        words = [tool, "dump", "--nonblocking", "--pid", str(pid)]
        done = subprocess.run(
            words,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=limit_s,
            check=False,
        )
        return done.stdout if done.returncode == 0 else ""
    return ""


def innermost_user_line(text: str) -> str:
    """Return the innermost line of the user's own code in the last thread of these stacks,
    which is the main one.
    """
    frames = [match for part in text.split("\n\n")[-1:] for match in _FRAME.finditer(part)]
    ours = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    own = (
        match
        for match in frames
        if not _LIBRARY.search(match["file"]) and not match["file"].startswith(ours)
    )
    found = next(own, None)
    return f"{os.path.basename(found['file'])}, line {found['line']}" if found else ""


def is_in_collective(text: str) -> bool | None:
    """Whether the main thread is in a collective, or in the backward pass, which holds DDP's; None:
    it does not show.

    With a GPU a collective only begins there: whatever the thread does next may wait for it.
    """
    if STOPPED in text:
        return False
    main = text.rpartition("\n\n")[2]
    if _FRAME.search(main) is None or ON_GPU in text:
        return None
    return "torch/distributed/" in main or "torch/autograd/" in main
