"""Programs that we did not write, run under `holdfast run --app` and by hand: what several tests of adapters ask."""

import os
import shutil
import signal
import subprocess
from pathlib import Path

import pytest

from holdfast import Store
from holdfast.apps.program import Ended
from holdfast.apps.take import take
from supervised import Supervised, until


def needs(*programs):
    """Marks tests that run real programs; .ci/run brings those that Debian has."""
    absent = [name for name in programs if shutil.which(name) is None]
    skipped = pytest.mark.skipif(bool(absent), reason=f"{', '.join(absent)} not on PATH")
    return lambda tests: pytest.mark.slow(pytest.mark.system(skipped(tests)))


class Watched(Supervised):
    """`holdfast run --app` with the store in `place`/run."""

    def __init__(self, place, app, command, *options, **more):
        super().__init__(place, command, "--app", app, "--run", "run", *options, **more)

    @property
    def home(self):
        return self.place / "run"

    def program(self):
        """The pid of the program that runs now."""
        if not (self.home / "supervisor.jsonl").exists():
            return None
        starts = [event for event in self.events("start") if Path(f"/proc/{event['pid']}").exists()]
        return starts[-1]["pid"] if starts else None


def steps(place):
    """Of the checkpoints that are kept in `place`/run."""
    return [checkpoint.step for checkpoint in Store(place / "run").checkpoints()]


def interrupted(place, app, command, kills, fresh):
    """One run through `kills`, each once `fresh` finds that this start has written a checkpoint; told by whom it was hit.

    TERM: the supervisor is told. KILL: the program is killed, and may be started again. SUPERVISOR: that is killed.
    """
    for kill in kills:
        known = fresh()
        with Watched(place, app, command, "--retries", "1" if kill == "KILL" else "0") as it:
            until(lambda known=known: fresh() not in (None, known), "a checkpoint")
            if kill == "TERM":
                it.send("TERM")
                assert 75 == it.end(), it.said
            elif kill == "KILL":
                os.kill(until(it.program), signal.SIGKILL)
                until(lambda it=it: len(it.events("start")) > 1, "a second start")
                it.send("TERM")
                assert 75 == it.end(), it.said
            else:
                it.process.kill()
                it.process.wait()
                until(lambda it=it: not it.left(), "the end of what it started")


def by_hand(program, command, place, checkpoint=None, time_left_s=None, after_s=None, told=None):
    """One start without a supervisor: what the adapter says of it."""
    words = program.begin(command, checkpoint, time_left_s)
    stopped = False
    child = subprocess.Popen(
        [*words],
        cwd=place,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        process_group=0,
    )
    try:
        printed, _ = child.communicate(timeout=after_s or 120)
    except subprocess.TimeoutExpired:
        if after_s is None:
            raise
        stopped = True
        os.killpg(child.pid, program.stop(told or signal.SIGTERM, child.pid))
        printed, _ = child.communicate(timeout=60)
    finally:
        child.kill()
        child.wait()
    assert stopped == (after_s is not None), f"it ended by itself before it was told to:\n{printed}"
    ended = Ended(child.returncode, printed[-4000:], stopped)
    return ended, program.verdict(ended)


def copied(found, into):
    """The checkpoint as it would lie in the store."""
    into.mkdir(parents=True)
    assert take(found, into)
    return into
