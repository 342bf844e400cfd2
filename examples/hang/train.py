"""Hang once, in the middle of a training, and see what `holdfast run` makes of it.

    holdfast run --on-hang restart --hang-after 5 --grace 2 -- python examples/hang/train.py

Two threads take two locks, each in its own order. Step 30 waits for ever. The supervisor says where, keeps the stacks
of all threads, ends the process and starts it again from the last save. The last line is that of a run without a hang:

    python examples/hang/train.py --without

The supervisor's directory, .holdfast/train, has the stacks in hang-1.txt. Remove the directory runs to see it again.
"""

import random
import sys
import threading
import time
from pathlib import Path

from holdfast import Every, Last, Run

RUN, HUNG = Path("runs/hang"), Path("runs/hang-was-there")
LOGS, CACHE = threading.Lock(), threading.Lock()


class Walker:
    """A random walk in place of a model."""

    def __init__(self):
        self.place = 0.0

    def step(self):
        self.place += random.gauss(0.0, 1.0)
        time.sleep(0.02)

    def state_dict(self):
        return {"place": self.place}

    def load_state_dict(self, state):
        self.place = state["place"]


def writes_logs():
    with LOGS:
        time.sleep(0.2)
        with CACHE:
            pass


def cleans_the_cache():
    with CACHE:
        time.sleep(0.2)
        with LOGS:
            pass


def hang_once():
    if not HUNG.exists():
        HUNG.touch()
        threading.Thread(target=writes_logs, daemon=True).start()
        cleans_the_cache()


random.seed(0)
walker = Walker()
with Run(RUN, {"walker": walker}, every=Every(steps=10), keep=Last(2)) as run:
    for step in run.steps(60):
        walker.step()
        if step == 30 and "--without" not in sys.argv:
            hang_once()
print(f"walked to {walker.place!r}")
