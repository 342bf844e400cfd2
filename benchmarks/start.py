"""The start of a program and of a command, in stages: each beside the same start without Holdfast."""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path

import many
from harness import HERE, Column, Results, chosen, options, scratch, turns, workers
from holdfast import Store, journal
from started import LAYERS, SAVED_AT, WIDTH

OURS = "ours_ms"
CHECKPOINTS = SAVED_AT  # one for each step
STATE_MIB = 3 * LAYERS * WIDTH**2 * 4 >> 20
HOLDFAST = str(Path(sys.executable).with_name("holdfast"))
Stages = dict[str, float]


def of_ours(stages: Stages) -> float:
    """The stages in which Holdfast may have a part: a framework's import varies by more than all of them."""
    return sum(taken_ms for stage, taken_ms in stages.items() if stage not in ("interpreter_ms", "frameworks_ms"))


class Start:
    """Pairs of starts, one without Holdfast: the medians of their stages, in ms, and of how much longer ours takes."""

    pairs = 5

    def __init__(self, place: Path) -> None:
        self.place = place
        # programs as they run where they are installed: with their modules compiled once
        self.around = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
        self.around["PYTHONPYCACHEPREFIX"] = str(place / "compiled")
        self.count = 0

    def turn(self) -> Mapping[str, float]:
        found = []
        for _ in range(self.pairs):
            self.count += 1
            bare, ours = self.bare(), self.ours()
            found.append({**ours, "bare_ms": sum(bare.values()), OURS: of_ours(ours) - of_ours(bare)})
        return {stage: statistics.median(each[stage] for each in found) for stage in found[0]}

    def bare(self) -> Stages:
        raise NotImplementedError

    def ours(self) -> Stages:
        raise NotImplementedError

    def timed(self, *command: str) -> Stages:
        began = time.perf_counter()
        subprocess.run(command, env=self.around, check=True, stdout=subprocess.DEVNULL)
        return {"whole_ms": 1e3 * (time.perf_counter() - began)}

    def close(self) -> None: ...


class Command(Start):
    """A command beside a Python that does nothing."""

    def __init__(self, command: Sequence[str], place: Path) -> None:
        super().__init__(place)
        self.command = command

    def bare(self) -> Stages:
        return self.timed(sys.executable, "-c", "pass")

    def ours(self) -> Stages:
        return self.timed(*self.command)


class Program(Start):
    """`started.py` on a run that does not exist, or on one with so many checkpoints."""

    def __init__(self, framework: str, checkpoints: int, place: Path) -> None:
        super().__init__(place)
        self.framework, self.checkpoints = framework, checkpoints
        self.pairs = 3 if framework == "torch" else 5
        self.run = place / f"{framework}-{checkpoints}"
        if checkpoints:
            self.start("make", self.run)
            multiply(self.run, checkpoints)

    def bare(self) -> Stages:
        return self.start("bare", self.run / "checkpoints" / "latest" if self.checkpoints else self.place)

    def ours(self) -> Stages:
        return self.start("run", self.run if self.checkpoints else self.run / str(self.count))

    def start(self, what: str, path: Path) -> Stages:
        command = [sys.executable, str(HERE / "started.py"), str(time.monotonic_ns()), self.framework, what, str(path)]
        done = subprocess.run(command, env=self.around, check=True, capture_output=True, text=True)
        return json.loads(done.stdout or "{}")


def multiply(run: Path, checkpoints: int) -> None:
    """Give the newest checkpoint older sisters, one for each step before it, and the journal a line for each."""
    newest = Store(run).latest()
    older = range(newest.step - checkpoints + 1, newest.step)
    many.copy(newest, older)
    path = run / "attempts" / "1" / "attempt-1.jsonl"
    events = journal.read(path)
    saved = next(event for event in events if event["event"] == "saved")
    path.write_bytes(journal.encode_events([events[0], *({**saved, "step": step} for step in older), *events[1:]]))


IMPORT, HELP = "from holdfast import Run", "holdfast --help"
RUNS = {
    "NumPy, no run yet": partial(Program, "numpy", 0),
    f"NumPy, {CHECKPOINTS:,} checkpoints": partial(Program, "numpy", CHECKPOINTS),
    "torch, no run yet": partial(Program, "torch", 0),
    f"torch, {CHECKPOINTS:,} checkpoints": partial(Program, "torch", CHECKPOINTS),
}
CONTENDERS = {
    "import holdfast": partial(Command, [sys.executable, "-c", "import holdfast"]),
    IMPORT: partial(Command, [sys.executable, "-c", IMPORT]),
    HELP: partial(Command, [HOLDFAST, "--help"]),
    "import msgspec": partial(Command, [sys.executable, "-c", "import msgspec"]),
    "import click": partial(Command, [sys.executable, "-c", "import click"]),
    **RUNS,
}
COLUMNS = [
    Column("interpreter", "interpreter_ms", digits=0),
    Column("its own imports and objects", "frameworks_ms", digits=0),
    Column("imports", "imports_ms", digits=0),
    Column("claim", "claim_ms", digits=0),
    Column("open", "open_ms", digits=0),
    Column("restore", "restore_ms", digits=0),
    Column("first batch", "first_batch_ms", digits=0),
    Column("without Holdfast", "bare_ms", digits=0),
    Column("longer by", OURS, digits=0),
    Column("longer by, first", f"first {OURS}", digits=0),
]
NOTES = f"""
Milliseconds, medians (smallest to largest) of the rounds after the first, in each of which a start and one without
Holdfast take turns several times. A program starts, makes a state of {STATE_MIB} MiB, and is ended when its first batch
is ready. Without Holdfast it reads as many bytes from the page cache, into memory. Its run had {SAVED_AT:,} steps, with
a line of metrics each. What Holdfast adds is counted from its imports on. The commands are beside a Python that does
nothing. `import holdfast` loads none of the names that a script uses.
"""


def main() -> None:
    given = options("start", sizes=[], doc=__doc__)
    with (
        Results("start", given) as results,
        scratch(given.scratch) as place,
        workers(chosen(CONTENDERS, given.only), place) as ring,
    ):
        for turn in turns(ring, given.rounds, "turn"):
            results.add(STATE_MIB, turn)
        results.publish(COLUMNS, NOTES)


if __name__ == "__main__":
    main()
