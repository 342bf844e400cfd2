"""The example's training, killed by the thousand: nothing durable is lost, and the end has the undisturbed bits.

    python tests/digits_kills.py 2000 --seed 0        # a line of JSON for each kill

Each attempt is forked from a process that has imported what the script needs. It sets a timer of the kernel that
sends SIGKILL: after a number of steps and a part of one that the seed chooses, wherever the training is then. Memory
that outlives it says in which phase it died. A phase that was struck less often than its share is aimed at: the process
dies as it enters the phase, as it leaves it, or a moment later. After each kill the newest checkpoint is compared with
that of a run that nobody disturbed, and the next attempt goes on from it.
"""

import argparse
import ctypes
import faulthandler
import functools
import gc
import json
import mmap
import os
import random
import runpy
import shutil
import signal
import sys
import tempfile
import threading
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import suppress
from importlib import import_module
from multiprocessing import get_context
from pathlib import Path
from typing import Any, NamedTuple

import holdfast
from holdfast import Every, disk, journal
from holdfast.drill.evidence import generator_of
from holdfast.inspect.diff import same_state
from holdfast.run.finish import AttemptEnd
from holdfast.run.resume import Restorer
from holdfast.run.safe_point import SafePoints
from holdfast.run.saver import Saver
from holdfast.state.snapshot import Snapshot
from holdfast.store import attempt as attempts
from holdfast.store import claiming, pruning, shards
from holdfast.store.committing import CheckpointWriter
from holdfast.store.store import Store

TRAIN = Path(__file__).parents[1] / "examples" / "digits" / "train.py"
LAST_STEP = 360
LANES = 2  # series of kills side by side
EVERY = 5  # steps between saves, so that many kills strike one; the script itself says 20
STEPS = 12  # a kill at a moment of the loop comes after so many steps at most
HANGS_S = 600  # an attempt that takes so long never ends; its log says where it stands
SHARE = 0.02  # of all kills, that each phase gets at least
UNSEEDED = {"numpy", "python"}  # generators that nobody seeds or draws from: each process has its own

# Phase -> the function that it lasts. A phase inside another one counts while it lasts.
PHASES: dict[str, tuple[Any, str]] = {
    "start": (None, ""),  # from the fork to the first step, as far as no other phase says more
    "loop": (None, ""),
    "claim": (claiming, "claim"),
    "restore": (Restorer, "restore_newest"),
    "capture": (Saver, "_stage_state"),
    "copy": (Snapshot, "copy"),
    "write of a shard": (shards, "write_shard"),
    "sync": (os, "fsync"),
    "manifest": (disk, "write"),
    "commit": (disk, "rename_new"),
    "links for users": (CheckpointWriter, "update_links"),
    "journal": (Saver, "_journal_save"),
    "readback": (pruning, "read_back"),
    "prune": (pruning, "discard"),
    "end": (AttemptEnd, "finish_run"),
}
NAMES = list(PHASES)
LATE = "end"  # struck only in a run that is nearly done
ONLY = {
    "manifest": lambda path, *_: path.name == "manifest.json",
    "commit": lambda _, to: to.parent.name == "checkpoints",
}


class Aim(NamedTuple):
    """Where an attempt dies: at the nth time that it enters (or leaves) a phase, or so many steps and seconds later."""

    phase: str
    nth: int
    how: str  # "entry", "exit" or "later"
    later_s: float


class Struck(NamedTuple):
    """What a kill did."""

    phase: str
    aimed: bool
    newest: str  # checkpoint
    problem: str = ""


# -- inside the attempt that dies -----------------------------------------------------------------------------------


class _SignalEvent(ctypes.Structure):
    """struct sigevent of <signal.h>: SIGEV_SIGNAL is 0."""

    _fields_ = [
        ("value", ctypes.c_void_p),
        ("signo", ctypes.c_int),
        ("notify", ctypes.c_int),
        ("pad", ctypes.c_int * 12),
    ]


class _Times(ctypes.Structure):
    _fields_ = [(name, ctypes.c_long) for name in ("every_s", "every_ns", "after_s", "after_ns")]


def die_in(seconds: float) -> None:
    """Let the kernel kill this process then, whatever its threads do."""
    libc, timer = ctypes.CDLL(None, use_errno=True), ctypes.c_void_p()
    event = _SignalEvent(signo=signal.SIGKILL)
    times = _Times(after_s=int(seconds), after_ns=max(1, int(seconds % 1 * 1e9)))
    assert libc.timer_create(1, ctypes.byref(event), ctypes.byref(timer)) == 0  # CLOCK_MONOTONIC
    assert libc.timer_settime(timer, 0, ctypes.byref(times), None) == 0


class Watched:
    """Notes in shared memory what this process does, and kills it at its aim."""

    def __init__(self, notes: memoryview, aim: Aim | None) -> None:
        self.notes, self.aim = notes, aim
        self._seen: Counter[str] = Counter()
        self._alone = threading.Lock()

    def begin(self) -> None:
        vars(holdfast)["Every"] = lambda **_: Every(steps=EVERY)
        for phase, (owner, name) in PHASES.items():
            if owner is not None:
                setattr(owner, name, self._around(phase, getattr(owner, name)))
        SafePoints.step_done = self._stepping(SafePoints.step_done)
        Store.commit = self._noting(Store.commit)

    def _around(self, phase: str, function: Callable[..., Any]) -> Callable[..., Any]:
        number, counts = NAMES.index(phase), ONLY.get(phase)

        @functools.wraps(function)
        def watched(*given: Any, **named: Any) -> Any:
            if counts is not None and not counts(*given):
                return function(*given, **named)
            slot = int(threading.current_thread() is not threading.main_thread())
            before, self.notes[slot] = self.notes[slot], number
            mine = self._aimed(phase)
            self._strike(mine, "entry", "later")
            try:
                return function(*given, **named)
            finally:
                self._strike(mine, "exit")
                self.notes[slot] = before

        return watched

    def _aimed(self, phase: str) -> Aim | None:
        aim = self.aim
        if aim is None or aim.phase != phase:
            return None
        with self._alone:
            self._seen[phase] += 1
        return aim if self._seen[phase] == aim.nth else None

    def _strike(self, aim: Aim | None, *hows: str) -> None:
        if aim is not None and aim.how in hows:
            if aim.how == "later":
                die_in(aim.later_s)
            else:
                os.kill(os.getpid(), signal.SIGKILL)

    def _stepping(self, function: Callable[..., Any]) -> Callable[..., Any]:
        def stepped(*given: Any, **named: Any) -> Any:
            if self.notes[0] == NAMES.index("start"):
                self.notes[0] = NAMES.index("loop")
            self._strike(self._aimed("loop"), "later")
            return function(*given, **named)

        return stepped

    def _noting(self, commit: Callable[..., Any]) -> Callable[..., Any]:
        """A save that has returned is acknowledged: it must not be lost."""

        def noted(*given: Any, **named: Any) -> Any:
            checkpoint = commit(*given, **named)
            self.notes[2] = order(checkpoint)
            return checkpoint

        return noted


def order(checkpoint: Any) -> int:
    return 2 * checkpoint.step + (checkpoint.phase == "end")


def attempted(place: Path, notes: memoryview, aim: Aim | None, kept: Path | None = None) -> int:
    """Train in `place`, in a process of its own, until the aim kills it; how it ended."""
    notes[0], notes[1] = NAMES.index("start"), 0
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            os.setpgid(0, 0)
            os.chdir(place)
            log = os.open(place / "log", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
            for target in (1, 2):
                os.dup2(log, target)
            faulthandler.dump_traceback_later(HANGS_S, exit=True)
            if kept is not None:
                _keep_all(kept)
            Watched(notes, aim).begin()
            if aim is not None and aim.phase == "start":
                die_in(aim.later_s)
            sys.argv, sys.path[0] = [str(TRAIN)], str(TRAIN.parent)
            runpy.run_path(str(TRAIN), run_name="__main__")
            if kept is not None:
                (kept / "modules").write_text("\n".join(sys.modules))
            code = 0
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(code)
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    with suppress(ProcessLookupError):
        os.killpg(pid, signal.SIGKILL)  # workers of its loader
    return code


def _keep_all(kept: Path) -> None:
    publish = attempts.publish

    def copied(attempt: Any, partial: Path, name: str) -> Path:
        path = publish(attempt, partial, name)
        shutil.copytree(path, kept / "checkpoints" / name)
        return path

    attempts.publish = copied
    Saver._journal_save = _keeping_what_is_late(Saver._journal_save, kept.parent.with_name("late"))


def _keeping_what_is_late(journal_save: Callable[..., Any], into: Path) -> Callable[..., Any]:
    def noted(*given: Any) -> None:
        journal_save(*given)
        if given[2].step == LAST_STEP - EVERY:
            shutil.copytree("runs", into / "runs", symlinks=True)

    return noted


# -- a series of kills ----------------------------------------------------------------------------------------------


class Lane:
    """One run after the other, each killed again and again until it has ended."""

    def __init__(self, place: Path, reference: Path, seed: int, count: int) -> None:
        self.place, self.count = place, count
        self.reference, self.late = Store(reference / "kept"), reference.with_name("late")
        self.metrics = metrics_of(reference / "runs" / "digits")
        self.chosen = random.Random(seed)
        self.notes = memoryview(mmap.mmap(-1, 4096)).cast("q")
        self.histogram: Counter[str] = Counter()
        self._begin_anew()

    def _begin_anew(self) -> None:
        self.notes[2] = 0
        shutil.rmtree(self.place / "now", ignore_errors=True)
        (self.place / "now").mkdir(parents=True)

    @property
    def root(self) -> Path:
        return self.place / "now" / "runs" / "digits"

    def kills(self) -> Iterator[Struck]:
        done = 0
        while done < self.count:
            aim = self._aim()
            code = attempted(self.place / "now", self.notes, aim)
            if code == -signal.SIGKILL:
                done += 1
                yield self._looked(aim)
            elif code == 0:
                if problem := self._ended():
                    yield Struck("the end of a run", aimed=False, newest="", problem=problem)
                self._begin_anew()
            else:
                told = (self.place / "now" / "log").read_text()[-500:]
                yield Struck("no kill", aimed=False, newest="", problem=f"the attempt ended with {code}: {told}")
                return

    def _aim(self) -> Aim:
        """A moment of the loop, or in every other kill, the phase that lacks most, if any does."""
        random_s = 10 ** self.chosen.uniform(-4.5, -1.5)
        least = min(NAMES, key=lambda name: self.histogram[name])
        if self.histogram[least] >= SHARE * self.count or self.chosen.random() < 0.5:
            return Aim("loop", self.chosen.randint(1, STEPS), "later", random_s)
        if least == LATE:
            self._begin_anew()
            shutil.copytree(self.late, self.place / "now", symlinks=True, dirs_exist_ok=True)
        how = self.chosen.choice(["entry", "exit", "later"])
        if least in ("start", "loop"):
            how, random_s = "later", self.chosen.uniform(0.001, 0.1)
        most = {"sync": 12, "write of a shard": 3}.get(least, 1)
        return Aim(least, self.chosen.randint(1, most), how, random_s)

    def _looked(self, aim: Aim) -> Struck:
        """What the kill has left."""
        beside, alone = NAMES[self.notes[1]], NAMES[self.notes[0]]
        phase = beside if self.notes[1] else alone
        self.histogram[phase] += 1
        newest, problem = "", ""
        try:
            store = Store(self.root)
            if self.root.exists() and (found := store.checkpoints()):
                newest = found[-1].path.name
                problem = self._compared(found)
            elif self.notes[2]:
                problem = "no checkpoint is left"
        except Exception as error:
            problem = repr(error)
        return Struck(phase, aim.phase == phase, newest, problem)

    def _compared(self, found: list[Any]) -> str:
        newest = found[-1]
        if order(newest) < self.notes[2]:
            return f"{newest}: a newer save had returned, of {self.notes[2] / 2}"
        self.notes[2] = order(newest)
        for checkpoint in found:
            if problems := list(checkpoint.problems()):
                return f"{checkpoint}: {problems[0]}"
        return differs(self.reference[newest.path.name], newest)

    def _ended(self) -> str:
        """Whether the run that has ended is the undisturbed one."""
        last = self.reference.checkpoints()[-1]
        newest = Store(self.root).latest()
        if newest.path.name != last.path.name:
            return f"it ended with {newest}"
        same = metrics_of(self.root) == self.metrics
        return differs(last, newest) or ("" if same else "its metrics differ")


def differs(wanted: Any, found: Any) -> str:
    different = [str(each) for each in same_state(wanted, found) if generator_of(each.where) not in UNSEEDED]
    return "; ".join(different[:3])


def metrics_of(root: Path) -> list[Any]:
    return [(journal.position(event), event["values"]) for event in journal.metrics(root)]


def undisturbed(place: Path) -> Path:
    """A run that nobody kills, with all of its checkpoints. Beside it lies what a kill before its last save leaves."""
    (place / "kept" / "checkpoints").mkdir(parents=True)
    notes = memoryview(mmap.mmap(-1, 4096)).cast("q")
    code = attempted(place, notes, None, place / "kept")
    assert code == 0, (place / "log").read_text()
    shutil.copy(place / "runs" / "digits" / "run.json", place / "kept")
    return place


def lane(place: Path, reference: Path, seed: int, count: int) -> None:
    series = Lane(place, reference, seed, count)
    for struck in series.kills():
        os.write(1, json.dumps(struck._asdict()).encode() + b"\n")


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("count", type=int)
    parser.add_argument("--seed", type=int, default=0)
    chosen = parser.parse_args()
    import_module("torch").set_num_threads(1)
    datasets = vars(import_module("sklearn.datasets"))
    datasets["load_digits"] = functools.cache(datasets["load_digits"])
    datasets["load_digits"]()
    with tempfile.TemporaryDirectory() as base:
        reference = undisturbed(Path(base) / "reference")
        for name in (reference / "kept" / "modules").read_text().splitlines():
            with suppress(ImportError):  # what the script imports late; a few are no modules of their own
                import_module(name)
        gc.freeze()  # a child's collector need not touch, and thereby copy, what it shares with its parent
        with ProcessPoolExecutor(LANES, mp_context=get_context("fork")) as pool:
            shares = [chosen.count // LANES + (number < chosen.count % LANES) for number in range(LANES)]
            work = [
                pool.submit(lane, Path(base) / str(number), reference, 1000 * chosen.seed + number, share)
                for number, share in enumerate(shares)
                if share
            ]
            for each in work:
                each.result()


if __name__ == "__main__":
    main()
