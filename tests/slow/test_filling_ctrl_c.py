"""Ctrl-C, as often as it comes, while the loop copies its state for a save."""

import os
import signal
import threading
import time
from typing import Any

import numpy as np
import pytest

from cut_copies import LEAVES, Cut, Wide, left_in_attempts, running, same, small_copies
from faults import door
from holdfast import Store
from holdfast.state import snapshot
from stores import steps
from toy import events

WAIT_S = 60


@pytest.fixture(autouse=True)
def _small(monkeypatch):
    with small_copies(monkeypatch):
        yield


class Presses:
    """Ctrl-C, as often as asked for: each is heard while the loop copies, by what listened before, and none later."""

    def __init__(self):
        self.out, self.heard, self.over = threading.Event(), 0, threading.Event()
        self.real: Any = signal.getsignal(signal.SIGINT)
        signal.signal(signal.SIGINT, self.hear)

    def hear(self, number, frame):
        here = frame
        while here is not None and here.f_code is not snapshot.Snapshot.copy.__code__:
            here = here.f_back
        if here is not None:
            self.heard += 1
            self.real(number, frame)

    def press(self, times):
        """Return when the loop has heard it so often, or is out of the copy."""
        for wanted in range(1, times + 1):
            while self.heard < wanted and not self.out.is_set():
                os.kill(os.getpid(), signal.SIGINT)
                self.out.wait(0.02)
        self.over.set()


@pytest.mark.parametrize(("nth", "times"), [(LEAVES, 3), (LEAVES, 9), (4 * LEAVES, 9)])
def test_ctrl_c_in_the_midst_of_the_copy_leaves_the_old_checkpoint_only(tmp_path, monkeypatch, nth, times):
    """Also when it comes until nobody waits any more, and threads still copy what the loop is changing by then."""
    wide, expected, gone_on = Wide(), Wide(), threading.Event()

    def interrupt():
        presses.press(times)
        if times > 3:
            assert gone_on.wait(WAIT_S)

    with pytest.raises(KeyboardInterrupt), running(tmp_path, wide) as run:
        run.safe_point()
        run.wait()
        wide.learn()
        presses = Presses()
        Cut(monkeypatch, nth, interrupt)
        try:
            run.safe_point()
        finally:
            presses.out.set()
            wide.learn()
            gone_on.set()
    assert [1] == steps(Store(tmp_path))
    assert same(Store(tmp_path)[1].load("wide"), expected)
    assert [1] == [event["step"] for event in events(tmp_path, "saved")]
    assert [] == left_in_attempts(tmp_path)


def test_threads_that_ctrl_c_has_left_behind_reach_no_later_save(tmp_path, monkeypatch):
    """The loop goes on, saves and learns. Only then do they copy what they were given, into memory that they keep."""
    wide, gone_on, later = Wide(), threading.Event(), threading.Event()

    def interrupt():
        presses.press(99)
        assert gone_on.wait(WAIT_S)

    def disk(call, perform):
        of_copies = threading.current_thread() is not threading.main_thread()  # the loop itself writes to its journal
        if call.name == "write" and later.is_set() and of_copies:
            assert gone_on.wait(WAIT_S)
            time.sleep(0.001)
        return perform()

    with door(disk), running(tmp_path, wide) as run:
        presses = Presses()
        Cut(monkeypatch, LEAVES, interrupt)
        with pytest.raises(KeyboardInterrupt):
            run.safe_point()
        presses.out.set()
        assert presses.over.wait(WAIT_S)
        run._session.saves.writer.wait_until_released()
        later.set()
        run._session.stop.reason = None  # a loop that takes Ctrl-C for something else
        for _ in range(9):
            wide.learn()
        expected = {key: array.copy() for key, array in wide.arrays.items()}
        run.safe_point()
        wide.learn()
        gone_on.set()
        run.wait()
        saved = Store(tmp_path)[2].load("wide")
        assert all(np.array_equal(saved[key], array) for key, array in expected.items())
