"""Standby: the command, started in advance, that has done the imports of the last start and waits
for its turn.

Nothing is forked from it: it becomes the next start itself (`standing_by/sitecustomize.py`). It is
discarded, with one line, if anything that it did in advance would have another result now.
"""

from __future__ import annotations

import os
import re
import select
import socket
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import msgspec

from ..children.child import Child
from ..errors import HoldfastError, UsageError
from ..legible import UNREADABLE
from ..run.alive import IMPORTS_VARIABLE
from ..terminal import say
from .evidence import free_and_total_memory
from .output import Output

IMPORTS = "imports.json"  # in the supervisor's directory
HOOK = Path(__file__).parent / "standing_by"
CHANNEL = "HOLDFAST_STANDBY"
ANSWERS_S = 10.0  # for its last look at the files
SHARE = 0.05  # of the machine's memory that stays free
_PROBE = (
    "import os, sys; print(os.environ.get('PYTHONPATH'), os.environ.get('HOLDFAST_STANDBY'), "
    "os.path.isdir(sys.argv[1]), sys.flags.ignore_environment + sys.flags.no_site)"
)
# options of Python, except those that change its imports at the start
_FLAGS = re.compile(r"-[uOBbvqd]+$")


class ReadyStart(NamedTuple):
    """A start of the command whose imports are done."""

    output: Output
    child: Child


class _StandbyProcess(NamedTuple):
    ready: ReadyStart
    link: socket.socket


class _ImportList(msgspec.Struct):
    pid: int


_IMPORTED = msgspec.json.Decoder(_ImportList)  # made here for the reason that `format` has


def require_script(command: Sequence[str], *, keeps: bool) -> None:
    """Check that the command is `python script.py`, whose imports can be done in advance. `keeps`:
    it is an app's.

    Raises:
        UsageError: it is another one.
    """
    words = iter(command[1:])
    script = next((word for word in words if not _FLAGS.match(word)), "")
    python = re.match(r"(python|pypy)[\d.]*$", os.path.basename(command[0])) if command else None
    if keeps or python is None or not script.endswith(".py") or script.startswith("-"):
        raise UsageError(
            "--standby is for commands like `python train.py`; start this one without it"
        )


class Standby:
    """Keeps at most one process that has done the script's imports. `name`: of the command
    in messages.
    """

    def __init__(self, directory: Path, name: str, note: Callable[..., None]) -> None:
        self._file, self._name, self._note = directory / IMPORTS, name, note
        self._waiting: _StandbyProcess | None = None
        self._heard = b""
        self._size = 0  # bytes, once its imports are done
        self._parted = False  # it has closed its end
        self._for: tuple[list[str], dict[str, str]] | None = None
        self._told_short = False
        self._obeyed = False  # a standby of this command has found its orders

    def environment_for_import_list(self, environment: Mapping[str, str]) -> dict[str, str]:
        """Return the environment in which the command says what it imports."""
        return {**environment, IMPORTS_VARIABLE: str(self._file)}

    def start_or_discard(
        self, pid: int, command: Sequence[str], environment: Mapping[str, str]
    ) -> None:
        """Start the standby once the command `pid` trains; discard it when memory is short."""
        if self._waiting is None:
            if (
                self._for is None
                and self._importing_process() == pid
                and not self._is_memory_short(_memory_size(pid))
            ):
                self._for = ([*command], {**environment})
                self._start_if_possible()
            return
        alive = self._read_answers()
        if self._parted:
            self._discard(
                self._parse_refusal()
                or ("another program took its place" if alive else "it has ended")
            )
        elif alive and self._size and self._is_memory_short(self._size):
            self._discard(f"memory is short, and it holds {self._size >> 20} MiB")

    def take_start(
        self, command: Sequence[str], environment: Mapping[str, str]
    ) -> ReadyStart | None:
        """Return the standby process as the next start, which runs from now on; None: start
        the command normally.
        """
        why = self._release_standby(command, environment) if self._waiting is not None else ""
        waiting, self._for = self._waiting, None
        if waiting is None:
            return None
        if why:
            self._discard(why)
            return None
        waiting.link.close()
        self._waiting = None
        waiting.ready.child.began_s = time.monotonic()
        return waiting.ready

    def _release_standby(self, command: Sequence[str], environment: Mapping[str, str]) -> str:
        """Let the standby process run the script; return why it does not, or must not."""
        waiting = self._waiting
        if waiting is None or self._for != ([*command], {**environment}):
            return "the arguments or the environment differ"
        if not self._read_answers() or not self._size:
            return self._parse_refusal() or "its imports were not done yet"
        waiting.ready.output.mark_begin()  # before it prints
        with suppress(OSError):
            waiting.link.send(b"\n")
        until_s = time.monotonic() + ANSWERS_S
        while self._read_answers() and not self._has_gone_on() and time.monotonic() < until_s:
            select.select([waiting.link.fileno(), waiting.ready.child.fileno()], [], [], 0.05)
        return "" if self._has_gone_on() else self._parse_refusal() or "it does not answer"

    def close(self) -> None:
        """End it without a message."""
        self._end()
        self._for = None

    def _start_if_possible(self) -> None:
        command, environment = self._for or ([], {})
        try:
            why = "" if self._obeyed else _why_orders_may_be_lost(command[0], environment)
            if not why:
                self._start(command, environment)
        except (OSError, HoldfastError) as error:  # the command at work goes on
            why = str(error)
        if why:
            say(f"{self._name}: no standby: {why}")

    def _start(self, command: Sequence[str], environment: Mapping[str, str]) -> None:
        ours, theirs = socket.socketpair()
        ours.setblocking(False)
        theirs.set_inheritable(True)
        path = os.pathsep.join(filter(None, [str(HOOK), environment.get("PYTHONPATH", "")]))
        more = {"PYTHONPATH": path, CHANNEL: f"{theirs.fileno()},{self._file}"}
        output = Output()
        try:
            child = Child(command, {**environment, **more}, output.streams)
        except BaseException:
            output.__exit__()
            ours.close()
            raise
        finally:
            theirs.close()
            output.close_child_ends()
        self._heard, self._size, self._parted = b"", 0, False
        self._waiting = _StandbyProcess(ReadyStart(output, child), ours)
        self._note("standby", pid=child.pid)

    def _read_answers(self) -> bool:
        """Read its answers; return whether it is alive."""
        waiting = self._waiting
        if waiting is None:
            return False
        with suppress(OSError):
            while said := waiting.link.recv(4096):
                self._heard += said
            self._parted = True
        found = re.search(rb"^ready (\d+)\n", self._heard, re.MULTILINE)
        if found and not self._size:
            self._size, self._obeyed = int(found[1]), True
            say(
                f"{self._name}: a standby has done the imports, "
                f"and waits; it holds {self._size >> 20} MiB"
            )
        child = waiting.ready.child
        child.update()
        return child.code is None and not child.gone

    def _has_gone_on(self) -> bool:
        return b"go" in self._heard.split(b"\n")[:-1]

    def _parse_refusal(self) -> str:
        found = re.search(rb"^no (.*)\n", self._heard, re.MULTILINE)
        return found[1].decode(errors="replace") if found else ""

    def _discard(self, why: str) -> None:
        self._end()
        self._note("standby_discarded", why=why)
        say(f"{self._name}: the standby is discarded: {why}; the next start is a cold one")

    def _end(self) -> None:
        waiting, self._waiting = self._waiting, None
        if waiting is not None:
            waiting.link.close()
            with waiting.ready.output, suppress(ChildProcessError), waiting.ready.child:
                pass

    def _importing_process(self) -> int | None:
        """Return the process that has written the list of its imports."""
        with suppress(OSError, *UNREADABLE):
            return _IMPORTED.decode(self._file.read_bytes()).pid
        return None

    def _is_memory_short(self, need: int) -> bool:
        free, whole = free_and_total_memory()
        short = free < need + SHARE * whole
        if short and self._waiting is None and not self._told_short:
            self._told_short = True
            say(
                f"{self._name}: no standby: it may hold {need >> 20} MiB, "
                f"and {free >> 20} MiB of memory are free"
            )
        return short


def _why_orders_may_be_lost(python: str, environment: Mapping[str, str]) -> str:
    """Return why a standby might not find its orders, and would run the script at once: `python`
    may be a wrapper.
    """
    path, number = str(HOOK / "nothing"), "0"
    more = {"PYTHONPATH": path, CHANNEL: number}
    nothing, all_of_it = subprocess.DEVNULL, {**environment, **more}
    try:
        words = [python, "-c", _PROBE, str(HOOK)]
        done = subprocess.run(
            words,
            env=all_of_it,
            stdin=nothing,
            capture_output=True,
            timeout=ANSWERS_S,
            check=False,
            text=True,
        )
    except subprocess.TimeoutExpired:
        return f"{python} does not answer"
    found = done.stdout.splitlines()[-1:]
    return (
        ""
        if found == [f"{path} {number} True 0"]
        else f"{python} starts Python with other settings"
    )


def _memory_size(pid: int) -> int:
    with suppress(OSError):
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    return 0
