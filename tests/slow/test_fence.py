"""The fence: a ghost, an attempt that was stopped and woken after its successor took the run, changes nothing.

The ghost runs in a thread of its own that is held before one change; every change that it would make is tried. Its
system calls are the unit, so it is also held inside `disk.write` and between the open and the write of a journal's
line.
"""

import itertools
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from test_crash import ENGINES, Model, step_of

from faults import Call, Memory, door, requests, scratched
from holdfast import disk, journal, owner
from holdfast.errors import HoldfastError, Superseded
from holdfast.rules import Best, Last
from holdfast.run.run import Run
from holdfast.store import claiming
from holdfast.store.attempt import read_run
from holdfast.store.store import Store
from stores import put, whole

WAIT_S = 60
STRIDE = 9  # of the changes before which a ghost is held; `make prove` tries each


def _answered(came: bool) -> None:
    """No answer is another error than a broken promise."""
    if not came:
        raise TimeoutError("a thread of this test gave no answer")


class Held:
    """Runs `work` in a thread; `stop` holds it before its nth look at files or change to them, until `wake`."""

    looks = True  # hold it before it reads, too

    def __init__(self, work: Callable[[], Any], nth: int, store: Store | None = None) -> None:
        self.store = store
        self._nth, self._seen = nth, itertools.count()
        self._arrived, self._go = threading.Event(), threading.Event()
        self.error: BaseException | None = None
        self.after: list[Call] = []  # changes that succeeded once it was awake
        self.held: Call | None = None
        self._thread = threading.Thread(target=self._run, args=(work,), daemon=True)

    def stop(self) -> bool:
        """Start it; whether it came to its nth change."""
        self._thread.start()
        _answered(self._arrived.wait(WAIT_S))
        if self.held is None and self.error is not None:
            raise self.error  # else it would look as if it had come to its end
        return self.held is not None

    def wake(self) -> None:
        self._go.set()
        self._thread.join(WAIT_S)
        _answered(not self._thread.is_alive())

    def _run(self, work: Callable[[], Any]) -> None:
        try:
            with door(self):
                work()
        except BaseException as error:
            self.error = error
        finally:
            self._arrived.set()

    def __call__(self, call: Call, perform: Callable[[], Any]) -> Any:
        if self.held is None and self._due(call):
            self.held = call
            self._arrived.set()
            _answered(self._go.wait(WAIT_S))
        result = perform()
        if self._go.is_set() and call.name != "look":
            self.after.append(call)
        return result

    def _due(self, call: Call) -> bool:
        return next(self._seen) == self._nth


class HeldWriter(Held):
    """Holds the threads that save for `work`, and not the one that it runs in."""

    def _due(self, call: Call) -> bool:
        return threading.current_thread() is not self._thread and super()._due(call)


class HalfFencing(Held):
    """Holds a successor when it has emptied the directory of attempt 1, and not removed it yet."""

    def _due(self, call: Call) -> bool:
        return call.name == "rmdir" and call.path.endswith("attempts/1")


def ghost_work(store: Store) -> Callable[[], None]:
    """A save that prunes two checkpoints and renews links, a quarantine, and the journal's lines about it."""

    def work() -> None:
        store.attempt.record("metrics", step=4, phase="step", values={"loss": 4})
        store.attempt.flush()
        put(store, 4)
        store.quarantine(store[3], "ghost")
        store.attempt.record("metrics", step=5, phase="step", values={"loss": 5})
        store.attempt.flush(sync=True)
        store.attempt.record("metrics", step=6, phase="step", values={"loss": 6})
        store.attempt.flush(sync=True)

    return work


def before(root: Path) -> Store:
    """A run with three checkpoints, of which the next save will prune two."""
    store = Store(root)
    for step in (1, 2, 3):
        put(store, step)
    store.keep = Last(1) | Best("acc", max)  # 2 is the best
    store.pin(3)
    return store


def looks(root: Path) -> dict[str, Any]:
    """What readers of the run go by: its checkpoints and quarantine with their bytes, its links, its metrics."""
    found: dict[str, Any] = {"metrics": [event["step"] for event in journal.metrics(root)]}
    for path in [*root.glob("checkpoints/**/*"), *root.glob("quarantine/**/*")]:
        name = str(path.relative_to(root))
        found[name] = os.readlink(path) if path.is_symlink() else path.is_file() and path.read_bytes()
    return found


def succeed(root: Path, phase: int) -> Store:
    """The successor, taken through the first so many of its phases."""
    store = Store(root, take_over=True)
    store.claim()
    if phase > 0:
        newest = store.latest()
        store.attempt.record("restored", step=newest.step, phase=newest.phase, checkpoint=newest.name)
        store.attempt.flush(sync=True)
        store.attempt.record("metrics", step=newest.step + 1, phase="step", values={})
    if phase > 1:
        put(store, step_of(store) + 1)
    if phase > 2:
        store.prune(Last(1))
        store.attempt.flush()
    return store


PHASES = ("claims", "scans", "saves", "prunes")


def refusal_of(store: Store) -> HoldfastError | None:
    try:
        put(store, 7)
    except HoldfastError as error:
        return error
    return None


def wakes_superseded(root: Path, ghost: Held, phase: int) -> Held | None:
    """Hold the ghost before its nth change, bring the successor to a phase, wake the ghost; None past its last."""
    if not ghost.stop():
        return None
    successor = succeed(root, phase)
    seen = looks(root)
    ghost.wake()
    now = looks(root)
    # Before the successor says where it goes on, every line is still the run's.
    assert phase == 0 or not set(now["metrics"]) - set(seen["metrics"])
    assert {**now, "metrics": 0} == {**seen, "metrics": 0}
    if ghost.error is None:  # all that was left to do: a line in a journal that was open already
        assert {call.name for call in ghost.after} <= {"write", "fsync"}
        ghost.error = refusal_of(ghost.store)
    assert isinstance(ghost.error, Superseded)
    put(successor, step_of(successor) + 1)
    assert all(not list(checkpoint.problems()) for checkpoint in successor.checkpoints())
    return ghost


def wake_after(nth: int, phase: int) -> Held | None:
    """A ghost that saves, prunes and sets aside, held before its nth change; None past its last."""
    with scratched("fence") as place:
        store = before(place / "run")
        return wakes_superseded(place / "run", Held(ghost_work(store), nth, store), phase)


def ghosts(wake: Callable[[int, int], Held | None], phase: int, stride: int = 1) -> int:
    """Wake every `stride`-th ghost, and see that there were some that had much left to do; how many there were."""
    past = next(nth for nth in itertools.count(phase % stride, stride) if wake(nth, phase) is None)
    print(PHASES[phase], past, "ghosts")
    assert past > 60
    return past // stride


@pytest.mark.parametrize(("phase", "engine"), list(enumerate([*ENGINES, "links"])))
def test_a_ghost_does_nothing_wherever_it_was_stopped(phase, engine):
    """Stopped at any change of a save, prune, quarantine and journal line, and woken: nothing changes, Superseded."""
    with ENGINES[engine]():
        ghosts(wake_after, phase, STRIDE)


# -- a ghost whose save is in flight -------------------------------------------------------------------------------


def train(root: Path, steps: int) -> None:
    """A run of so many steps that saves each;
    a step begins with the save of the one before in flight, and awaits its end."""
    model = Model()
    with Run(root, {"model": model}, every=None, keep=Last(1), take_over=True) as run:
        for step in run.steps(steps):
            model.learn(step + 1)
            run.log(loss=step)
            if run._session.saves.flight is not None:
                run._session.saves.writer._ended.wait()
            run.save()


def wake_writer(nth: int, phase: int) -> Held | None:
    """As `wake_after`, with a ghost that trains, and is held where its save in flight makes its nth call."""
    with scratched("flight") as place:
        train(place / "run", 2)
        return wakes_superseded(place / "run", HeldWriter(lambda: train(place / "run", 4), nth), phase)


@pytest.mark.parametrize("phase", range(len(PHASES)), ids=PHASES)
def test_a_ghost_with_a_save_in_flight_does_nothing_wherever_it_was_stopped(phase):
    """Each request to the disk, look and rename of the writer's thread, woken while the loop goes on: Superseded."""
    with requests():
        ghosts(wake_writer, phase, STRIDE)


def test_a_ghost_with_requests_of_several_threads_does_nothing():
    """One of them held, the others go on: the file stays incomplete, and nothing names it."""
    with requests(threads=3):
        for nth in range(0, 60, STRIDE):
            assert wake_writer(nth, 2) is not None


def spared(path: Path) -> None:
    if path.parent.name != "attempts":
        os.rmdir(path)


@pytest.mark.parametrize("fence", ["no removal", "a look before each rename"])
def test_without_the_removal_of_the_directory_ghosts_act(monkeypatch, fence):
    """The fence is the removal:
    where the room is left standing, also for ghosts that look first, they commit and delete."""
    if fence == "no removal":
        monkeypatch.setattr(disk, "remove_dir", spared)
    else:
        monkeypatch.setattr(
            claiming, "fence_attempt", lambda new, log: (new.room.parent / f"fenced-{log.attempt}").touch()
        )
    acted = 0
    for nth in range(0, 150, 10):
        try:
            ghost = wake_after(nth, 3)
        except AssertionError:
            acted += 1
        else:
            assert ghost is not None
    assert acted > 5


# -- the other way round: the successor is held, the ghost runs on ---------------------------------------------------


def held_successor(nth: int) -> Call | None:
    """Hold the successor's claim before its nth change, let the old attempt run to its end, let the successor go on."""
    with scratched("window") as place:
        root = place / "run"
        old = before(root)
        claimed: list[Store] = []

        def work() -> None:
            claimed.append(succeed(root, 1))

        successor = Held(work, nth)
        if not successor.stop():
            return None
        error = None
        try:
            ghost_work(old)()
        except HoldfastError as raised:
            error = raised
        assert error is None or isinstance(error, Superseded), (successor.held, error)
        committed = sorted(checkpoint.step for checkpoint in Store(root).checkpoints())
        successor.wake()
        if successor.error is not None:
            raise successor.error
        store = claimed[0]
        found = store.latest()
        assert found.step == max(committed)  # what it chose is the newest, also one of the ghost's last moment
        assert whole(store.load(), found.step)
        assert all(not list(checkpoint.problems()) for checkpoint in store.checkpoints())
        put(store, found.step + 1)
        assert [path.name for path in store.attempt.room.iterdir()] == [store.attempt.journal.name]
        assert [path.name for path in root.glob("attempts/[0-9]*")] == [str(store.attempt.number)]
        return successor.held


def windows(stride: int = 1) -> int:
    """Let the old attempt act before every `stride`-th change of a claim; how many there were."""
    past = next(nth for nth in itertools.count(0, stride) if held_successor(nth) is None)
    assert past > 15
    return past // stride


def test_a_successor_held_anywhere_in_its_claim_chooses_the_newest():
    """The old attempt acts in every window of a claim: never mixed, the choice is whole, and the newest there is."""
    windows(3)


def pairs(stride: int = 1) -> int:
    """Hold ghost and successor at once, at every `stride`-th pair of every fifth and fourth of their changes.

    Returns how many pairs there were.
    """
    tried = 0
    ghosts = itertools.count(0, 5)
    for number, nth in enumerate(ghosts):
        for other in range(4 * (number % stride), 200, 4 * stride):
            with scratched("pair") as place:
                root = place / "run"
                ghost = Held(ghost_work(before(root)), nth)
                if not ghost.stop():
                    assert tried > 200 // stride
                    return tried
                claimed: list[Store] = []

                def claims(root: Path = root, claimed: list[Store] = claimed) -> None:
                    claimed.append(succeed(root, 1))

                successor = Held(claims, other)
                if not successor.stop():
                    ghost.wake()
                    break
                ghost.wake()
                assert ghost.error is None or isinstance(ghost.error, Superseded), ghost.error
                successor.wake()
                assert successor.error is None
                assert all(not list(checkpoint.problems()) for checkpoint in claimed[0].checkpoints())
                assert whole(claimed[0].load(), claimed[0].latest().step)
                put(claimed[0], step_of(claimed[0]) + 1)
                tried += 1
    raise AssertionError("the ghost never came to its end")


def test_two_held_at_once_never_mix():
    """Ghost and successor stopped at any pair of changes, the ghost woken first: it is whole, or Superseded."""
    pairs(12)


def half_fenced(nth: int) -> bool:
    """Wake a ghost while its successor is about to remove its empty directory; whether it came to its nth change."""
    with scratched("half") as place:
        root = place / "run"
        store = before(root)
        ghost = Held(ghost_work(store), nth, store)
        if not ghost.stop():
            return False
        claimed: list[Store] = []
        successor = HalfFencing(lambda: claimed.append(succeed(root, 1)), 0)
        assert successor.stop()
        ghost.wake()
        assert ghost.error is None or isinstance(ghost.error, Superseded), ghost.error
        successor.wake()
        assert successor.error is None
        if ghost.error is None:  # all that was left to do: a line in a journal that was open already
            assert {call.name for call in ghost.after} <= {"write", "fsync"}
            assert isinstance(refusal_of(ghost.store), Superseded)
        assert whole(claimed[0].load(), claimed[0].latest().step)
        put(claimed[0], step_of(claimed[0]) + 1)
        return True


def test_an_attempt_that_is_half_fenced_is_superseded():
    """Its journal is in the history and its directory is still there: no other error leaves a save or a line."""
    assert next(nth for nth in itertools.count(0, 4) if not half_fenced(nth)) > 60


def test_of_two_successors_one_is_superseded():
    """Held anywhere in its claim while a third takes over,
    the second ends with Superseded, at the latest when it acts."""
    assert next(nth for nth in itertools.count(0, 2) if not _second_ends(nth)) > 60


def _second_ends(nth: int) -> bool:
    """Hold the second before its nth change, let a third take over; whether the second came that far."""
    with scratched("third") as place:
        root = place / "run"
        before(root)

        def work() -> None:
            store = Store(root, take_over=True)
            store.claim()
            put(store, 9)

        second = Held(work, nth)
        if not second.stop():
            return False
        third = Store(root, take_over=True)
        third.claim()
        number, seen = third.attempt.number, looks(root)
        second.wake()
        rooms = [int(path.name) for path in root.glob("attempts/[0-9]*")]
        assert not list(root.glob("attempts/.claim-*"))
        if second.error is None and rooms == [number]:  # its save was committed before, and stays as it is
            assert looks(root) == seen
            assert step_of(third) == 9
        elif second.error is None:  # it had not entered yet: then it is the last one, and the third was fenced
            assert rooms[-1] > number
            with pytest.raises(Superseded):
                put(third, 10)
        else:
            assert isinstance(second.error, Superseded)
            if rooms == [number]:
                assert looks(root) == seen
                put(third, 10)
        return True


def test_two_who_begin_a_run_agree_on_its_id():
    """Held anywhere in the first claim of all while another one begins the run: one id, no draft left behind."""
    assert next(nth for nth in itertools.count() if not _first_agrees(nth)) > 20


def _first_agrees(nth: int) -> bool:
    with scratched("begin") as place:
        root = place / "run"
        first = Held(lambda: Store(root, take_over=True).claim(), nth)
        if not first.stop():
            return False
        other = Store(root, take_over=True)
        put(other, 1)
        first.wake()
        assert first.error is None or isinstance(first.error, Superseded)
        assert other.latest().manifest.run == read_run(root)
        assert not [*root.glob(".run-*"), *root.glob("attempts/.claim-*")]
        assert len(list(root.glob("attempts/*"))) == 1
        return True


def test_who_gives_way_to_a_newer_attempt_leaves_no_room():
    """Two claims at once: the older one, when it finds the newer one, is Superseded and takes its room away."""
    gave_way = 0
    for nth, other in itertools.product(range(22, 62, 5), repeat=2):
        with scratched("way") as place:
            root = place / "run"
            before(root)

            def claim(root: Path = root) -> None:
                Store(root, take_over=True).claim()

            one, two = (Held(claim, at) for at in (nth, other))
            one.stop()
            two.stop()
            one.wake()
            if isinstance(one.error, Superseded):
                rooms = sorted(int(path.name) for path in root.glob("attempts/[0-9]*"))
                gave_way += rooms[-1] == 3
                assert 2 not in rooms
            two.wake()
    assert gave_way > 1


def test_drafts_of_dead_claimers_are_swept_away():
    """One whose maker is provably gone, or that has been without a first line for an hour; others stay."""
    with scratched("drafts") as place:
        store = before(place / "run")
        owners = {
            "gone": {**owner.describe_this_process(), "pid_started": "1"},
            "here": owner.describe_this_process(),
            "torn": None,
            "old": None,
        }
        for name, facts in owners.items():
            draft = place / "run" / "attempts" / f".claim-{name}"
            draft.mkdir()
            line = journal.encode_events([{"event": "begin", "owner": facts}]) if facts else b'{"event": "be'
            (draft / "attempt-9.jsonl").write_bytes(line)
        os.utime(draft, (0, time.time() - 7200))
        store.close()
        Store(place / "run").claim()
        assert {path.name for path in place.glob("run/attempts/.claim-*")} == {".claim-here", ".claim-torn"}


# -- processes ------------------------------------------------------------------------------------------------------

GHOST = """
import os, sys
sys.path[:0] = {tests!r}
from pathlib import Path
from stores import put
from test_fence import before
store = before(Path(sys.argv[1]))
print("ready", flush=True)
sys.stdin.readline()
from holdfast.errors import Superseded
try:
    for step in range(4, 10**6):
        put(store, step)
except Superseded:
    print("superseded", flush=True)
"""


@pytest.mark.parametrize("pause_s", [0.001, 0.007, 0.02])
def test_a_process_that_was_stopped_wakes_superseded(pause_s):
    """SIGSTOP at any moment of a loop that saves and prunes, a successor with take_over, SIGCONT: nothing changes."""
    with scratched("stopped") as place:
        root = place / "run"
        script = GHOST.format(tests=[str(Path(__file__).parents[1]), str(Path(__file__).parent)])
        with subprocess.Popen(
            [sys.executable, "-c", script, str(root)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        ) as ghost:
            assert ghost.stdout.readline() == "ready\n"
            ghost.stdin.write("go\n")
            ghost.stdin.flush()
            time.sleep(pause_s)  # which moment it is does not matter
            ghost.send_signal(signal.SIGSTOP)
            os.waitid(os.P_PID, ghost.pid, os.WSTOPPED | os.WNOWAIT)
            successor = succeed(root, 3)
            seen = looks(root)
            ghost.send_signal(signal.SIGCONT)
            assert ghost.stdout.readline() == "superseded\n"
            assert ghost.wait(WAIT_S) == 0
        assert looks(root) == seen
        put(successor, step_of(successor) + 1)
        assert step_of(successor) == successor.latest().step


def test_a_model_of_the_disk_sees_no_change_of_a_ghost():
    """The memory that crash tests rely on, asked of a fenced save: it makes no durable name."""
    with scratched("model") as place:
        store = before(place / "run")
        Store(place / "run", take_over=True).claim()
        memory = Memory(place)
        seen = memory.cord().mark()
        with door(memory), pytest.raises(Superseded):
            put(store, 4)
        assert memory.cord().mark() == seen
        memory.close()
