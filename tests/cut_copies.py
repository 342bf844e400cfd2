"""A run of a state of a few MiB whose copy can be held or cut short where each of its parts begins."""

import threading
from contextlib import contextmanager

import numpy as np

from faults import requests
from holdfast import Every, Last, Run
from holdfast.pages import begin_copy
from holdfast.state import snapshot

LEAF = 1 << 16
LEAVES = 40


class Wide:
    """Arrays that change with every step."""

    def __init__(self):
        self.arrays = {str(number): np.full(LEAF, number, "uint8") for number in range(LEAVES)}

    def learn(self):
        for array in self.arrays.values():
            np.add(array, 1, out=array)

    def state_dict(self):
        return dict(self.arrays)

    def load_state_dict(self, state):
        self.arrays = state


class Cut:
    """Lets something happen as the nth copy begins; with `repeat`, as each later one does, too."""

    def __init__(self, monkeypatch, nth, act):
        self.nth, self.act, self.count, self.armed, self.repeat = nth, act, 0, True, False
        real, lock = begin_copy, threading.Lock()

        def copied(target, source):
            with lock:
                self.count += self.armed
                mine = self.armed and (self.count == self.nth or (self.repeat and self.count > self.nth))
            if mine:
                self.act()
            return real(target, source)

        monkeypatch.setattr(snapshot, "begin_copy", copied)


@contextmanager
def running(path, wide, **options):
    with Run(path, {"wide": wide}, **{"every": Every(steps=1), "keep": Last(9), **options}) as run:
        yield run


def left_in_attempts(path):
    return [left.name for left in path.glob("attempts/*/*") if left.suffix != ".jsonl"]


def same(state, wide):
    return all(np.array_equal(state[key], array) for key, array in wide.arrays.items())


@contextmanager
def small_copies(monkeypatch):
    """Two threads copy a state of a few MiB, in portions, and its save begins meanwhile. No thread is left behind."""
    monkeypatch.setattr(snapshot, "_THREADS_PAY_BYTES", LEAF)
    monkeypatch.setattr(snapshot, "_EACH_PAYS_BYTES", 1)
    monkeypatch.setattr(snapshot, "PORTION_BYTES", LEAF // 4)
    with requests(4096, threads=2):
        yield
    assert "holdfast" not in {thread.name for thread in threading.enumerate()}
