"""A run that is looked at again and again: what is new is read from the end of its journal."""

from __future__ import annotations

import math
import os
import time
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from .. import journal, owner
from ..cluster.slurm import Queued
from ..journal import CLOSING, Event, JournalFollower
from ..legible import size
from ..owner import Facts
from ..supervise import status
from ..supervise.place import JOURNAL
from ..supervise.status import RunDirectories, Status

BARS = "▁▂▃▄▅▆▇█"  # of a sparkline
TAIL_BYTES = 1 << 17  # of a journal that is read at first
POINTS = 60  # of a metric that are kept
PACE_S = 600.0  # the pace is that of the last ten minutes
SILENT_S = 30.0  # a run of which nothing was heard for so long may have died
NEW_STATUS = {"begin", "restored", *CLOSING}  # events after which its state is looked up again


class LastSave(NamedTuple):
    """The newest save. `at_s`: Unix seconds; the others: seconds."""

    step: int
    at_s: float
    stall_s: float
    save_s: float


class LiveRun:
    """What is known of a run now; `refresh` brings it up to date.

    A refresh of a run that has written nothing costs some lookups of files.
    """

    def __init__(self, place: RunDirectories) -> None:
        self.place = place
        self.status: Status | None = None
        self.metrics: dict[str, deque[float]] = {}
        self.saved: LastSave | None = None
        self.epoch: int | None = None
        self.owner: Facts = {}
        self._total: tuple[str, int] | None = None  # of the outermost loop: kind and number
        self._epoch_began: int | None = None  # the first step of an epoch that was seen whole
        self._epoch_steps: int | None = None
        self._steps: deque[tuple[float, int]] = deque()
        self._follower = (
            None if place.run is None else JournalFollower(place.run, tail_bytes=TAIL_BYTES)
        )
        self._inode = _inode(place)
        self._looked: tuple[object, ...] = ()
        self._asked_s = 0.0  # when its process was looked for

    @property
    def is_removed(self) -> bool:
        """Whether its directory was removed; another one may have taken its place."""
        return _inode(self.place) != self._inode

    @property
    def step(self) -> int | None:
        """The step that it has reached."""
        if self._steps:
            return self._steps[-1][1]
        return None if self.status is None else self.status.step

    @property
    def steps_per_s(self) -> float | None:
        """Its pace in the last ten minutes; None: it is not at work, or not long enough."""
        if len(self._steps) < 2 or self.status is None or self.status.state != "running":
            return None
        (first_s, first), (last_s, last) = self._steps[0], self._steps[-1]
        return (last - first) / (last_s - first_s) if last_s - first_s > 1 else None

    @property
    def heard_s(self) -> float | None:
        """When its journal was written last, in Unix seconds."""
        return self._steps[-1][0] if self._steps else None

    @property
    def left_s(self) -> float | None:
        """The seconds until its loop ends at this pace; None: not known."""
        if self._total is None or self.step is None or not self.steps_per_s:
            return None
        kind, total = self._total
        if kind == "epochs":
            if self._epoch_steps is None:
                return None
            total *= self._epoch_steps
        return max(0.0, (total - self.step) / self.steps_per_s)

    def refresh(self, queued: Sequence[Queued] | None, now_s: float) -> bool:
        """Read what is new; return whether anything is. `queued`: the user's jobs, if known."""
        events: list[Event] = []
        if self._follower is not None:
            before = self._follower.attempt
            with suppress(OSError):
                events = self._follower.read_new()
            if self._follower.attempt != before:
                self._begin_attempt()
        for event in events:
            self._note(event)
        looked = (
            self._follower and self._follower.attempt,
            _signature(self.place),
            self._jobs(queued),
        )
        again = (
            self.status is None
            or looked != self._looked
            or any(event["event"] in NEW_STATUS for event in events)
            or self._may_have_died(now_s)
        )
        if again:
            self._looked = looked
            self.status = status.run_status(self.place, queued)
        return bool(events) or again

    def _may_have_died(self, now_s: float) -> bool:
        """Return whether nothing was heard of it for long, and its process is gone."""
        silent_s = now_s - max(self._asked_s, self.heard_s or 0.0)
        if self.status is None or self.status.state != "running" or silent_s < SILENT_S:
            return False
        self._asked_s = now_s
        return not self.owner or owner.proven_gone(self.owner, lambda: self.heard_s or now_s)

    def _jobs(self, queued: Sequence[Queued] | None) -> tuple[tuple[str, str], ...]:
        """Return the states of the run's jobs."""
        known = (self.status.job or "").split("_")[0] if self.status is not None else ""
        return tuple(
            (each.job, each.state)
            for each in queued or ()
            if each.job == known or self.place.submitted.includes(each)
        )

    def _begin_attempt(self) -> None:
        self._steps.clear()
        self._epoch_began = None
        self.owner = {}
        if self._follower is not None:
            head: list[Event] = []
            with suppress(OSError), open(self._follower.path, "rb") as file:
                head = journal.parse(file.read(TAIL_BYTES))
            for event in head:
                if event["event"] == "begin" and isinstance(event.get("owner"), dict):
                    self.owner = event["owner"]
                elif event["event"] == "loop":
                    self._note(event)

    def _note(self, event: Event) -> None:
        kind, time_s, step = event["event"], float(event["time"]), journal.position(event)[0]
        if kind in {"metrics", "at", "restored", "first_step"}:
            self._steps.append((time_s, step))
            while self._steps[-1][0] - self._steps[0][0] > PACE_S:
                self._steps.popleft()
        if kind == "metrics":
            for name, value in event["values"].items():
                self.metrics.setdefault(name, deque(maxlen=POINTS)).append(float(value))
            epoch = event.get("epoch")
            if epoch is not None and event.get("phase") == "step" and epoch != self.epoch:
                if (
                    self.epoch is not None
                    and self._epoch_began is not None
                    and epoch == self.epoch + 1
                ):
                    self._epoch_steps = step - self._epoch_began
                self._epoch_began = step if self.epoch is not None else None
                self.epoch = epoch
        elif kind == "saved":
            stall_s, save_s = float(event.get("stall_s", 0)), float(event.get("save_s", 0))
            self.saved = LastSave(step, time_s, stall_s, save_s)
        elif kind == "loop" and isinstance(event.get("total"), int):
            self._total = (str(event.get("kind")), event["total"])


def sparkline(values: Sequence[float], width: int) -> str:
    """Return the last values as small bars; what is no number is a cross."""
    shown = [*values][-width:]
    finite = [value for value in shown if math.isfinite(value)]
    if not finite:
        return "×" * len(shown)
    least, most = min(finite), max(finite)
    height = (most - least) or 1.0
    return "".join(
        BARS[round((value - least) / height * (len(BARS) - 1))] if math.isfinite(value) else "×"
        for value in shown
    )


def process_facts(facts: Facts) -> str:
    """Return the memory of a run's process and of its node, and its GPUs; empty: it runs elsewhere,
    or psutil and nvidia-ml-py are not installed.
    """
    if facts.get("host") != os.uname().nodename or owner.proven_gone(facts, time.time):
        return ""
    words = []
    with suppress(ImportError):
        import psutil

        with suppress(psutil.Error):
            used, node = psutil.Process(facts["pid"]).memory_info().rss, psutil.virtual_memory()
            words.append(f"process {size(used)}, node {node.percent:.0f}% of {size(node.total)}")
    with suppress(ImportError):
        import pynvml

        with suppress(pynvml.NVMLError):
            pynvml.nvmlInit()
            for index in range(pynvml.nvmlDeviceGetCount()):
                device = pynvml.nvmlDeviceGetHandleByIndex(index)
                memory = pynvml.nvmlDeviceGetMemoryInfo(device)
                busy = pynvml.nvmlDeviceGetUtilizationRates(device).gpu
                words.append(f"GPU {index} {busy}%, {size(memory.used)} of {size(memory.total)}")
    return "; ".join(words)


def _inode(place: RunDirectories) -> int:
    """Return the number of its directory; 0: there is none."""
    with suppress(FileNotFoundError):
        return os.stat(place.directory or place.run or "").st_ino
    return 0


def _signature(place: RunDirectories) -> tuple[int, int] | None:
    """Return what changes when the supervisor writes a line."""
    if place.directory is None:
        return None
    with suppress(OSError):
        facts = os.stat(Path(place.directory) / JOURNAL)
        return facts.st_mtime_ns, facts.st_size
    return None
