"""Programs that we did not write, run under `holdfast run --app` and by hand: what several tests of adapters ask."""

import os
import signal
import subprocess
from pathlib import Path

from holdfast import Store
from holdfast.apps.program import ProgramExit
from holdfast.apps.take import copy_if_unchanged
from supervised import PATIENCE_S, Supervised, until

MDP = """
integrator = md
nsteps = 6000
dt = 0.002
nstxout-compressed = 500
nstenergy = 500
nstlog = 500
rcoulomb = 0.9
rvdw = 0.9
coulombtype = PME
tcoupl = v-rescale
tc-grps = System
tau-t = 0.1
ref-t = 300
gen-vel = yes
gen-seed = 7
ld-seed = 7
"""
TOP = """#include "oplsaa.ff/forcefield.itp"
#include "oplsaa.ff/spce.itp"
[ system ]
water
[ molecules ]
"""


def gmx(*words, place):
    done = subprocess.run(["gmx", *words], check=False, cwd=place, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


class Watched(Supervised):
    """`holdfast run --app` with the store in `place`/run."""

    def __init__(self, place, app, command, *options, **more):
        super().__init__(place, command, "--app", app, "--run", "run", *options, **more)

    @property
    def home(self):
        return self.place / "run"

    def kept(self):
        """Steps of the checkpoints that are kept, once there is a store."""
        return steps(self.place) if (self.home / "checkpoints").is_dir() else []

    def program(self):
        """The pid of the program that runs now."""
        if not (self.home / "supervisor.jsonl").exists():
            return None
        starts = [event for event in self.events("start") if Path(f"/proc/{event['pid']}").exists()]
        return starts[-1]["pid"] if starts else None


def steps(place):
    """Of the checkpoints that are kept in `place`/run."""
    return [checkpoint.step for checkpoint in Store(place / "run").checkpoints()]


def planted(place, step, files):
    """A checkpoint of this step in `place`/run that holds these bytes: {name: bytes}."""
    store = Store(place / "run")
    with store.directory(step=step) as path:
        for name, data in files.items():
            (path / name).write_bytes(data)
    store.close()


def interrupted(place, app, command, kills, fresh):
    """One run through `kills`, each once `fresh` finds that this start has written a checkpoint; told by whom it was
    hit.

    TERM, USR1: the supervisor is told. KILL: the program is killed, and started again. SUPERVISOR: that is killed.
    """
    for kill in kills:
        known = fresh()
        with Watched(place, app, command, "--retries", "1" if kill == "KILL" else "0") as it:
            until(lambda known=known: fresh() not in (None, known) or it.process.poll() is not None, "a checkpoint")
            assert it.process.poll() is None, ("it ended before it was hit", it.said)
            if kill in ("TERM", "USR1"):
                it.send(kill)
                assert 75 == it.end(), it.said
            elif kill == "KILL":
                os.kill(until(it.program), signal.SIGKILL)
                until(lambda it=it: len(it.events("start")) > 1, "a second start")
                it.send("TERM")
                assert 75 == it.end(), it.said
            else:
                it.kill()


def by_hand(program, command, place, checkpoint=None, time_left_s=None, enough=None):
    """One start without a supervisor, stopped by SIGTERM once it is `enough`: what the adapter says of it."""
    words = program.begin(command, checkpoint, time_left_s)
    with (place / "printed").open("w+b") as out:
        child = subprocess.Popen(
            [*words], cwd=place, stdin=subprocess.DEVNULL, stdout=out, stderr=subprocess.STDOUT, process_group=0
        )
        try:
            if enough is not None:
                until(enough, "what it is to come to")
                os.killpg(child.pid, program.stop(signal.SIGTERM, child.pid))
            child.wait(PATIENCE_S * 2)
        finally:
            child.kill()
            child.wait()
        out.seek(0)
        printed = out.read().decode(errors="replace")
    ended = ProgramExit(child.returncode, printed[-4000:], enough is not None, checkpoint is not None)
    return ended, program.verdict(ended)


def copied(found, into):
    """The checkpoint as it would lie in the store."""
    into.mkdir(parents=True)
    assert copy_if_unchanged(found, into)
    return into
