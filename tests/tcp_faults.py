"""A proxy in front of any TCP server that makes faults by a plan: what a network does to a connection.

The server may be killed by a fault, too: `kill` ends it, `start` starts it again on the same port.
"""

import contextlib
import select
import socket
import struct
import threading
import time
from collections.abc import Callable
from typing import NamedTuple, Self

from fault_plans import Fault, Plan

PIECE_BYTES = 16 << 10
SLOW_S = 0.02  # for each KiB
SLOW_PIECES = 16
STALL_S = 60.0
DOWN_S = 0.3
FAULTS = (
    "refused", "reset, going up", "reset, coming down", "no answer", "slow link", "a bit turned over", "server killed",
)  # fmt: skip


class Server(NamedTuple):
    """Whom the proxy stands in front of."""

    port: int
    kill: Callable[[], None]
    start: Callable[[], None]


class Proxy:
    """Listens on `port`. A fault's `after` counts pieces of bytes, a connection's beginning as one."""

    def __init__(self, server: Server, plan: Plan) -> None:
        self._server, self._plan, self._over = server, plan, threading.Event()
        self._lock = threading.Lock()
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.port = self._listening.getsockname()[1]
        self._threads = [threading.Thread(target=self._listen)]
        self._threads[0].start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        for thread in self._threads:
            thread.join()
        self._listening.close()

    def _listen(self) -> None:
        self._listening.settimeout(0.05)
        while not self._over.is_set():
            with contextlib.suppress(TimeoutError):
                near, _ = self._listening.accept()
                self._threads.append(threading.Thread(target=self._serve, args=(near,)))
                self._threads[-1].start()

    def _serve(self, near: socket.socket) -> None:
        with near:
            if fault := self._plan.due("connect", at_once=True):
                self._plan.struck(fault)
                _reset(near)
                return
            try:
                far = socket.create_connection(("127.0.0.1", self._server.port), timeout=5)
            except OSError:
                _reset(near)
                return
            with far, contextlib.suppress(OSError):
                Link(self, near, far).pump()

    def over(self) -> bool:
        return self._over.is_set()

    def due(self, request: str) -> Fault | None:
        return self._plan.due(request)

    def struck(self, fault: Fault) -> None:
        self._plan.struck(fault)

    def back(self, fault: Fault) -> None:
        self._plan.back(fault)

    def restart(self) -> None:
        with self._lock:
            self._server.kill()
            time.sleep(DOWN_S)
            self._server.start()


class Link:
    """One connection, both ways."""

    def __init__(self, proxy: Proxy, near: socket.socket, far: socket.socket) -> None:
        self.proxy, self.near, self.far = proxy, near, far
        self.slow = 0
        for end in (near, far):
            end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            end.settimeout(STALL_S)

    def pump(self) -> None:
        while not self.proxy.over():
            ready, _, _ = select.select([self.near, self.far], [], [], 0.1)
            for end in ready:
                data = end.recv(PIECE_BYTES)
                if not data:
                    return
                up = end is self.near
                fault = self.proxy.due("bytes")
                if fault is not None and not self._strike(fault, data, up=up):
                    return
                if fault is None:
                    self._pass(data, up=up)

    def _pass(self, data: bytes, *, up: bool) -> None:
        target = self.far if up else self.near
        if self.slow <= 0:
            target.sendall(data)
            return
        self.slow -= 1
        for start in range(0, len(data), 1024):
            target.sendall(data[start : start + 1024])
            time.sleep(SLOW_S)

    def _strike(self, fault: Fault, data: bytes, *, up: bool) -> bool:
        """Make the fault; whether the connection goes on."""
        if fault.what in ("reset, going up", "reset, coming down") and up != (fault.what == "reset, going up"):
            self.proxy.back(fault)
            self._pass(data, up=up)
            return True
        self.proxy.struck(fault)
        if fault.what == "slow link":
            self.slow = SLOW_PIECES
            self._pass(data, up=up)
            return True
        if fault.what == "a bit turned over":
            at = len(data) // 2
            self._pass(data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :], up=up)
            return True
        if fault.what == "no answer":
            self._stall()
        elif fault.what == "server killed":
            self.proxy.restart()
        else:
            (self.far if up else self.near).sendall(data[: len(data) // 2])
        _reset(self.near)
        _reset(self.far)
        return False

    def _stall(self) -> None:
        """No byte passes any more, until the client gives up."""
        ends = time.monotonic() + STALL_S
        while not self.proxy.over() and time.monotonic() < ends:
            if select.select([self.near], [], [], 0.1)[0] and not self.near.recv(PIECE_BYTES):
                return


def _reset(end: socket.socket) -> None:
    end.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    end.close()
