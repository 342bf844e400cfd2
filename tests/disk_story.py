"""A short run on a disk that fails at its nth operation, and the laws that every such run has to keep.

The run is the second attempt of a training: it fences the first one, reads its checkpoint, trains, links files, reads
them back, prunes, saves its end. All threads' operations below the run's directory are counted: changes, looks, reads.
"""

import errno
import itertools
import os
import random
import shutil
import subprocess
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

import faults
from disk_faults import EveryThread, turned
from faults import Call, door, links, scratched
from holdfast import Every, HoldfastError, Last, Run, Stopped, Store
from holdfast.run import report
from holdfast.run.resume import Restorer
from toy import Toy, events, lines
from unchanged import rest

FIRST, STEPS, EVERY = 4, 12, 2
OUTAGE = 3  # safe points for which an outage lasts
FILLS = ("create", "allocate", "write", "fsync", "rename", "link", "symlink", "mkdir")  # may want space
INTERRUPTED = ("allocate", "rename", "link", "symlink", "mkdir", "unlink", "rmdir")  # others Python tries again itself
AGAIN = {"unlink": errno.ENOENT, "rmdir": errno.ENOENT, "rename": errno.ENOENT}  # what a second try is told, as on NFS
ALL = (*faults.CHANGES, "look", "read")


class Kind(NamedTuple):
    """A fault: at which operations, with which error, and whether it strikes before or after the operation."""

    at: tuple[str, ...]
    strike: Callable[[Call, Callable[[], Any]], Any]
    lasting: bool = True  # whether it makes sense as an outage
    at_start: bool = True  # whether it strikes from the start on; otherwise in the loop only
    damages: bool = False  # whether files are left that are not what was written


def refuse(code: int) -> Callable[[Call, Callable[[], Any]], Any]:
    def strike(call: Call, perform: Callable[[], Any]) -> Any:
        if call.name == "write" and call.data:
            faults.half_of(call)
        raise OSError(code, os.strerror(code), call.path or None)

    return strike


def done_and_denied(code: int | None) -> Callable[[Call, Callable[[], Any]], Any]:
    """The operation happens, and is reported as failed; without a code as NFS reports a second try."""

    def strike(call: Call, perform: Callable[[], Any]) -> Any:
        perform()
        told = code or AGAIN.get(call.name, errno.EEXIST)
        raise OSError(told, os.strerror(told), call.path or None)

    return strike


def shorten(call: Call, perform: Callable[[], Any]) -> Any:
    return faults.half_of(call) if len(call.data) > 1 else perform()


def turn_a_bit(call: Call, perform: Callable[[], Any]) -> Any:
    return turned(call, perform) if call.data and "/step-" in _path(call.descriptor) else perform()


KINDS = {
    "EIO": Kind(ALL, refuse(errno.EIO)),
    "ESTALE": Kind(ALL, refuse(errno.ESTALE)),
    "EACCES": Kind(ALL, refuse(errno.EACCES)),
    "EROFS": Kind(faults.CHANGES, refuse(errno.EROFS)),
    "ENOSPC": Kind(FILLS, refuse(errno.ENOSPC)),
    "EDQUOT": Kind(FILLS, refuse(errno.EDQUOT)),
    "EINTR": Kind(INTERRUPTED, refuse(errno.EINTR), lasting=False),
    "short write": Kind(("write",), shorten),
    "done, and EIO": Kind(
        ("rename", "link", "symlink", "mkdir", "unlink", "rmdir", "fsync"), done_and_denied(errno.EIO)
    ),
    "done, and told as done twice": Kind(
        ("rename", "link", "symlink", "mkdir", "unlink", "rmdir"), done_and_denied(None)
    ),
    "gone": Kind(ALL, refuse(errno.ENOENT), at_start=False),  # the directory is moved away meanwhile
    "a bit": Kind(("write",), turn_a_bit, damages=True),
}
# Each kind, once and as an outage: (kind, lasting).
STRIKES = [(kind, lasting) for kind, each in KINDS.items() for lasting in (False, True)[: 1 + each.lasting]]


class Struck:
    """Counts operations below `root`; from the nth of this kind on they fail: one, or all until `over` is called."""

    reads = looks = True

    def __init__(self, root: Path, kind: Kind, nth: int, *, lasting: bool) -> None:
        self.count, self.hit, self._over = 0, "", False
        self.restoring, self.looping = False, kind.at_start
        self._root, self._kind, self._nth, self.lasting = os.fspath(root), kind, nth, lasting
        self._lock = threading.Lock()

    @property
    def damages(self) -> bool:
        return self._kind.damages

    @property
    def active(self) -> bool:
        return bool(self.hit) and self.lasting and not self._over

    def end(self) -> None:
        self._over = True
        self._bring_back()

    def __call__(self, call: Call, perform: Callable[[], Any]) -> Any:
        if call.name not in self._kind.at or not self._concerns(call):
            return perform()
        if not self.looping:
            return perform()
        if self.restoring and call.name in ("look", "read"):  # laws of their own: tests/slow/test_unreadable.py
            return perform()
        with self._lock:
            now = self.count == self._nth
            self.count += 1
            if now:
                self.hit = f"{call.name} {call.path or _path(call.descriptor)}"
                self._take()
        try:
            return self._kind.strike(call, perform) if now or self.active else perform()
        finally:
            if now and not self.lasting:
                self._bring_back()

    def _take(self) -> None:
        if self._kind is KINDS["gone"]:
            os.rename(self._root, self._root + "-away")

    def _bring_back(self) -> None:
        if os.path.exists(self._root + "-away"):
            os.rename(self._root + "-away", self._root)

    def _concerns(self, call: Call) -> bool:
        path = call.path or _path(call.descriptor)
        return os.path.abspath(path).startswith(self._root + "/") or path == self._root


def _path(descriptor: int) -> str:
    try:
        return os.readlink(f"/proc/self/fd/{descriptor}")
    except OSError:
        return ""


class Model(Toy):
    """Its value tells whether each step was done once, in order and with its luck; of its arrays one changes."""

    def __init__(self) -> None:
        super().__init__()
        self.still, self.moves = np.arange(700.0), np.zeros(600)

    def learn(self, batch: int = 0) -> None:
        super().learn(batch)
        self.moves += self.value % 7

    def state_dict(self) -> dict[str, Any]:
        return {"value": self.value, "still": self.still, "moves": self.moves}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.value, self.still, self.moves = state["value"], state["still"], state["moves"]


class End(NamedTuple):
    value: int
    metrics: list[Any]


class Story:
    """What a run did until it ended, stopped or failed."""

    def __init__(self, root: Path, act: Struck | None = None) -> None:
        self.root, self.act = root, act
        self.where, self.step = "the start", 0
        self.struck: tuple[str, int] | None = None  # where the fault struck, and how many steps were done
        self.over_at = STEPS  # steps that were done when the outage ended
        self.end: End | None = None
        self.error: HoldfastError | None = None

    def tell(self, until: int = 0) -> "Story":
        """Train until the end, or until a stop after so many steps."""
        random.seed(1)
        model = Model()
        try:
            with Run(self.root, {"toy": model}, every=Every(steps=EVERY), keep=Last(2)) as run:
                for _ in run.steps(STEPS):
                    self._between(run)
                    model.learn()
                    run.log(loss=model.value % 1000)
                    if run.step + 1 == until:
                        run._session.stop.reason = "SIGTERM"
            self.end = End(model.value, [])
        except Stopped:
            assert until
        except HoldfastError as error:
            self.error = error
        self._note()
        return self

    def _between(self, run: Run) -> None:
        """Between two steps: nothing runs beside the loop, and an outage may end."""
        saves, act = run._session.saves, self.act
        if act is not None:
            act.looping = True
        if saves.flight is not None:
            saves.writer._ended.wait()
        rest()
        self._note()
        self.step = run.step
        self.where = "the end" if self.step == STEPS - 1 else "the loop"
        if act is None or not act.active:
            return
        with unheard():
            saved = saves.saved if saves.flight is None else saves.flight.before
            if self.root.exists():
                assert Store(self.root).load(placeholders=True)
                assert saved is None or Store(self.root).latest().step >= saved.step
        if self.struck is not None and self.step >= self.struck[1] + OUTAGE:
            act.end()
            self.over_at = self.step

    def _note(self) -> None:
        if self.act is not None and self.act.hit and self.struck is None:
            self.struck = self.where, self.step


@contextmanager
def unheard() -> Iterator[None]:
    """What this thread does to files meanwhile is not told to the script."""
    faults._here.set(None)
    try:
        yield
    finally:
        faults._here.reset(None)


@contextmanager
def struck(act: Struck) -> Iterator[None]:
    """Send what all threads do to files through `act`."""
    before, restore = faults._here, Restorer.restore_newest

    def restoring(*given: Any) -> None:
        act.restoring = True
        restore(*given)
        act.restoring = False

    faults._here, Restorer.restore_newest = EveryThread(act), restoring  # type: ignore[assignment]
    try:
        with door(act):
            yield
    finally:
        faults._here, Restorer.restore_newest = before, restore


def copied(tree: Path, target: Path) -> Path:
    """A copy in which names of one file are names of one file."""
    subprocess.run(["cp", "-a", tree, target], check=True)
    return target


class Bench:
    """The state after the first attempt, how the second one ends undisturbed, and trials with one fault each."""

    def __init__(self, place: Path) -> None:
        self.place, self._count = place, itertools.count()
        self.start = place / "start" / "run"
        self.start.parent.mkdir()
        assert Story(self.start).tell(FIRST).error is None
        root, act = self.fresh(), Struck(place, Kind(ALL, refuse(0)), -1, lasting=False)
        with struck(act):
            told = Story(root, act).tell()
        assert told.end is not None, told.error
        self.wanted = told.end._replace(metrics=lines(root))
        self.wanted_saves = due(root)

    def fresh(self) -> Path:
        folder = self.place / str(next(self._count))
        folder.mkdir()
        return copied(self.start, folder / "run")

    def trial(self, kind: Kind, nth: int, *, lasting: bool) -> Struck:
        """One fault, and all that must hold whatever it was."""
        root = self.fresh()
        act = Struck(root, kind, nth, lasting=lasting)
        try:
            with struck(act):
                told = Story(root, act).tell()
            act.end()
            self._judge(root, told, act)
        except BaseException as error:
            error.add_note(f"operation {nth}, {'an outage' if lasting else 'once'}: {act.hit}")
            raise
        shutil.rmtree(root.parent)
        return act

    def _judge(self, root: Path, told: Story, act: Struck) -> None:
        store = Store(root)
        assert store.load(placeholders=True)
        assert act.damages or all(not list(each.problems(cold=True)) for each in store.checkpoints())
        if told.error is None:
            lost = self.wanted_saves - due(root)
            missing = {step for step in lost if step > told.over_at}
            assert len(missing) <= act.damages, f"not saved after the fault: {missing}"  # then saves become rarer
            assert act.lasting or len(lost) <= 1, f"one fault, several saves: {lost}"
        else:
            assert told.struck is not None
            assert told.struck[0] != "the loop" or (told.over_at == STEPS and act.lasting), told.error
            assert "\n" not in str(told.error)
            assert str(root) in str(told.error)
            told = Story(root).tell()
            assert told.error is None, f"the next start: {told.error}"
        assert self.wanted == End(told.end.value, lines(root))
        (room,) = root.glob("attempts/[0-9]*")
        passing = ("link-", "deleting-") if act.hit and told.struck == ("the end", STEPS - 1) else ("link-",)
        left = [path for path in room.iterdir() if path.suffix != ".jsonl" and not path.name.startswith(passing)]
        assert not left, f"left in the room: {[path.name for path in left]}"


@pytest.fixture(scope="module")
def bench() -> Iterator[Bench]:
    """Files of 4 KB are linked, and each line is shown at once."""
    with scratched("disks") as place, links(), pytest.MonkeyPatch.context() as patch:
        patch.setattr(report, "FLUSH_S", 0.0)
        yield Bench(place)


def due(root: Path) -> set[int]:
    """Steps of periodic saves that the journal has."""
    return {event["step"] for event in events(root, "saved") if event["reason"] == "due"}


def enumerate_faults(bench: Bench, kind: Kind, *, lasting: bool, stride: int = 1) -> int:
    """Strike at each `stride`-th operation, until the run has no more; return how often that was survived."""
    return next(
        number
        for number, nth in enumerate(itertools.count(0, stride))
        if not bench.trial(kind, nth, lasting=lasting).hit
    )
