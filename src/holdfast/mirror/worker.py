"""Worker: the process that talks to the places, so that nothing of it can stall or crash the
training.

It reads orders from stdin and writes events to what was stdout. Each place has a thread of its own.
It ends when the run tells it to, at the end of stdin, and when its parent is gone: forked loaders
of the run may hold the pipe open.
"""

from __future__ import annotations

import os
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import IO, NoReturn

import msgspec

from ..store.checkpoint_index import CheckpointIndex
from ..store.signing import Key
from .apart import take_pipes
from .place import redact_url
from .protocol import ALL, Event, WorkerOrder, encode_line, orders, rule_from_json
from .replicator import Replicator

LOOK_S = 1.0  # between two checks that the parent is alive and no place is stuck
# beyond its budget: each call of a library has a time limit; one that exceeds it hangs for good
PATIENCE_S = 60.0

_BAD, _STUCK = 2, 3  # exit statuses: the run sent an invalid order; a library hangs


class MirrorWorker:
    """Serves one run's orders. `out` receives the events, and `errors` the reason if it
    exits by itself.
    """

    def __init__(self, out: IO[bytes], errors: IO[bytes]) -> None:
        self._out, self._errors = out, errors
        self._turn = threading.Lock()
        self._replicators: list[Replicator] = []
        self._drained: set[int] = set()
        self._parent = os.getppid()

    def serve(self, source: IO[bytes]) -> NoReturn:
        """Read orders and carry them out; end the process when stdin ends."""
        threading.Thread(target=self._exit_when_stuck_or_orphaned, daemon=True).start()
        for text in source:
            try:
                self._handle_order(orders.decode(text))
            except (
                ValueError,
                TypeError,
                LookupError,
            ) as error:  # msgspec's errors are ValueErrors
                self._exit_process(f"it was sent what is no order: {type(error).__name__}", _BAD)
        os._exit(0)

    def _handle_order(self, order: WorkerOrder) -> None:
        if order.do == "open":
            self._open_place(order)
        else:
            for replicator in (
                self._replicators if order.place == ALL else [self._replicators[order.place]]
            ):
                replicator.accept_order(order)

    def _open_place(self, order: WorkerOrder) -> None:
        args = order.args
        if args["parent"] != self._parent:
            os._exit(0)  # the run is gone already
        # a relative path is that of the run when it began, wherever it is now
        with suppress(OSError):
            os.chdir(bytes.fromhex(args["folder"]))
        root = Path(os.fsdecode(bytes.fromhex(args["root"])))
        index = CheckpointIndex(root, msgspec.convert(args["key"], Key | None))
        self._replicators = [
            Replicator(
                number, url, rule_from_json(rule), index, self.send_event, private=args["private"]
            )
            for number, (url, rule) in enumerate(args["places"])
        ]
        for replicator in self._replicators:
            replicator.start()

    def send_event(self, event: Event) -> None:
        """Send an event. Exit if the run reads no more, or if all places are drained."""
        with self._turn:
            try:
                self._out.write(encode_line(event))
                self._out.flush()
            except OSError:
                os._exit(0)
            if event.what == "drained":
                self._drained.add(event.place)
                if len(self._drained) == len(self._replicators):
                    os._exit(0)

    def _exit_when_stuck_or_orphaned(self) -> None:
        while os.getppid() == self._parent:
            for replicator in self._replicators:
                # such a call cannot be ended; its process can
                if replicator.is_stuck(PATIENCE_S):
                    self._exit_process(
                        f"{redact_url(replicator.url)}: a call to its library hangs",
                        _STUCK,
                    )
            time.sleep(LOOK_S)
        os._exit(0)

    def _exit_process(self, why: str, status: int) -> NoReturn:
        with suppress(OSError):
            self._errors.write(f"{why}\n".encode())
            self._errors.flush()
        os._exit(status)


def main() -> NoReturn:
    source, target, errors = take_pipes()
    MirrorWorker(target, errors).serve(source)
