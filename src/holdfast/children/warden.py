"""The warden: a process between us and the command, so that nothing of the command outlives either.

It starts the command, adopts whatever the command abandons, hands on signals, and reaps. When its starter dies,
however suddenly, the socket between the two closes and the warden kills all that is left. When the warden dies, the
kernel kills the command, and its starter kills the rest, if that falls to it (`adopt`).

It hears single bytes, each the number of a signal, plus ALONE when the command itself is meant. It says lines: `pid 17` when the command has been started, or
`error 2` when it could not be; `code -9` when it has ended. It closes the socket when nothing of it is left.
"""

from __future__ import annotations

import ctypes
import os
import select
import signal
import socket
import subprocess
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any, NamedTuple

from . import processes

_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36  # prctl(2)
_ROUND_MS = 20
ALONE = 0x80
_prctl: Any = getattr(ctypes.CDLL(None), "prctl", lambda *_: -1)


class Streams(NamedTuple):
    """Descriptors for the command's input, output and errors; None: ours."""

    stdin: int | None
    stdout: int | None
    stderr: int | None
    terminal: bool = False  # the output is one
    sources: tuple[int, ...] = ()  # the starter's other ends, which are nobody else's

    def close(self, *, sources: bool) -> None:
        """Give up what this process has of them."""
        for descriptor in {self.stdin, self.stdout, self.stderr, *(self.sources if sources else ())}:
            if descriptor is not None:
                os.close(descriptor)


def adopt(*, orphans: bool) -> None:
    """Become, or stop being, the one whom descendants fall to when their parent dies."""
    _prctl(_PR_SET_CHILD_SUBREAPER, int(orphans), 0, 0, 0)


def kill_all() -> None:
    """Kill every descendant of this process. First all are stopped: what is stopped cannot fork."""
    seen: set[int] = set()
    while fresh := set(processes.descendants(os.getpid())) - seen:
        _send(fresh, signal.SIGSTOP)
        seen |= fresh
    _send(seen, signal.SIGKILL)


def serve(
    link: socket.socket,
    command: Sequence[str],
    environment: Mapping[str, str],
    streams: Streams,
    mask: Sequence[int],
) -> None:
    """The warden's life, in a process that was forked for it with all signals blocked. `mask`: those of the command."""
    os.setpgid(0, 0)  # what strikes our starter's group is to leave us time to clean up
    adopt(orphans=True)
    ours, theirs = socket.socketpair()
    ours.setblocking(False)
    theirs.setblocking(False)
    signal.set_wakeup_fd(theirs.fileno(), warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGCHLD])
    try:
        process = _start(command, environment, streams, mask)
    except (OSError, subprocess.SubprocessError) as error:
        _say(link, f"error {getattr(error, 'errno', None) or 0}")
        return
    streams.close(sources=True)  # the command's alone: they are to end with it
    _say(link, f"pid {process.pid}")
    _attend(link, ours, process.pid)


def _start(
    command: Sequence[str], environment: Mapping[str, str], streams: Streams, mask: Sequence[int]
) -> subprocess.Popen[bytes]:
    warden = os.getpid()

    def settle() -> None:
        """In the new process: it dies with us, and takes signals as if nobody stood above it."""
        _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        if os.getppid() != warden:
            os._exit(1)
        for number in signal.valid_signals():
            if callable(signal.getsignal(number)):
                signal.signal(number, signal.SIG_DFL)
        if streams.terminal:
            signal.signal(signal.SIGTTOU, signal.SIG_IGN)  # it may write, being in the background of the terminal
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)

    return subprocess.Popen(
        command,
        env=environment,
        stdin=streams.stdin,
        stdout=streams.stdout,
        stderr=streams.stderr,
        close_fds=False,  # what the caller's shell opened for it; ours close themselves
        process_group=0,
        preexec_fn=settle,  # noqa: PLW1509  there is one thread
    )


def _attend(link: socket.socket, wakeup: socket.socket, pid: int) -> None:
    """Until nothing is left: reap, and do as we are told."""
    ended, killing = False, False
    poller = select.poll()
    poller.register(link, select.POLLIN)
    poller.register(wakeup, select.POLLIN)
    while True:
        poller.poll(_ROUND_MS if killing else None)
        with suppress(BlockingIOError):
            while wakeup.recv(4096):
                pass
        orders = _orders(link) if not killing else b""
        code, left = _reap(pid)
        if code is not None:
            ended = True
            _say(link, f"code {code}")
        if not left:
            return
        killing = killing or orders is None or signal.SIGKILL in orders
        if killing:
            if not ended:
                _send_group(pid, signal.SIGKILL)
            kill_all()
            continue
        for order in orders or b"":
            number = order & ~ALONE
            if ended:
                _send(processes.descendants(os.getpid()), number)
            elif order & ALONE:
                _send([pid], number)
            else:
                _send_group(pid, number)


def _orders(link: socket.socket) -> bytes | None:
    """What the starter said since; None when it is gone."""
    try:
        return link.recv(4096, socket.MSG_DONTWAIT) or None
    except BlockingIOError:
        return b""
    except OSError:
        return None


def _reap(child: int) -> tuple[int | None, bool]:
    """The exit status of `child`, if it has ended by now, and whether anything is left to wait for."""
    code = None
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return code, False
        if pid == 0:
            return code, True
        if pid == child:
            code = os.waitstatus_to_exitcode(status)


def _say(link: socket.socket, line: str) -> None:
    with suppress(OSError):  # nobody listens any more: the next look says so
        link.sendall(f"{line}\n".encode())


def _send_group(group: int, number: int) -> None:
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(group, number)


def _send(pids: Sequence[int] | set[int], number: int) -> None:
    for pid in pids:
        with suppress(ProcessLookupError, PermissionError):
            os.kill(pid, number)
