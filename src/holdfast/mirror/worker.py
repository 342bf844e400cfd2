"""Worker: the process that talks to the places, so that nothing of it can stall or crash the training.

It reads requests from stdin and writes replies to what was stdout. Each place has a thread of its own. It ends when the
run tells it to, at the end of stdin, and when its parent is gone: forked loaders of the run may hold the pipe open.
"""

from __future__ import annotations

import os
import select
import threading
from contextlib import suppress
from typing import IO, NoReturn

import msgspec

from .. import disk
from .lane import OPS, Lane
from .place import told
from .protocol import LineBuffer, Reply, Request, line, requests

LOOK_S = 1.0  # between two checks that the parent is alive and no place is stuck
PATIENCE_S = 60.0  # beyond its budget: each call of a library has a time limit; one that exceeds it hangs for good

NICE = 10  # the training's processes come first
_BAD, _STUCK = 2, 3  # exit statuses: the run sent an invalid request; a library hangs


class MirrorWorker:
    """Serves the requests of one run. `out` gets the replies."""

    def __init__(self, out: IO[bytes], *, patience_s: float = PATIENCE_S) -> None:
        self._out, self._patience_s = out, patience_s
        self._turn = threading.Lock()
        self._lanes: list[Lane] = []
        self._owed: dict[int, Lane] = {}  # requests without a reply
        self._parent = os.getppid()

    def serve(self, source: int) -> NoReturn:
        """Read requests from the descriptor `source`, and end the process when there are no more."""
        lines = LineBuffer()
        while True:
            ready, _, _ = select.select([source], [], [], LOOK_S)
            if os.getppid() != self._parent:
                os._exit(0)
            self._end_if_stuck()
            data = os.read(source, 1 << 16) if ready else None
            if data == b"":
                os._exit(0)
            try:
                for text in lines.feed(data or b""):
                    self._take(requests.decode(text))
            except (ValueError, TypeError, KeyError) as error:  # msgspec's errors are ValueErrors
                self._leave(f"it was sent what is no request: {type(error).__name__}", _BAD)

    def _take(self, request: Request) -> None:
        if request.op == "close":
            os._exit(0)
        if request.op == "cancel":
            asked = request.args["request"]
            if (lane := self._owed.get(asked)) is not None:
                lane.cancel(asked)
            return
        if request.op != "open":
            if request.op not in OPS or not 0 <= request.place < len(self._lanes):
                raise ValueError(request.op)
            self._owed[request.id] = lane = self._lanes[request.place]
            lane.give(request)
            return
        if not self._lanes:
            if request.args["parent"] != self._parent:
                os._exit(0)  # the run is gone already
            with suppress(OSError):  # a relative path is that of the run when it began, wherever it is now
                os.chdir(request.args["folder"])
            private = request.args["private"]
            self._lanes = [Lane(url, self.say, private=private) for url in request.args["places"]]
        # in a thread: a library that is slow to import holds up no other place
        threading.Thread(target=self._tell_opened, args=[request.id], daemon=True).start()

    def _tell_opened(self, request: int) -> None:
        self.say(Reply(request, ok={"places": [msgspec.to_builtins(lane.opened()) for lane in self._lanes]}))

    def say(self, reply: Reply) -> None:
        """Send a reply or a note. If the run reads no more, the process ends."""
        with self._turn:
            if not reply.note:
                self._owed.pop(reply.id, None)
            try:
                self._out.write(line(reply))
                self._out.flush()
            except OSError:
                os._exit(0)

    def _end_if_stuck(self) -> None:
        """A call that hangs cannot be ended; its process can. The run starts another one."""
        for lane in self._lanes:
            if (request := lane.stuck(self._patience_s)) is not None:
                self._leave(f"{told(lane.opened().shown)}: {request.op} hangs", _STUCK)

    def _leave(self, why: str, status: int) -> NoReturn:
        for request in sorted(self._owed):
            self.say(Reply(request, error="silent", text=why))
        self.say(Reply(0, note="bye", text=why))
        os._exit(status)


def main() -> NoReturn:
    """Take stdin and stdout for the protocol; nothing else reads or writes them from here on."""
    source, target, nowhere = os.dup(0), os.dup(1), disk.nowhere()
    for taken in (0, 1, 2):  # a library's output could contain a secret, or break a line
        os.dup2(nowhere, taken)
    os.close(nowhere)
    os.nice(NICE)
    MirrorWorker(os.fdopen(target, "wb")).serve(source)
