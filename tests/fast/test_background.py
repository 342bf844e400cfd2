"""Saves in the background: the loop goes on, what is written is what was there, and only what is saved is called so.

The disk is held: an act keeps the writer's thread before one of its changes, until somebody waits for the save.
"""

import gc
import itertools
import os
import signal
import threading
import weakref
from contextlib import contextmanager, nullcontext
from datetime import timedelta
from typing import Any

import numpy as np
import pytest

from faults import BROKEN, FULL, door, requests
from holdfast import Best, Every, Last, Run, Stopped, Store
from holdfast.errors import DiskError, NoSpace, Superseded, UsageError
from holdfast.run import report
from holdfast.run.writer import SaveWriter
from holdfast.state import snapshot
from holdfast.threads import Latch
from subjects import asked_of
from toy import Cut, Toy, events, names, new_run

WAIT_S = 60  # also on a busy machine: what takes longer hangs


@pytest.fixture(autouse=True)
def _alone(monkeypatch):
    """No line is shown before its save: what changes files is the writer. And none of these is left."""
    monkeypatch.setattr(report, "FLUSH_S", 1e9)
    yield
    assert "holdfast" not in {thread.name for thread in threading.enumerate()}


class Hold:
    """A disk that holds a run's writer before its nth change, until the run waits for it; then refuses, if told so."""

    def __init__(self, nth=0, code=None):
        self.reached, self.go = threading.Event(), threading.Event()
        self.waits = []  # steps at which the loop waited
        self._nth, self._code, self._changes = nth, code, itertools.count()

    def __call__(self, call, perform):
        if threading.current_thread().name == "holdfast" and next(self._changes) == self._nth:
            self.reached.set()
            assert self.go.wait(WAIT_S)
            if self._code is not None:
                raise OSError(self._code, os.strerror(self._code))
        return perform()

    def watch(self, run):
        writer, wait = run._session.saves.writer, run._session.saves.writer.wait

        def waiting():
            self.waits.append(run.step)
            self.go.set()
            return wait()

        writer.wait = waiting


@contextmanager
def held(path, hold, **options):
    """A run whose writer is held."""
    with door(hold), new_run(path, Toy(), **options) as run:
        hold.watch(run)
        yield run


def ended(run):
    """Return when the save in flight has ended; nobody has asked yet how."""
    assert run._session.saves.writer._ended.wait(WAIT_S)


def saved(path):
    return [(event["step"], event["reason"]) for event in events(path, "saved")]


# The loop and the save ------------------------------------------------------------------------------------------


def test_the_loop_goes_on_while_a_save_is_in_flight(tmp_path):
    """Three steps are made before its first change; the end waits for it."""
    hold = Hold()
    with held(tmp_path, hold, every=Every(steps=2)) as run:
        for step in run.steps(3):
            if step == 2:
                assert hold.reached.wait(WAIT_S)
                assert [] == names(tmp_path)
    assert [3] == hold.waits
    assert [(2, "due"), (3, "the end")] == saved(tmp_path)
    assert ["step-000000002", "step-000000003"] == names(tmp_path)


class Many:
    """State of every kind, changed in place: arrays, tensors, containers, counters."""

    def __init__(self):
        import torch

        self.state: dict[str, Any] = {
            "big": np.zeros(50_000),
            "strided": np.zeros((40, 60))[:, ::2],
            "scalar": np.zeros(()),
            "bytes": bytearray(3000),
            "tensor": torch.zeros(30_000),
            "transposed": torch.zeros(50, 70).t(),
            "half": torch.zeros(5000, dtype=torch.bfloat16),
            "list": [],
            "deep": {"count": 0, "array": np.zeros(3, "int8")},
        }

    def learn(self, step):
        for name in ("big", "strided", "scalar", "tensor", "transposed", "half"):
            self.state[name] += step
        self.state["deep"]["array"] += step
        self.state["bytes"][:] = bytes([step]) * 3000
        self.state["list"].append(step)
        self.state["deep"]["count"] += step

    def state_dict(self):
        return {**self.state, "bytes": bytes(self.state["bytes"])}

    def load_state_dict(self, state):
        self.state = state


def same(one, two):
    if isinstance(one, dict):
        return one.keys() == two.keys() and all(same(value, two[name]) for name, value in one.items())
    if hasattr(one, "tobytes"):
        return (one.dtype, one.shape, one.tobytes()) == (two.dtype, two.shape, two.tobytes())
    if hasattr(one, "dtype"):
        return one.dtype == two.dtype and one.equal(two)
    return one == two


def test_what_is_written_is_the_state_of_the_safe_point(tmp_path):
    """However far the save has come when the loop changes everything in place, by whichever engine."""
    engines: dict[str, Any] = {
        "as shipped": nullcontext,
        "one by one": requests,
        "three threads": lambda: requests(threads=3),
    }
    for (name, engine), nth in itertools.product(engines.items(), (0, 4, 9)):
        path, many, expected, hold = tmp_path / f"{name} {nth}", Many(), Many(), Hold(nth)
        with asked_of(name, nth):
            with engine(), door(hold), Run(path, {"many": many}, every=Every(steps=3), keep=Last(9)) as run:
                hold.watch(run)
                for step in run.steps(5):
                    many.learn(step + 1)
                    if step < 3:
                        expected.learn(step + 1)
                    if step == 3:
                        assert hold.reached.wait(WAIT_S)
            assert not same(many.state_dict(), expected.state_dict())
            assert same(Store(path)[3].load("many"), expected.state_dict())
            assert same(Store(path)[5].load("many"), many.state_dict())
            assert all(not list(checkpoint.problems(cold=True)) for checkpoint in Store(path).checkpoints())


def test_one_save_is_in_flight_at_a_time(tmp_path):
    """The next one that is due waits for it, and for no other."""
    hold = Hold()
    with held(tmp_path, hold, every=Every(steps=2)) as run:
        for step in run.steps(5):
            if step in (2, 3):
                assert hold.reached.wait(WAIT_S)
                assert [] == hold.waits
    assert 4 == hold.waits[0]
    assert [(2, "due"), (4, "due"), (5, "the end")] == saved(tmp_path)


def test_wait_returns_when_the_save_in_flight_is_durable(tmp_path):
    """And at once when none is."""
    hold = Hold()
    with held(tmp_path, hold, every=Every(steps=2)) as run:
        run.wait()
        for step in run.steps(4):
            if step == 2:
                assert hold.reached.wait(WAIT_S)
                assert [] == names(tmp_path)
                run.wait()
                assert ["step-000000002"] == names(tmp_path)
                assert [2] == hold.waits[-1:]
    with pytest.raises(UsageError, match="belongs inside"):
        run.wait()


def test_without_the_background_or_memory_for_a_copy_saves_stall_the_loop(tmp_path, monkeypatch, capsys):
    """Each save has returned before the loop goes on: no thread, no copy. What memory lacks is said once."""
    for path, background in ((tmp_path / "asked for", False), (tmp_path / "no memory", True)):
        with monkeypatch.context() as patch, new_run(path, Toy(), background=background) as run:
            if background:
                patch.setattr(snapshot, "available_bytes", lambda: snapshot.SPARE_BYTES)
            for step in run.steps(4):
                assert (path, step) == (path, len(names(path)))
                assert background or "holdfast" not in {thread.name for thread in threading.enumerate()}
            assert background or run._session.saves.arena.size_bytes == 0
        assert background == capsys.readouterr().err.count("saves stall the loop until they are durable")
        assert 4 == len(events(path, "saved"))
        assert all(event["stall_s"] == event["save_s"] for event in events(path, "saved"))


def test_the_journal_tells_how_long_the_loop_stood_still(tmp_path):
    """Never longer than the save; as long when nothing was in the background."""
    with new_run(tmp_path, Toy()) as run:
        list(run.steps(5))
    *before, end = events(tmp_path, "saved")
    assert all(0 <= event["stall_s"] <= event["save_s"] for event in before)
    assert "the end" == end["reason"]
    assert end["stall_s"] == end["save_s"]


def test_the_memory_of_a_copy_is_used_again(tmp_path):
    """Save after save: one arena, as large as one state and a little."""
    size = 4_000_000
    with Run(tmp_path, {"many": Holds(size)}, every=Every(steps=1), keep=Last(1)) as run:
        for step in run.steps(6):
            if step:
                assert size < run._session.saves.arena.size_bytes <= 1.05 * size


class Holds:
    def __init__(self, size):
        self.array = np.zeros(size, "uint8")

    def state_dict(self):
        self.array += 1
        return {"array": self.array}

    def load_state_dict(self, state):
        self.array = state["array"]


# Best -----------------------------------------------------------------------------------------------------------


def test_a_new_best_has_to_beat_the_one_in_flight(tmp_path):
    """What it was saved for counts before the checkpoint is there."""
    hold = Hold()
    with held(tmp_path, hold, every=None, keep=Best("acc", max, n=1)) as run:
        for acc in (0.5, 0.4, 0.5, 0.6):
            run.log(acc=acc)
            run.safe_point()
            assert hold.reached.wait(WAIT_S)
            assert ([4] if acc == 0.6 else []) == hold.waits
        run.wait()
    assert [(1, "new best"), (4, "new best")] == saved(tmp_path)


def test_a_best_that_failed_need_not_be_beaten(tmp_path, capsys):
    """It is nowhere; the next one is the best there is."""
    hold = Hold(code=FULL)
    with held(tmp_path, hold, every=None, keep=Best("acc", max, n=1)) as run:
        for acc in (0.5, 0.4, 0.3):
            run.log(acc=acc)
            run.safe_point()
            hold.go.set()
            ended(run)
    assert [(2, "new best"), (3, "the end")] == saved(tmp_path)
    assert "step 1 is not saved, and training goes on" in capsys.readouterr().err


# Errors ---------------------------------------------------------------------------------------------------------


def test_a_full_disk_lets_the_loop_go_on_loudly(tmp_path, capsys):
    """One that is due; at the safe point after it failed, and the next one makes up for it."""
    hold = Hold(nth=3, code=FULL)
    with held(tmp_path, hold, every=Every(steps=2)) as run:
        for step in run.steps(5):
            if step == 2:
                hold.go.set()
                ended(run)
                assert "" == capsys.readouterr().err.replace(f"holdfast: {tmp_path}: starts fresh (attempt 1)\n", "")
            if step == 3:
                assert "step 2 is not saved, and training goes on" in capsys.readouterr().err
    assert [(4, "due"), (5, "the end")] == saved(tmp_path)
    assert [2] == [event["step"] for event in events(tmp_path, "save_failed")]


def test_the_error_of_a_save_that_was_asked_for_surfaces_at_the_next_safe_point(tmp_path):
    """With its own type; what was saved before stays."""
    for (code, kind), nth in itertools.product([(FULL, NoSpace), (BROKEN, DiskError)], (0, 3, 6)):
        path, hold, passed = tmp_path / f"{code} {nth}", Hold(nth, code), []
        with asked_of(code, nth), pytest.raises(kind) as raised, held(path, hold, every=None) as run:
            for step in run.steps(5):
                passed.append(step)
                if step == 1:
                    run.save()
                if step == 2:
                    hold.go.set()
                    ended(run)
        assert (kind, [0, 1, 2], []) == (type(raised.value), passed, saved(path))
        assert [kind.__name__] == [event["error"].partition(":")[0] for event in events(path, "failed")]


def test_wait_raises_what_the_save_in_flight_failed_with(tmp_path):
    """Also that of a due one which the loop would have survived: who waits counts on it."""
    hold = Hold(code=FULL)
    with held(tmp_path, hold, every=Every(steps=2)) as run:
        for step in run.steps(3):
            if step == 2:
                with pytest.raises(NoSpace):
                    run.wait()
                run.wait()
    assert [(3, "the end")] == saved(tmp_path)


def test_an_attempt_that_was_superseded_hears_it_from_its_save(tmp_path):
    """At the next safe point; nothing of its save is left."""
    hold = Hold(nth=4)
    with pytest.raises(Superseded), held(tmp_path, hold, every=Every(steps=2)) as run:
        for step in run.steps(9):
            assert step < 3
            if step == 2:
                assert hold.reached.wait(WAIT_S)
                successor = Store(tmp_path, take_over=True)
                successor.save({"by": "the successor"}, step=1)
                hold.go.set()
                ended(run)
    assert ["step-000000001"] == names(tmp_path)
    successor.save({"by": "the successor"}, step=2)
    assert [successor.attempt.journal.name] == [path.name for path in successor.attempt.room.iterdir()]


def test_a_failed_save_comes_before_what_the_loop_itself_raises(tmp_path, capsys):
    """The loop's exception is what is raised; the save's error is told."""
    hold = Hold(code=BROKEN)
    with pytest.raises(ValueError, match="boom"), held(tmp_path, hold, every=Every(steps=1)) as run:
        for step in run.steps(9):
            if step == 1:
                raise ValueError("boom")
    assert [1] == hold.waits
    assert "the save in flight failed" in capsys.readouterr().err


# Leaving --------------------------------------------------------------------------------------------------------


def test_leaving_the_block_waits_for_the_save_in_flight(tmp_path):
    """It is as good as any: whole when the block has ended, whatever ended it. After a break the end is saved, too."""
    for error in (ValueError, Cut, SystemExit, KeyboardInterrupt, None):
        path, hold = tmp_path / str(error), Hold()
        with (
            asked_of(error),
            pytest.raises(error) if error else nullcontext(),
            held(path, hold, every=Every(steps=2)) as run,
        ):
            for step in run.steps(9):
                if step == 3:
                    assert hold.reached.wait(WAIT_S)
                    if error is None:
                        break
                    raise error
        end = [] if error else [("step-000000004-end", (4, "the end"))]
        expected = [("step-000000002", (2, "due")), *end]
        assert (error, expected) == (error, [*zip(names(path), saved(path), strict=True)])


# Stops ----------------------------------------------------------------------------------------------------------


def stopped_while_in_flight(path, nth, ask):
    """A stop at step 4 while the save of step 2 or 3 is before its nth change; whether it came that far."""
    hold = Hold(nth)
    with pytest.raises(Stopped), held(path, hold, every=None if ask else Every(steps=3), keep=Last(9)) as run:
        writer, abandon = run._session.saves.writer, run._session.saves.writer.abandon
        writer.abandon = lambda: (abandon(), hold.go.set())
        for step in run.steps(9):
            if step == 2 and ask:
                run.save()
            if step == 3:
                run._session.tracked.objects["toy"].value = 4444
                while not hold.reached.wait(0.01) and not writer.has_finished:
                    pass
                run._session.stop.reason = "SIGTERM"
    assert [4] == [event["step"] for event in events(path, "stop")]
    assert 4444 == Store(path).load()["toy"]["value"]
    assert not [left for left in path.glob("attempts/*/*") if left.suffix != ".jsonl"]
    return hold.reached.is_set()


def test_a_stop_abandons_a_due_save_in_flight(tmp_path):
    """Wherever that is: the newest state is durable, and the other is whole or not there."""
    with requests():
        found = []
        for nth in itertools.count():
            path = tmp_path / str(nth)
            if not stopped_while_in_flight(path, nth, ask=False):
                break
            found.append(names(path))
            assert [step for step, _ in saved(path)] == [int(name.split("-")[1]) for name in found[-1]]
    assert [["step-000000004"]] * 4 == found[:4]
    assert ["step-000000003", "step-000000004"] == found[-1]
    assert found == sorted(found, key=len)  # after its last request it is finished


@pytest.mark.parametrize("nth", [0, 5])
def test_a_stop_lets_a_save_that_was_asked_for_finish(tmp_path, nth):
    """First that, then the newest state."""
    assert stopped_while_in_flight(tmp_path, nth, ask=True)
    assert [(3, "asked"), (4, "SIGTERM")] == saved(tmp_path)


def test_a_stop_at_the_step_in_flight_waits_for_it(tmp_path):
    """It is not saved twice."""
    hold = Hold()
    with pytest.raises(Stopped), held(tmp_path, hold, every=Every(steps=1)) as run:
        run.safe_point()
        assert hold.reached.wait(WAIT_S)
        run._session.stop.reason = "SIGTERM"
    assert [(1, "due")] == saved(tmp_path)
    assert [1] == [event["step"] for event in events(tmp_path, "stop")]


def test_a_stop_after_a_save_that_did_not_fit_saves_what_is_newest(tmp_path, capsys):
    """The older one's error is told; the newer one may fit."""
    hold = Hold(code=FULL)
    with pytest.raises(Stopped), held(tmp_path, hold, every=Every(steps=2)) as run:
        for step in run.steps(9):
            if step == 2:
                hold.go.set()
                ended(run)
                run._session.stop.reason = "SIGTERM"
    assert [(3, "SIGTERM")] == saved(tmp_path)
    assert "step 2 is not saved" in capsys.readouterr().err


def test_a_deadline_leaves_time_for_the_save_in_flight_and_one_more(tmp_path):
    """A stop may have to wait for one and then save itself."""
    hold = Hold()
    with (
        pytest.raises(Stopped, match="deadline"),
        held(tmp_path, hold, every=None, deadline=timedelta(seconds=200)) as run,
    ):
        run._session.saves.save_s = 100.0
        for step in run.steps(9):
            assert step < 3
            if step == 1:
                run.save()
    assert [(2, "asked"), (3, "deadline")] == saved(tmp_path)


def test_a_second_interrupt_ends_the_waiting_and_not_the_save(tmp_path):
    """The error is KeyboardInterrupt; the block still ends only when nothing is in flight."""
    hold = Hold()

    def interrupt():
        os.kill(os.getpid(), signal.SIGINT)
        os.kill(os.getpid(), signal.SIGINT)  # two within a second are one, the third one counts

    with pytest.raises(KeyboardInterrupt), held(tmp_path, hold, every=None) as run:
        writer, waits = run._session.saves.writer, itertools.count()

        def waiting(*given):
            if next(waits) == 0:
                threading.Timer(0.05, interrupt).start()  # while the lock is waited for, not before
            else:
                hold.go.set()
            return Latch.wait(writer._ended, *given)

        writer.wait = type(writer).wait.__get__(writer)  # which lets nothing go
        for step in run.steps(9):
            if step == 1:
                run.save()
            if step == 2:
                assert hold.reached.wait(WAIT_S)
                writer._ended.wait = waiting
                interrupt()
                assert "SIGINT" == run._session.stop.reason
    assert 2 == next(waits)
    assert ["step-000000002"] == names(tmp_path)
    assert [(2, "asked")] == saved(tmp_path)


# Children -------------------------------------------------------------------------------------------------------


def child(work):
    """The exit code of a forked child that does `work`; negative: the signal."""
    number = os.fork()
    if number == 0:
        code = 1
        try:
            signal.alarm(WAIT_S)
            work()
            code = 0
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(number, 0)[1])


@pytest.mark.parametrize("nth", [0, 3, 6, 9])
def test_a_child_forked_during_a_save_saves_to_a_run_of_its_own(tmp_path, nth):
    """It neither hangs nor disturbs: both runs are whole."""
    hold = Hold(nth)

    def train():
        with new_run(tmp_path / "child", Toy(), every=Every(steps=1)) as run:
            list(run.steps(3))
            done.append(run.step)

    def work():
        thread = threading.Thread(target=train)  # the main one takes signals for its parent's run
        thread.start()
        thread.join()
        assert [3] == done

    done = []
    with requests(threads=2), held(tmp_path / "parent", hold, every=Every(steps=2)) as run:
        for step in run.steps(3):
            if step == 2:
                assert hold.reached.wait(WAIT_S)
                with pytest.raises(UsageError, match="forked"):
                    raise_in_child(run.wait)
                assert 0 == child(work)
    assert ["step-000000002", "step-000000003"] == names(tmp_path / "parent")
    assert ["step-000000001", "step-000000002", "step-000000003"] == names(tmp_path / "child")
    for path in ("parent", "child"):
        assert all(not list(each.problems(cold=True)) for each in Store(tmp_path / path).checkpoints())


def raise_in_child(work):
    """Raise a UsageError when the child's work raised one."""

    def expected():
        try:
            work()
        except UsageError:
            os._exit(7)

    if child(expected) == 7:
        raise UsageError("a forked child was refused")


def test_workers_of_a_loader_forked_during_a_save_disturb_nothing(tmp_path):
    """They get no page of the copy, and come and go while it is written."""
    torch = pytest.importorskip("torch")
    from torch.utils.data import DataLoader, TensorDataset

    many, expected, hold = Many(), Many(), Hold(nth=5)
    loader = DataLoader(TensorDataset(torch.arange(8)), 2, num_workers=2)
    with door(hold), Run(tmp_path, {"many": many}, every=Every(steps=2), keep=Last(9)) as run:
        hold.watch(run)
        for step in run.steps(4):
            many.learn(step + 1)
            if step < 2:
                expected.learn(step + 1)
            else:
                assert hold.reached.wait(WAIT_S)
                assert [0, 1, 2, 3, 4, 5, 6, 7] == [int(x) for (batch,) in loader for x in batch]
    assert same(Store(tmp_path)[2].load("many"), expected.state_dict())
    assert same(Store(tmp_path)[4].load("many"), many.state_dict())


def test_a_save_that_failed_leaves_nothing_of_its_state():
    """Also in a program in which nobody looks for cycles: a disk may be full for long, and the loop goes on."""
    writer, states = SaveWriter(), []

    def work(_):
        state = np.arange(1000.0)
        states.append(weakref.ref(state))
        raise NoSpace("full")

    gc.disable()
    try:
        writer.submit(work)
        try:
            writer.wait()
        except NoSpace:
            states.append(lambda: None)  # pytest.raises would keep the error, and with it the state
        assert [None, None] == [state() for state in states]
    finally:
        gc.enable()
