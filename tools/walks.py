"""Trace four walks through the code, each in a fresh process, and count files, rooms and moves.

    python tools/walks.py ROOT [--json] [--draw] [--walk NAME]

A room is a top-level package or module of holdfast: holdfast.store, holdfast.disk. A move is a call from a function
of one room into a function of another; the caller is the nearest function of holdfast on the stack, so a call that
goes through the standard library or torch counts. A call by the script, or the first call in a thread, is no move.
Resuming a generator is a call. Module bodies, and all that runs while a module is imported, do not count. Files are
the source files in which a function was called; file moves are counted like moves, between files.

The walks: `resume` (a run with one checkpoint, from `Run(...)` to the first step), `save` (one periodic save, from
the safe point until it is durable, with the threads that write it), `stop` (from SIGTERM to the end of the process
with exit code 75), `show` (the command `holdfast show RUN`).
"""

import argparse
import atexit
import gc
import json
import os
import shutil
import subprocess
import sys
import tempfile
import threading
from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import CodeType, FrameType
from typing import Any, NamedTuple

WALKS = ("resume", "save", "stop", "show")
TITLES = {
    "resume": "enter and resume: from `Run(...)` to the first step",
    "save": "save until durable: from the safe point to the end of `run.wait()`",
    "stop": "stop: from SIGTERM to the exit with code 75",
    "show": "show: `holdfast show RUN`",
}
LIMIT_S = 600


class Place(NamedTuple):
    """Where a function of holdfast lives."""

    room: str
    file: str  # relative to the package
    imported: bool  # the body of a module


class Tracer:
    """Counts the calls between rooms of the package in `package`, in all threads, while `active`."""

    def __init__(self, package: Path) -> None:
        self.active = False
        self.files: Counter[str] = Counter()
        self.moves: Counter[tuple[str, str]] = Counter()
        self.file_moves: Counter[tuple[str, str]] = Counter()
        self.first: dict[str, str] = {}  # a room -> the room from which it was entered first
        self._package = f"{package}{os.sep}"
        self._places: dict[CodeType, Place | None] = {}
        self._lock = threading.Lock()

    def install(self) -> None:
        """Watch this thread and all that start later."""
        threading.setprofile(self._event)
        sys.setprofile(self._event)

    def _event(self, frame: FrameType, event: str, _: object) -> None:
        if event != "call" or not self.active:
            return
        place = self._place(frame.f_code)
        if place is None or place.imported:
            return
        caller: Place | None = None
        back = frame.f_back
        while back is not None:
            at = self._place(back.f_code)
            if at is not None:
                if at.imported:
                    return
                caller = caller or at
            back = back.f_back
        with self._lock:
            self._count(caller, place)

    def _count(self, caller: Place | None, place: Place) -> None:
        self.files[place.file] += 1
        self.first.setdefault(place.room, caller.room if caller else "")
        if caller and caller.room != place.room:
            self.moves[caller.room, place.room] += 1
        if caller and caller.file != place.file:
            self.file_moves[caller.file, place.file] += 1

    def _place(self, code: CodeType) -> Place | None:
        if code not in self._places:
            self._places[code] = self._look_up(code)
        return self._places[code]

    def _look_up(self, code: CodeType) -> Place | None:
        if not code.co_filename.startswith(self._package):
            return None
        file = code.co_filename.removeprefix(self._package)
        if file == "__init__.py":  # the front door is no room
            return None
        return Place(Path(file).parts[0].removesuffix(".py"), file, code.co_name == "<module>")

    def result(self) -> dict[str, Any]:
        """What was counted, as JSON can hold it."""
        return {
            "files": sorted(self.files),
            "calls": sum(self.files.values()),
            "rooms": self.first,
            "moves": [[*pair, count] for pair, count in self.moves.most_common()],
            "file_moves": [[*pair, count] for pair, count in self.file_moves.most_common()],
        }


def training(home: Path) -> tuple[dict[str, Any], Any, Callable[[Any], None]]:
    """A small network, a loader and one step of training."""
    import torch
    from torch import nn
    from torch.utils.data import DataLoader, TensorDataset

    torch.manual_seed(0)
    torch.set_num_threads(1)
    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 1))
    optimizer = torch.optim.AdamW(model.parameters())
    loader = DataLoader(TensorDataset(torch.randn(64, 8), torch.randn(64, 1)), batch_size=4, shuffle=True)

    def step(batch: Any) -> None:
        x, y = batch
        optimizer.zero_grad()
        nn.functional.mse_loss(model(x), y).backward()  # type: ignore[no-untyped-call]
        optimizer.step()

    home.mkdir(parents=True, exist_ok=True)
    return {"model": model, "optimizer": optimizer}, loader, step


def new_run(home: Path, state: dict[str, Any]) -> Any:
    from holdfast import Every, Last, Run

    return Run(home, state, keep=Last(3), every=Every(steps=4))


def prepare(home: Path) -> None:
    """A run that stopped in the middle of an epoch, with one checkpoint."""
    import signal

    state, loader, step = training(home)
    with new_run(home, state) as run:
        for _ in run.epochs(2):
            for number, batch in enumerate(run.batches(loader)):
                step(batch)
                run.log(loss=1.0)
                if number == 2:
                    os.kill(os.getpid(), signal.SIGTERM)


def resume(tracer: Tracer, home: Path) -> None:
    state, loader, step = training(home)
    from holdfast import Every, Last, Run  # noqa: F401  the names' modules are imported before the walk begins

    tracer.active = True
    with new_run(home, state) as run:
        for _ in run.epochs(2):
            for batch in run.batches(loader):
                tracer.active = False
                step(batch)


def save(tracer: Tracer, home: Path) -> None:
    """The second save of the run, due after step 8; only the first one may import and link."""
    state, loader, step = training(home)
    with new_run(home, state) as run:
        for _ in run.epochs(1):
            for number, batch in enumerate(run.batches(loader), 1):
                step(batch)
                if number == 5:
                    run.wait()
                if number == 9:
                    run.wait()
                    tracer.active = False
                if number == 8:
                    gc.collect()
                    tracer.active = True


def stop(tracer: Tracer, home: Path) -> None:
    import signal

    state, loader, step = training(home)
    with new_run(home, state) as run:
        for _ in run.epochs(1):
            for number, batch in enumerate(run.batches(loader), 1):
                step(batch)
                if number == 6:
                    run.wait()
                    tracer.active = True
                    os.kill(os.getpid(), signal.SIGTERM)


def show(tracer: Tracer, home: Path) -> None:
    from holdfast.cli import main

    sys.argv = ["holdfast", "show", str(home)]
    tracer.active = True
    main()


def walk(name: str, package: Path, home: Path, out: Path) -> None:
    """Take the walk in this process and leave what was counted in `out`, as the last act."""
    tracer = Tracer(package)

    def leave() -> None:
        tracer.active = False
        out.write_text(json.dumps(tracer.result()))

    atexit.register(leave)  # before holdfast is imported: runs after all that holdfast registers
    if name != "show":
        import torch.utils.data  # noqa: F401  its own import is no part of a walk
    gc.disable()  # finalizers run where the last reference goes, and nowhere else
    tracer.install()
    {"resume": resume, "save": save, "stop": stop, "show": show}[name](tracer, home)


def child(words: list[str]) -> None:
    """`child PREPARE-OR-WALK PACKAGE HOME OUT`: what `measure` runs in a process of its own."""
    name, package, home, out = words
    if name == "prepare":
        prepare(Path(home))
    else:
        walk(name, Path(package), Path(home), Path(out))


def measure(root: Path, names: tuple[str, ...] = WALKS) -> dict[str, dict[str, Any]]:
    """Each walk's counts, by name.

    Raises:
        RuntimeError: a walk's process did not end as it should.
    """
    package = root / "src" / "holdfast"
    hidden = ("SLURM_", "HOLDFAST", "PYTHONPATH")  # the walks are those outside of a scheduler's job
    plain = {key: value for key, value in os.environ.items() if not key.startswith(hidden)}
    environment = plain | {"PYTHONPATH": str(root / "src"), "OMP_NUM_THREADS": "1"}
    results = {}
    with tempfile.TemporaryDirectory(prefix="walks-") as place:
        out = Path(place, "out")
        start = partial(
            subprocess.run, cwd=place, env=environment, capture_output=True, text=True, timeout=LIMIT_S, check=False
        )
        for name, code in (("prepare", 75), *((each, 75 if each == "stop" else 0) for each in names)):
            home = Path(place, name)
            if name in {"resume", "show"}:
                shutil.copytree(Path(place, "prepare"), home)
            ended = start([sys.executable, __file__, "child", name, str(package), str(home), str(out)])
            if ended.returncode != code:
                raise RuntimeError(f"{name}: exit code {ended.returncode} instead of {code}\n{ended.stderr}")
            if name != "prepare":
                results[name] = json.loads(out.read_text())
                out.unlink()
                if not results[name]["calls"]:
                    raise RuntimeError(f"{name}: no call of holdfast was seen")
    return results


def total(counts: list[list[Any]]) -> int:
    """All moves of a list of [from, to, count]."""
    return sum(int(each[-1]) for each in counts)


def table(results: dict[str, dict[str, Any]]) -> str:
    """One row for each walk, and its most frequent moves."""
    rows = ["| walk | files | rooms | moves | file moves | most frequent moves |", "|---|---:|---:|---:|---:|---|"]
    for name, each in results.items():
        often = ", ".join(f"{source} > {target} {count}" for source, target, count in each["moves"][:5])
        facts = (len(each["files"]), len(each["rooms"]), total(each["moves"]), total(each["file_moves"]))
        rows.append(f"| {name} | " + " | ".join(map(str, facts)) + f" | {often} |")
    return "\n".join(rows)


def draw(result: dict[str, Any]) -> str:
    """A line for each room: the rooms that it was the first to call, in that order; `script` for the caller's own."""
    below: dict[str, list[str]] = {}
    for room, first in result["rooms"].items():
        below.setdefault("script" if first in {"", room} else first, []).append(room)
    return "\n".join(f"    {room}: {' '.join(rooms)}" for room, rooms in below.items())


def main() -> int:
    if sys.argv[1:2] == ["child"]:
        child(sys.argv[2:])
        return 0
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("root", type=Path, nargs="?", default=Path(__file__).parents[1])
    parser.add_argument("--json", action="store_true", help="print all counts as JSON")
    parser.add_argument(
        "--draw", action="store_true", help="print the order of rooms of each walk, for ARCHITECTURE.md"
    )
    parser.add_argument("--walk", choices=WALKS, action="append", help="this walk only (may be repeated)")
    asked = parser.parse_args()
    if not (asked.root / "src/holdfast").is_dir():
        parser.error(f"{asked.root} has no src/holdfast: give the root of a checkout")
    results = measure(asked.root.resolve(), tuple(asked.walk or WALKS))
    if asked.json:
        print(json.dumps(results, indent=1))
        return 0
    print(table(results))
    if asked.draw:
        for name, each in results.items():
            print(f"\n{TITLES[name]}\n\n{draw(each)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
