"""A model without a framework, whose value at the end tells whether each step was done once, in order and with its
luck.
"""

import os
import random
import subprocess
import sys
import textwrap
import time
from pathlib import Path

from holdfast import Every, Last, Run, Store, journal

EPOCHS, BATCHES = 3, 4
ENDS_S = 240  # also on a busy machine: what takes longer hangs


class Cut(BaseException):
    """The process is gone, as far as a run can tell within one process."""


def waited_for(condition, limit_s=60):
    """Return when it holds; it has to within the limit."""
    end_s = time.monotonic() + limit_s
    while not condition():
        assert time.monotonic() < end_s, f"not within {limit_s} s"
        time.sleep(0.01)


class Toy:
    def __init__(self):
        self.value = 1

    def learn(self, batch=0):
        self.value = (self.value * 31 + hash(batch) + random.getrandbits(40)) % (2**61 - 1)

    def state_dict(self):
        return {"value": self.value}

    def load_state_dict(self, state):
        self.value = state["value"]


class Passes:
    """Cuts the process in the pass that it was told, counted over the process's whole life."""

    def __init__(self, cut=None):
        self.cut, self.count = cut, 0

    def one(self):
        self.count += 1
        if self.count == self.cut:
            raise Cut


def new_run(path, toy, **options):
    return Run(path, {"toy": toy}, **{"every": Every(steps=1), "keep": Last(1000), **options})


def events(path, kind):
    return [event for log in journal.logs(Path(path)) for event in log.events if event["event"] == kind]


def names(path):
    """Of the checkpoints, in their order."""
    return [checkpoint.name for checkpoint in Store(path).checkpoints()]


def lines(path):
    """Step, phase and values of each line of the metrics log."""
    return [(line["step"], line["phase"], line["values"]) for line in Run(path, {}).metrics()]


def script(place, body):
    """A training script at `place`/train.py; its run is in `place`/run."""
    head = f"""
        import os, random, signal, sys, time
        sys.path.insert(0, {str(Path(__file__).parent)!r})
        os.fsync = lambda descriptor: None  # a process that dies takes nothing out of the page cache with it
        from toy import Toy, new_run
        from holdfast import Best, Every, Last, Run
        RUN = {str(place / "run")!r}
        random.seed(1)
        toy = Toy()

        def send(name):
            os.kill(os.getpid(), getattr(signal, "SIG" + name))
        """
    path = place / "train.py"
    path.write_text(textwrap.dedent(head) + textwrap.dedent(body))
    return path


def start(path, *words, **environment):
    return subprocess.Popen(
        [sys.executable, str(path), *map(str, words)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, **environment},
    )


class Ended:
    """How a process ended: its exit code (negative: the signal), stdout, stderr."""

    def __init__(self, process):
        try:
            self.out, self.err = process.communicate(timeout=ENDS_S)
        except subprocess.TimeoutExpired:
            process.kill()
            raise
        self.code = process.returncode

    def __repr__(self):
        return f"exit {self.code}\n{self.out}\n{self.err}"


def launch(path, *words, **environment):
    return Ended(start(path, *words, **environment))
