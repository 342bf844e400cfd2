"""The warden: a process between its starter (us) and the command, so that no process of the command
outlives either.

It starts the command, adopts processes that the command abandons, forwards signals, and reaps. When
its starter dies, however suddenly, the socket between the two closes and the warden kills all that
is left. When the warden dies, the kernel kills the command. The starter then kills the rest, if it
has adopted them (`adopt_orphans`).

It receives single bytes: each is the number of a signal, plus ALONE when only the command itself is
meant. It sends lines: `pid 17` when the command was started, `error 2` when it could not be, `code
-9` when it has ended. It closes the socket when no process of the command is left.
"""

from __future__ import annotations

import ctypes
import os
import select
import signal
import socket
import subprocess
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from typing import Any, NamedTuple

from . import processes

_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36  # prctl(2)
_ROUND_MS = 20
ALONE = 0x80
# These signals get their default action again, even if our caller ignores them. A shell ignores
# Ctrl-C and Ctrl-\ for a command that ends with `&`. The terminal's own signals never reach the
# command, which is in a separate group. SIGHUP stays ignored: nohup asks for that.
STAYS_IGNORED = {signal.SIGHUP}
_UNCHANGED = {signal.SIGKILL, signal.SIGSTOP}
_prctl: Any = getattr(ctypes.CDLL(None), "prctl", lambda *_: -1)


class Streams(NamedTuple):
    """Descriptors for the command's input, output and errors; None: the command inherits ours."""

    stdin: int | None
    stdout: int | None
    stderr: int | None
    terminal: bool = False  # the output is a terminal
    sources: tuple[int, ...] = ()  # the starter's other ends, which only the starter may keep open

    def close(self, *, sources: bool) -> None:
        """Close the descriptors that this process has of them."""
        for descriptor in {
            self.stdin,
            self.stdout,
            self.stderr,
            *(self.sources if sources else ()),
        }:
            if descriptor is not None:
                os.close(descriptor)


def adopt_orphans(*, orphans: bool) -> None:
    """Become, or stop being, the process that adopts descendants whose parent dies."""
    _prctl(_PR_SET_CHILD_SUBREAPER, int(orphans), 0, 0, 0)


def kill_descendants() -> None:
    """Kill every descendant of this process.
    All are stopped first: a stopped process cannot fork.
    """
    seen: set[int] = set()
    while fresh := set(processes.descendants(os.getpid())) - seen:
        send_signal(fresh, signal.SIGSTOP)
        seen |= fresh
    send_signal(seen, signal.SIGKILL)


def run_warden(
    link: socket.socket,
    command: Sequence[str],
    environment: Mapping[str, str],
    streams: Streams,
    mask: Sequence[int],
) -> None:
    """Run the warden, in a process forked for it with all signals blocked.
    `mask`: the command's signal mask.
    """
    os.setpgid(0, 0)  # a signal to our starter's group does not reach us: we have time to clean up
    adopt_orphans(orphans=True)
    ours, theirs = socket.socketpair()
    ours.setblocking(False)
    theirs.setblocking(False)
    signal.set_wakeup_fd(theirs.fileno(), warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGCHLD])
    try:
        process = _start_command(command, environment, streams, mask)
    except (OSError, subprocess.SubprocessError) as error:
        _send_line(link, f"error {getattr(error, 'errno', None) or 0}")
        return
    streams.close(sources=True)  # only the command holds its ends: they close when it ends
    _close_inherited({link.fileno(), ours.fileno(), theirs.fileno()})
    _send_line(link, f"pid {process.pid}")
    _reap_and_obey(link, ours, process.pid)


def _start_command(
    command: Sequence[str], environment: Mapping[str, str], streams: Streams, mask: Sequence[int]
) -> subprocess.Popen[bytes]:
    warden = os.getpid()

    def settle() -> None:
        """Prepare the new process: it dies with us, and signals have their default actions."""
        _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        if os.getppid() != warden:
            os._exit(1)
        for number in signal.valid_signals() - _UNCHANGED:
            if callable(signal.getsignal(number)) or number not in STAYS_IGNORED:
                signal.signal(number, signal.SIG_DFL)
        if streams.terminal:
            # a background process may then write to the terminal
            signal.signal(signal.SIGTTOU, signal.SIG_IGN)
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)

    return subprocess.Popen(
        command,
        env=environment,
        stdin=streams.stdin,
        stdout=streams.stdout,
        stderr=streams.stderr,
        # the command inherits what the caller's shell opened for it; our own close themselves
        close_fds=False,
        process_group=0,
        preexec_fn=settle,  # noqa: PLW1509  there is only one thread
    )


def _close_inherited(kept: Collection[int]) -> None:
    """Close the descriptors that belong to our starter: its pipes must close when it ends,
    not when we end.
    """
    with suppress(OSError):
        for number in map(int, os.listdir("/proc/self/fd")):
            if number > 2 and number not in kept:
                with suppress(OSError):  # the descriptor that was the list itself
                    if not os.get_inheritable(number):
                        os.close(number)


def _reap_and_obey(link: socket.socket, wakeup: socket.socket, pid: int) -> None:
    """Reap, and carry out orders, until no process is left."""
    ended, killing = False, False
    poller = select.poll()
    poller.register(link, select.POLLIN)
    poller.register(wakeup, select.POLLIN)
    while True:
        poller.poll(_ROUND_MS if killing else None)
        with suppress(BlockingIOError):
            while wakeup.recv(4096):
                pass
        orders = _read_orders(link) if not killing else b""
        code, left = reap_children(pid)
        if code is not None:
            ended = True
            _send_line(link, f"code {code}")
        if not left:
            return
        killing = killing or orders is None or signal.SIGKILL in orders
        if killing:
            if not ended:
                send_signal([-pid], signal.SIGKILL)
            kill_descendants()
            continue
        for order in orders or b"":
            whom = processes.descendants(os.getpid()) if ended else [pid if order & ALONE else -pid]
            send_signal(whom, order & ~ALONE)


def _read_orders(link: socket.socket) -> bytes | None:
    """Return the orders that the starter has sent since the last call;
    None if the starter is gone.
    """
    try:
        return link.recv(4096, socket.MSG_DONTWAIT) or None
    except BlockingIOError:
        return b""
    except OSError:
        return None


def reap_children(child: int) -> tuple[int | None, bool]:
    """Return the exit status of `child`, if it has ended,
    and whether anything is left to wait for.
    """
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


def _send_line(link: socket.socket, line: str) -> None:
    with suppress(OSError):  # the starter is gone: the next look detects that
        link.sendall(f"{line}\n".encode())


def send_signal(pids: Collection[int], number: int) -> None:
    """Send a signal to each process; a negative number means the whole group. Source: kill(2)."""
    for pid in pids:
        with suppress(ProcessLookupError, PermissionError):
            os.kill(pid, number)
