"""Two live writers of one run: one is suspended (SIGSTOP) at an instant that a seed chooses, and woken much later.

Each writer is a process that claims the run, saves, prunes and sets aside. The suspended one is the old or the new one.
It sleeps longer than every wait of one process, and what lies in the run seems two hours old when it wakes. Then both
try to save once more: exactly one may, and the other ends with the exit code of `Superseded`.
"""

import contextlib
import itertools
import os
import random
import select
import shutil
import signal
import time
import traceback
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from faults import Call, door
from holdfast import journal
from holdfast.errors import HoldfastError, NotFound, Superseded
from holdfast.rules import Best, Last
from holdfast.run.run import Run
from holdfast.store.attempt import JOIN_S
from holdfast.store.store import ManifestFields, Store

PAUSE_S = 1.2 * JOIN_S  # longer than one process waits for anything
AGE_S = 2 * 3600.0  # older than what is left of a process that is taken for dead
WAIT_S = 120.0
AT_ONCE = 50  # rounds that sleep side by side
SAVES = 3
OLD, NEW = 1, 2  # the writers; what each saves shows who it was
NEVER = -1


class Round(NamedTuple):
    kind: str  # of WORK
    paused: int  # OLD or NEW
    nth: int  # of its instants


class Told(NamedTuple):
    """What became of a round."""

    round: Round
    struck: str  # the instant at which it was suspended; empty if the writer did not come to it
    codes: tuple[int, int]  # exit codes of OLD and NEW


def arrays_of(who: int, step: int) -> dict[str, np.ndarray]:
    return {"w": np.full((3, 900), 1000 * who + step, "float32"), "still": np.full(1100, who, "float32")}


def newest(store: Store) -> int:
    """The newest step; the other writer may remove checkpoints meanwhile."""
    while True:
        with contextlib.suppress(NotFound):
            return max([0, *(each.step for each in store.checkpoints())])


Say = Callable[[str], str]  # says a word, and returns what was answered


def with_a_store(root: Path, who: int, say: Say) -> None:
    """Saves, prunes and sets aside."""
    store = Store(root, keep=Last(1) | Best("acc", max), take_over=True)
    store.claim()
    say("standing")

    def put() -> None:
        step = newest(store) + 1
        state = {"model": arrays_of(who, step), "who": who}
        store.save(state, step=step, facts=ManifestFields(document={"by": "a test"}, metrics={"acc": -step}))
        store.attempt.record("metrics", step=step, phase="step", values={"who": who})
        store.attempt.flush()

    for _ in range(SAVES):
        put()
    store.quarantine(store.latest(), "tried")
    store.prune(Last(1))
    for _ in range(2):
        say("done")
        put()


class Model:
    def __init__(self, who: int) -> None:
        self.who, self.arrays = who, arrays_of(who, 0)

    def learn(self, step: int) -> None:
        for key, value in arrays_of(self.who, step).items():
            self.arrays[key][:] = value

    def state_dict(self) -> dict[str, Any]:
        return self.arrays

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.arrays = state


def with_a_run(root: Path, who: int, say: Say) -> None:
    """Trains, and saves in the background."""
    model = Model(who)
    with Run(root, {"model": model}, every=None, keep=Last(1), take_over=True) as run:
        say("standing")
        for count, step in enumerate(run.steps(10**6)):
            model.learn(step + 1)
            run.log(who=who)
            run.save()
            if count >= SAVES:
                run.wait()
                say("done")
            if count == SAVES + 2:
                break


WORK = {"store": with_a_store, "run": with_a_run}


# -- one writer, as a process ---------------------------------------------------------------------------------------


class Suspends:
    """Suspends this process before the nth change that it makes to files, or look at them."""

    looks = True

    def __init__(self, nth: int, tell: Callable[[str], None]) -> None:
        self._nth, self._tell = nth, tell
        self._seen = itertools.count()

    def __call__(self, call: Call, perform: Callable[[], Any]) -> Any:
        if next(self._seen) == self._nth:
            self._tell(f"struck {call.name} {Path(call.target or call.path).name}\n")
            os.kill(os.getpid(), signal.SIGSTOP)
        return perform()

    def end(self) -> None:
        """Suspend it no more; say how many instants there were."""
        self._tell(f"instants {next(self._seen)}\n")
        self._nth = NEVER


class Writer:
    """A process that works in the run."""

    def __init__(self, root: Path, kind: str, who: int, nth: int = NEVER) -> None:
        ours, theirs = os.pipe(), os.pipe()
        self.struck, self.instants = "", 0
        self.code: int | None = None
        self.pid = os.fork()
        if self.pid == 0:
            os.close(ours[0])
            os.close(theirs[1])
            _as_a_process(partial(WORK[kind], root, who), nth, ours[1], theirs[0])
        os.close(ours[1])
        os.close(theirs[0])
        self._heard, self._answer, self._words = ours[0], theirs[1], b""

    def work_on(self) -> None:
        """Until it has done its work and waits for `go`, sleeps, or has ended."""
        while self._hear() == "standing":
            self.go()

    def _hear(self) -> str:
        word = self._word()
        if word.startswith("instants"):
            self.instants = self.instants or int(word.split()[1])
            return self._hear()
        if word.startswith("struck"):
            self.struck = word.removeprefix("struck ")
            os.waitid(os.P_PID, self.pid, os.WSTOPPED | os.WNOWAIT)
        elif not word:
            self.code = os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
            os.close(self._heard)
            os.close(self._answer)
        return word

    def _word(self) -> str:
        while b"\n" not in self._words:
            if not select.select([self._heard], [], [], WAIT_S)[0]:
                raise TimeoutError(f"a writer gave no answer; it was suspended at {self.struck!r}")
            heard = os.read(self._heard, 4096)
            if not heard:
                return ""
            self._words += heard
        word, _, self._words = self._words.partition(b"\n")
        return word.decode()

    def go(self) -> None:
        os.write(self._answer, b".")

    def wake(self) -> None:
        os.kill(self.pid, signal.SIGCONT)
        self.work_on()

    def once_more(self) -> None:
        """Let it save again, unless it has ended."""
        if self.code is None:
            self.go()
            self.work_on()

    def finish(self) -> int:
        """Let it save to its end; its exit code."""
        while self.code is None:
            self.once_more()
        return self.code

    def kill(self) -> None:
        if self.code is None:
            os.kill(self.pid, signal.SIGKILL)
            os.waitpid(self.pid, 0)


def _as_a_process(work: Callable[[Say], None], nth: int, mouth: int, ear: int) -> None:
    """Work, and exit as a command of Holdfast's does."""
    code = 70

    def tell(word: str) -> None:
        os.write(mouth, word.encode())

    def say(word: str) -> str:
        if word == "done":
            suspends.end()
        tell(f"{word}\n")
        return os.read(ear, 1).decode()

    suspends = Suspends(nth, tell)
    try:
        null = os.open(os.devnull, os.O_RDWR)
        for target in (0, 1):
            os.dup2(null, target)
        with door(suspends), contextlib.redirect_stderr(None):
            work(say)
        code = 0
    except HoldfastError as error:
        code = error.exit_code
        if not isinstance(error, Superseded):
            traceback.print_exc()
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(code)


# -- one round ------------------------------------------------------------------------------------------------------


class Pair:
    """The two writers of a round, in the order in which it needs them."""

    def __init__(self, place: Path, asked: Round) -> None:
        self.root, self.asked = place / "run", asked
        nth = {asked.paused: asked.nth}
        self.old = Writer(self.root, asked.kind, OLD, nth.get(OLD, NEVER))
        self.old.work_on()
        self.new = Writer(self.root, asked.kind, NEW, nth.get(NEW, NEVER))
        self.new.work_on()
        self.asleep, self.awake = (self.old, self.new) if asked.paused == OLD else (self.new, self.old)
        if asked.paused == NEW:
            self.awake.once_more()  # it goes on while its successor sleeps

    def finish(self) -> Told:
        """Wake the one that sleeps; let both save once more; see what holds."""
        before = looks(self.root)
        if self.asleep.struck:
            _age(self.root)
            self.asleep.wake()
            if self.asleep.code == Superseded.exit_code:
                assert before == looks(self.root), "the loser has changed something"
        self.asleep.finish()
        self.awake.finish()
        _is_one_story(self.root)
        return Told(self.asked, self.asleep.struck, (self.old.finish(), self.new.finish()))

    def end(self) -> None:
        for each in (self.old, self.new):
            each.kill()


def looks(root: Path) -> dict[str, Any]:
    """The checkpoints and what is set aside, byte for byte."""
    found = [*root.glob("checkpoints/**/*"), *root.glob("quarantine/**/*")]
    return {
        str(path): os.readlink(path) if path.is_symlink() else path.is_file() and path.read_bytes() for path in found
    }


def _age(root: Path) -> None:
    """Two hours pass while nobody works."""
    then = time.time() - AGE_S
    for path in [root, *root.rglob("*")]:
        os.utime(path, (then, then), follow_symlinks=False)


def _is_one_story(root: Path) -> None:
    """Each checkpoint is whole and one writer's, of the attempt that its manifest names; the newest one loads."""
    store = Store(root)
    owners = {log.attempt: log.owner.get("pid") for log in journal.logs(root)}
    writers: dict[int, set[int]] = {}
    for checkpoint in store.checkpoints():
        assert [] == list(checkpoint.problems())
        arrays = checkpoint.load(placeholders=True)["model"]
        who = int(arrays["still"][0])
        for key, value in arrays_of(who, checkpoint.step).items():
            assert value.tobytes() == arrays[key].tobytes(), f"{checkpoint}: of two writers"
        writers.setdefault(who, set()).add(owners[checkpoint.manifest.attempt])
    assert all(len(pids) == 1 for pids in writers.values()), writers
    store.load(placeholders=True)


# -- many of them ---------------------------------------------------------------------------------------------------


def instants(place: Path) -> dict[tuple[str, int], int]:
    """How many instants each writer has that nobody suspends."""
    found = {}
    for kind in WORK:
        (place / kind).mkdir()
        pair = Pair(place / kind, Round(kind, NEW, NEVER))
        pair.finish()
        found |= {(kind, OLD): pair.old.instants, (kind, NEW): pair.new.instants}
    return found


def rounds(counts: dict[tuple[str, int], int], count: int, seed: int) -> Iterator[Round]:
    """Spread evenly over the instants of each writer of each kind."""
    chosen, pairs = random.Random(seed), sorted(counts)
    each = -(-count // len(pairs))
    for number in range(count):
        kind, paused = pairs[number % len(pairs)]
        width = counts[kind, paused] / each
        yield Round(kind, paused, int((number // len(pairs) + chosen.random()) * width))


def told(place: Path, asked: Iterable[Round], *, pause_s: float = PAUSE_S) -> Iterator[Told]:
    """Play these rounds, many at once; their writers sleep for `pause_s` at least."""
    waiting = iter(enumerate(asked))
    while batch := list(itertools.islice(waiting, AT_ONCE)):
        pairs: list[Pair] = []
        try:
            for number, each in batch:
                (place / str(number)).mkdir()
                pairs.append(Pair(place / str(number), each))
            time.sleep(pause_s)
            for pair in pairs:
                try:
                    yield pair.finish()
                except BaseException as error:
                    error.add_note(f"{pair.asked}, suspended at {pair.asleep.struck!r}")
                    raise
        finally:
            for pair in pairs:
                pair.end()
            for number, _ in batch:
                shutil.rmtree(place / str(number), ignore_errors=True)


def loses(each: Told) -> bool:
    """Whether one writer has saved to the end, and the other one got `Superseded`."""
    return sorted(each.codes) == [0, Superseded.exit_code]
