"""Worker: the process that talks to one tracker and alone imports its library, so that nothing of
it can stall or crash the training.

It reads orders from stdin: `open`, and `drain` at the end of the run. It ends at the end of stdin,
when its parent is gone (forked loaders may hold the pipe open), and with the first error: the run
starts another one, which asks the tracker what it holds.
"""

from __future__ import annotations

import os
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import IO, Any, NoReturn

import msgspec

from .. import disk, modes
from ..mirror.apart import take_pipes
from ..mirror.protocol import Event, encode_line, orders
from ..provenance import redact
from .options import TrackerOptions, WandB, file_name
from .sender import Sender, Tracker

FOLDER = "trackers"  # in the run's directory
LOOK_S = 1.0  # between two looks at the journal, and at the parent
BEAT_S = 10.0  # so often the run hears that this process does not hang
LONGEST_TEXT = 500
_FAILED = 1  # exit status


class TrackWorker:
    """Serves one run's orders."""

    def __init__(self, source: IO[bytes], out: IO[bytes]) -> None:
        self._source, self._out = source, out
        self._parent, self._leaving = os.getppid(), threading.Event()
        self._beat_s, self._is_up = float("-inf"), False

    def serve(self) -> NoReturn:
        """Keep the tracker up to date until the run has ended. Errors leave this method."""
        args = orders.decode(self._source.readline()).args
        if args["parent"] != self._parent:
            os._exit(0)  # the run is gone already
        for work in (self._read_orders, self._exit_when_orphaned):
            threading.Thread(target=work, daemon=True).start()
        options: TrackerOptions = msgspec.convert(args["tracker"], TrackerOptions)
        root = Path(os.fsdecode(bytes.fromhex(args["root"])))
        os.chdir(bytes.fromhex(args["folder"]))  # a relative address is that of the run
        place = root / FOLDER
        modes.inherit_mode(place, of=root)
        disk.make_dirs(place)
        path = place / f"{file_name(options)}.json"
        while disk.lock(path.with_suffix(".lock")) is None:  # an earlier attempt's worker
            self._beat()
            time.sleep(0.2)
        tracker = _reach(options, place, args["params"])
        sender = Sender(tracker, root, args["attempt"], path, args["title"], self._tell)
        sender.note_batch = self._beat
        while not sender.superseded:
            leaving = self._leaving.is_set()  # before the look, which then sees the last line
            sent = sender.send_durable()
            if sender.begun and not self._is_up:
                self._is_up, self._beat_s = True, float("-inf")
            self._beat()
            if leaving and not sent:
                tracker.end(finished=sender.finished)
                self._send_event("drained")
                break
            self._leaving.wait(0 if sent else LOOK_S)
        os._exit(0)

    def _read_orders(self) -> None:
        for text in self._source:
            if orders.decode(text).do == "drain":
                self._leaving.set()
        os._exit(0)

    def _exit_when_orphaned(self) -> None:
        while os.getppid() == self._parent:
            time.sleep(LOOK_S)
        os._exit(0)

    def _tell(self, line: str) -> None:
        self._send_event("told", line)

    def _beat(self) -> None:
        """Let the run hear, now and then, that this process works, and whether it is up."""
        if time.monotonic() - self._beat_s > BEAT_S:
            self._beat_s = time.monotonic()
            self._send_event("up" if self._is_up else "begins")

    def _send_event(self, what: str, text: str = "") -> None:
        with suppress(OSError):  # the run is gone: the threads see it
            self._out.write(encode_line(Event(what, 0, text=text)))
            self._out.flush()


def _reach(options: TrackerOptions, folder: Path, params: dict[str, Any]) -> Tracker:
    if isinstance(options, WandB):
        from .to_wandb import WandBRun

        return WandBRun(options, folder, params)
    from .to_mlflow import MLflowRun

    return MLflowRun(options, params)


def main() -> NoReturn:
    source, target, errors = take_pipes()
    try:
        TrackWorker(source, target).serve()
    except BaseException as error:  # whatever a library raises: it is told, and tried again
        text = redact([" ".join(f"{type(error).__name__}: {error}".split())])[0]
        with suppress(OSError):
            errors.write(text[:LONGEST_TEXT].encode())
            errors.flush()
        os._exit(_FAILED)
