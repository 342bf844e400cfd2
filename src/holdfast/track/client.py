"""Client: the run's end of its trackers. It starts a worker for each, and starts it again after a
pause when it has ended. The training waits for nothing of this, but at its end, up to a limit.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from ..mirror.process import WorkerProcess
from ..mirror.protocol import WorkerOrder
from ..provenance import redact_mapping
from ..terminal import say
from .options import TrackerOptions

DRAIN_S = 60.0  # how long the end of a run waits for its trackers
QUIET_S = 60.0  # a worker that was not heard for so long hangs, perhaps in its tracker's library
TOLD_S = 1.0  # a wait that takes longer is announced
RETRY_S = (1.0, 2.0, 5.0, 10.0, 30.0, 60.0)  # before a worker is started again; then the last one


class Trackers:
    """The trackers of one attempt. `warn` journals a line and prints it."""

    def __init__(
        self,
        trackers: Sequence[TrackerOptions],
        root: Path,
        attempt: int,
        hyperparameters: Mapping[str, Any] | None,
        warn: Callable[[str], None],
    ) -> None:
        self._root, self._pid = root, os.getpid()
        params = redact_mapping(hyperparameters or {})
        self._links = [_Link(each, root, attempt, params, warn) for each in trackers]
        self.look()

    def look(self) -> None:
        """Hear the workers, and start those that have ended again."""
        for link in self._links:
            link.look()

    def drain(self, until: float) -> None:
        """Wait until the trackers have all metrics, at most DRAIN_S seconds and not beyond `until`
        (Unix seconds).
        """
        began_s = time.monotonic()
        limit_s = min(DRAIN_S, until - time.time())
        told = False
        for link in self._links:
            link.leave()
        while (late := [each for each in self._links if not each.over]) and (
            passed_s := time.monotonic() - began_s
        ) < limit_s:
            self.look()
            if passed_s > TOLD_S and not told:
                told = True
                names = ", ".join(each.name for each in late)
                say(f"{self._root}: waits for {names}, at most {limit_s:.0f} s")
            time.sleep(0.05)
        for link in late:
            link.warn(
                f"{self._root}: {link.name} does not have all metrics yet; "
                "the next start sends the rest"
            )
        self.close()

    def close(self) -> None:
        """End the workers."""
        if os.getpid() == self._pid:
            for link in self._links:
                link.close()


class _Link:
    """One tracker, and the worker that serves it, if there is one now."""

    def __init__(
        self,
        tracker: TrackerOptions,
        root: Path,
        attempt: int,
        params: Mapping[str, Any],
        warn: Callable[[str], None],
    ) -> None:
        self.name, self.warn, self._root = str(tracker), warn, root
        self._opening = {
            "tracker": msgspec.to_builtins(tracker),
            "root": os.fsencode(root).hex(),  # a path need not be UTF-8
            "folder": os.fsencode(os.getcwd()).hex(),
            "attempt": attempt,
            "title": tracker.name or root.name,
            "params": params,
            "parent": os.getpid(),
        }
        self.over = False  # nothing is left to do
        self._process: WorkerProcess | None = None
        self._failures, self._next_s, self._heard_s = 0, 0.0, 0.0
        self._down = self._leaving = False

    def look(self) -> None:
        if self.over or (self._process is None and time.monotonic() < self._next_s):
            return
        if self._process is None:
            try:
                self._start()
            except OSError as error:
                self._note_failure(f"its process cannot be started: {error.strerror}")
            return
        events = self._process.read(0)
        if events:
            self._heard_s = time.monotonic()
        elif events is not None and time.monotonic() - self._heard_s > QUIET_S:
            self._note_down(f"nothing was heard from it for {QUIET_S:.0f} s")
        for event in events or ():
            self.over = self.over or event.what == "drained"
            if event.what == "told":
                self.warn(f"{self._root}: {self.name}: {event.text}")
            elif event.what == "up":
                self._failures = 0
                if self._down:
                    self._down = False
                    say(f"{self._root}: {self.name} is kept up again")
        if events is None:
            why = self._process.exit_reason()
            self.close()
            self.over = not why  # it was done, or a later attempt has begun
            if why:
                self._note_failure(why)

    def leave(self) -> None:
        """Let the worker send the rest and end. Start it without long pauses from now on."""
        self._leaving, self._next_s = True, 0.0
        if self._process is not None:
            self._process.write(WorkerOrder("drain"))

    def close(self) -> None:
        if self._process is not None:
            self._process.end()
            self._process = None

    def _start(self) -> None:
        self._heard_s = time.monotonic()
        self._process = WorkerProcess([sys.executable], "holdfast.track", "its")
        self._process.write(WorkerOrder("open", args=self._opening), whole=True)
        if self._leaving:
            self._process.write(WorkerOrder("drain"))

    def _note_failure(self, why: str) -> None:
        pause_s = RETRY_S[0] if self._leaving else RETRY_S[min(self._failures, len(RETRY_S) - 1)]
        self._failures += 1
        self._next_s = time.monotonic() + pause_s
        self._note_down(f"{why}; it is tried again")

    def _note_down(self, why: str) -> None:
        """Tell once that the tracker falls behind."""
        if not self._down:
            self._down = True
            self.warn(f"{self._root}: {self.name} is not kept up: {why}")
