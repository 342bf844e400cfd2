"""`holdfast run` as people start it, on real processes, and what is left of it afterwards."""

import json
import os
import signal
import subprocess
import sys
import time
import uuid
from contextlib import suppress
from pathlib import Path

from holdfast import journal
from toy import script

PATIENCE_S = 60
TRAINS = """
    with new_run(RUN, toy, every=Every(steps=5), keep=Last(3)) as run:
        for epoch in run.epochs(3):
            for x in run.batches(range(10)):
                toy.learn(x)
                print("step", run.step, flush=True)
                time.sleep(0.02)
    print("value", toy.value, flush=True)
"""


class Supervised:
    """One `holdfast run` in the directory `place`, its output in files there unless pipes are wanted."""

    def __init__(self, place, command, *options, out=None, err=None, alone=False, **environment):
        self.place, self.tag = Path(place), uuid.uuid4().hex
        self.out, self.err = self.place / "out", self.place / "err"
        self.before = len(self.printed) if self.out.exists() else 0
        path = f"{os.environ['PATH']}:{Path(sys.executable).parent}"  # which has python3, where nothing else has
        words = [sys.executable, "-m", "holdfast", "run", *map(str, options), "--", *map(str, command)]
        with self.out.open("ab") as output, self.err.open("ab") as errors:
            self.process = subprocess.Popen(
                words,
                cwd=place,
                stdin=subprocess.DEVNULL,
                start_new_session=alone,
                stdout=output if out is None else out,
                stderr=errors if err is None else err,
                env={**os.environ, "PATH": path, "SUPERVISED_TAG": self.tag, "PYTHONUNBUFFERED": "1", **environment},
            )

    def __enter__(self):
        return self

    def __exit__(self, *_):
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        for pid in self.left():
            with suppress(ProcessLookupError):  # it was about to end by itself
                os.kill(pid, signal.SIGKILL)

    def send(self, name):
        self.process.send_signal(getattr(signal, f"SIG{name}"))

    def kill(self):
        """SIGKILL for it; returns when nothing that it started is left."""
        self.process.kill()
        self.process.wait()
        until(lambda: not self.left(), "the end of what it started")

    def end(self):
        """The exit code, when it is over and nothing that it started is left."""
        # /proc shows the environment of a program that is just being started as empty
        until(lambda: self.process.poll() is not None or self.process.pid in self.left(), "`left` sees what runs")
        code = self.process.wait(PATIENCE_S)
        assert [] == self.left()
        return code

    def left(self):
        """Processes that it has started, directly or not, and that still run."""
        found = []
        for path in Path("/proc").glob("[0-9]*"):
            try:
                ours = f"SUPERVISED_TAG={self.tag}".encode() in (path / "environ").read_bytes()
                if ours and state(path.name) not in "ZX":
                    found.append(int(path.name))
            except OSError:
                continue
        return found

    @property
    def printed(self):
        return self.out.read_text()

    @property
    def said(self):
        return self.err.read_text()

    @property
    def home(self):
        found = [*self.place.glob(".holdfast/*/supervisor.jsonl"), *self.place.glob("place/supervisor.jsonl")]
        (home,) = (path.parent for path in found)
        return home

    def events(self, kind=None):
        found = journal.read(self.home / "supervisor.jsonl")
        return [event for event in found if kind in (None, event["event"])]

    @property
    def begun(self):
        """Whether its command has been started."""
        found = [*self.place.glob(".holdfast/*/supervisor.jsonl"), *self.place.glob("*/supervisor.jsonl")]
        return any(b'"start"' in path.read_bytes() for path in found)

    def strike(self, number=signal.SIGTERM):
        """Send a signal to the command alone, once its start is in the journal."""
        until(lambda: self.begun, "the start")
        os.kill(self.events("start")[-1]["pid"], number)

    def story(self):
        """The kinds of the journal's lines, in order."""
        return [event["event"] for event in self.events()]


def supervised(place, command, *options, **more):
    """See one to its end; its code is `code`."""
    with Supervised(place, command, *options, **more) as it:
        it.code = it.end()
        return it


def steered(place, command, *steps, code, options=(), **more):
    """See one to its end with this code. `steps`: a signal's name is sent, other words are waited for in its output."""
    with Supervised(place, command, *options, **more) as it:
        for step in steps:
            if hasattr(signal, f"SIG{step}"):
                until(lambda: it.begun, "the start")
                it.send(step)
            else:
                until(lambda step=step: step in it.printed[it.before :], f"{step!r} in the output")
        assert code == it.end(), it.said
        return it


def until(condition, what="it", patience_s=PATIENCE_S):
    """Wait for what `condition` finds, and give it back."""
    ends = time.monotonic() + patience_s
    while not (found := condition()):
        assert time.monotonic() < ends, f"{what} never came"
        time.sleep(0.02)
    return found


def state(pid):
    """A letter: T stopped, Z a zombie, ..."""
    return _stat(pid)[0]


def parent(pid):
    """The process that has started it."""
    return int(_stat(pid)[1])


def _stat(pid):
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()


def bash(text):
    return ["bash", "-c", text]


def python(text, *words):
    return [sys.executable, "-c", text, *words]


def last_json(text):
    return json.loads(text.rstrip("\n").splitlines()[-1])


def train(place, body=TRAINS):
    """The command of a script in `place` that trains; its run is in `place`/run."""
    return [sys.executable, script(place, body)]
