"""Histories of runs whose truth is known: seeded, with torn journals and clocks that jump."""

from __future__ import annotations

import json
import random
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

BEGAN_S = 1_700_000_000.0
STEP_S, IMPORTS_S, RESTORE_S, COMPILE_S, STALL_S, STOP_S = 2.0, 9.0, 3.0, 6.0, 0.5, 1.5
EPOCH, EVALUATION_S = 40, 7.0
ENDS = ("killed", "SIGTERM", "error", "hang", "time limit")


class Truth(NamedTuple):
    seconds: dict[str, float]  # of each category
    wall_s: float
    ends: list[str]
    lost_steps: list[int]


class History:
    """Writes the journals of a run and of its supervisor while a clock of its own goes on."""

    def __init__(
        self, root: Path, seed: int, *, supervised: bool = True, torn: bool = False, jumps: bool = False
    ) -> None:
        self.draw, self.run, self.directory = random.Random(seed), root / "run", root / "supervisor"
        self.supervised, self.torn, self.jumps = supervised, torn, jumps
        self.now_s, self.off_s, self.took = BEGAN_S, 0.0, defaultdict[str, float](float)
        self.kept_step = 0
        for folder in (self.run / "history", self.run / "attempts", self.run / "checkpoints", self.directory):
            folder.mkdir(parents=True)
        (self.run / "run.json").write_text(json.dumps({"format": 1, "run": "0" * 32}))
        if supervised:
            (self.directory / "run-here.json").write_text(json.dumps({"run": str(self.run)}))
        else:
            self.directory.rmdir()

    def write(self, starts: int, steps: int) -> Truth:
        self._supervisor("begin", supervisor="s", owner=owner(1), command=["train"], options=[])
        ends, lost, each = [], [], max(10, steps // starts)
        for number in range(1, starts + 1):
            last = number == starts
            end = "done" if last else self.draw.choice(ENDS)
            ends.append(end)
            lost.append(self._start(number, steps if last else self.kept_step + self.draw.randrange(5, each), end))
            if not last:
                self._between(end)
        self._supervisor("end", supervisor="s")
        return Truth(self.took, self.now_s - BEGAN_S, ends, lost)

    def _pass(self, category: str, seconds: float) -> None:
        self.took[category] += seconds
        self.now_s += seconds

    def _supervisor(self, event: str, **facts: Any) -> None:
        if self.supervised:
            with (self.directory / "supervisor.jsonl").open("a") as file:
                file.write(line(self.now_s + self.off_s, event, **facts))

    def _start(self, number: int, until: int, end: str) -> int:
        """Let one start train until a step, and end; return the steps that it lost."""
        draw, first, began_s = self.draw, self.kept_step, self.now_s
        self._supervisor("start", pid=1000 + number)
        self._pass("start", IMPORTS_S * draw.uniform(0.5, 2))
        path = self.run / "history" / f"attempt-{number}.jsonl"
        lines: list[str] = []

        def write(event: str, step: int | None = None, **facts: Any) -> None:
            at = {} if step is None else {"step": step, "phase": "step"}
            lines.append(line(self.now_s + self.off_s, event, **at, **facts))

        write("begin", attempt=number, run="0" * 32, owner=owner(1000 + number))
        self._pass("restore", RESTORE_S * draw.uniform(0.5, 2))
        write("restored", first, checkpoint=None, keep="Last(3)")
        compiled_s = COMPILE_S * draw.uniform(0.5, 2)
        self._pass("start", compiled_s)
        jump_at = draw.randrange(first + 1, until + 1) if self.jumps else -1
        unsaved: list[float] = []  # seconds of steps that no save holds
        for step in range(first + 1, until + 1):
            if step == jump_at:
                self.off_s += draw.choice((-7200.0, -600.0, 900.0 if self.supervised else -900.0))
            took_s = STEP_S * draw.uniform(0.8, 1.2)
            self._pass("training", took_s)
            unsaved.append(took_s)
            if step == first + 1:
                write("first_step", step, process_s=self.now_s - began_s)
            write("metrics", step, epoch=0, values={"loss": 1 / step})
            if step % EPOCH == 0 and step < until:
                self._pass("evaluation", EVALUATION_S * draw.uniform(0.5, 2))
                lines.append(line(self.now_s + self.off_s, "metrics", step=step, phase="end", values={"accuracy": 0.5}))
            if step % 10 == 0 and step < until:
                self._save(write, step, "due")
                unsaved.clear()
        lost = self._end(write, until, end, unsaved)
        text = "".join(lines)
        if self.torn and end == "killed":
            text = text[: -draw.randrange(2, 40)]
        path.write_text(text)
        exit_ = {"done": "done", "SIGTERM": "stopped", "time limit": "stopped"}.get(end, "failed")
        facts = {"verdict": exit_, "code": 0 if end == "done" else -9, "hung": "no sign" if end == "hang" else ""}
        self._supervisor("exit", step=until, took_s=self.now_s - began_s, cause="", reason="", **facts)
        return lost

    def _end(self, write: Callable[..., None], step: int, end: str, unsaved: list[float]) -> int:
        lost = 0
        if end == "hang":
            self._pass("hang", 900.0)
        if end in {"SIGTERM", "time limit", "done"}:
            self._pass("training", STEP_S)
            self._save(write, step, "the end" if end == "done" else "SIGTERM", category="stop")
            write("end" if end == "done" else "stop", step, **({} if end == "done" else {"reason": "SIGTERM"}))
            self._pass("stop", STOP_S)
        else:
            if end == "error":
                write("failed", step, error="ValueError: no")
            lost = len(unsaved)
            self.took["training"] -= sum(unsaved)
            self.took["redone"] += sum(unsaved)
        return lost

    def _save(self, write: Callable[..., None], step: int, reason: str, category: str = "save") -> None:
        self._pass(category, STALL_S)
        self.kept_step = step
        facts = {"checkpoint": f"step-{step:09d}", "stall_s": STALL_S, "save_s": STALL_S, "size_bytes": 1000}
        write("saved", step, reason=reason, **facts)

    def _between(self, end: str) -> None:
        if end == "time limit":
            self._supervisor("requeued", job="1", cause="time limit")
            self._pass("queue", self.draw.uniform(20, 400))
        else:
            self._pass("idle", self.draw.uniform(5, 60))


def line(time_s: float, event: str, **facts: Any) -> str:
    return "\n" + json.dumps({"time": time_s, "event": event, **facts}) + "\n"


def owner(pid: int) -> dict[str, Any]:
    return {"host": "n1", "machine": "m", "boot": "b", "pid": pid, "pid_started": "1", "job": None, "user": "u"}
