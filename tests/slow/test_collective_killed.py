"""Ranks that are processes, one of which is killed somewhere in a save: the old checkpoint or the new one, whole for
each.
"""

import os
import random
import signal
import time
from contextlib import ExitStack
from multiprocessing import get_context

from collective import frozen, put, read, same, state
from faults import door, scratched
from holdfast.collective import division
from holdfast.collective.store import CollectiveStore
from holdfast.errors import RanksError
from holdfast.ranks import Ranks
from holdfast.store import lineage, shards
from holdfast.store.store import Store

WORLD = 3
TIMEOUT_S = 6.0
SAVED = 3  # before the one in which somebody dies
AT_ONCE = 12
DIED = -signal.SIGKILL


class Files:
    """Keys and values in a directory that all processes see."""

    def __init__(self, place):
        self.place = place

    def _path(self, key):
        return self.place / key.replace("/", ",")

    def put(self, key, value):
        draft = self.place / f".{os.getpid()}-{time.monotonic_ns()}"
        draft.write_bytes(value)
        os.rename(draft, self._path(key))

    def get(self, key):
        try:
            return self._path(key).read_bytes()
        except FileNotFoundError:
            return None

    def drop(self, key):
        self._path(key).unlink(missing_ok=True)

    def reconnect(self):
        return self


def state_of(seed, rank, step):
    """Of every second seed's runs the most never changes, so that each rank takes files over."""
    return frozen(rank, 600, step) if seed % 2 else state(rank, 300, step=step)


def rank_of(base, seed, rank, victim, instant):
    """One rank's life: saves that succeed, and one in which the victim dies at a change of a file, or of a word."""
    told = 3
    division.SHARE_BYTES = 1  # each writes
    if seed % 2:
        lineage.LINK_BYTES = vars(shards)["LINK_BYTES"] = 4096
    ranks = Ranks(rank, WORLD, Files(base / "words"), timeout_s=60)
    store = CollectiveStore(base / "run", ranks=ranks)
    for step in range(1, SAVED + 1):
        put(store, state_of(seed, rank, step), step)
    store.ranks.timeout_s = TIMEOUT_S
    seen = 0

    def act(call, perform):
        nonlocal seen
        seen += 1
        if rank == victim and seen == instant:
            os.kill(os.getpid(), signal.SIGKILL)
        return perform()

    try:
        with door(act):
            put(store, state_of(seed, rank, SAVED + 1), SAVED + 1)
        told = 0
    except RanksError:
        told = 5
    finally:
        os._exit(told)


def begun(seed, base):
    """The processes of a run, and which of them is to die."""
    rng = random.Random(seed)
    victim, instant = rng.randrange(WORLD), rng.randrange(1, 60)
    (base / "words").mkdir()
    fork = get_context("fork")
    given = ((base, seed, rank, victim, instant) for rank in range(WORLD))
    started = [fork.Process(target=rank_of, args=each, daemon=True) for each in given]  # who hangs ends with us
    for process in started:
        process.start()
    return started, victim


def ended(base, seed, started, victim):
    """The exit codes of the ranks, who was to die, the steps that are there: each whole for each; and how many files
    are shared.
    """
    for process in started:
        process.join(60)
    store = Store(base / "run", take_over=True)
    found = [checkpoint.step for checkpoint in store.checkpoints()]
    for checkpoint in store.checkpoints():
        assert not list(checkpoint.problems())
        for rank in range(WORLD):
            assert same(state_of(seed, rank, checkpoint.step), read(checkpoint, rank))
    taken = sum(file.links > 0 for file in store.latest().manifest.files.values())
    store.save({"a": 1}, step=7)  # and the run goes on
    assert not [path for path in (base / "run/attempts").rglob("*") if "step-" in path.name]
    return [process.exitcode for process in started], victim, found, taken


def kills(seeds):
    """A save for each seed, in each of which one rank may die."""
    outcomes = []
    for first in seeds[::AT_ONCE]:
        with ExitStack() as stack:
            some = range(first, first + AT_ONCE)
            bases = [stack.enter_context(scratched("killed")) for _ in some]
            running = [begun(seed, base) for seed, base in zip(some, bases, strict=True)]
            outcomes += [ended(base, seed, *each) for base, seed, each in zip(bases, some, running, strict=True)]
    died = [each for each in outcomes if DIED in each[0]]
    old = [*range(1, SAVED + 1)]
    for seed, (codes, victim, found, taken) in zip(seeds, outcomes, strict=True):
        assert found in (old, [*old, SAVED + 1])
        assert bool(taken) == bool(seed % 2)
        assert codes[victim] in (0, DIED)
        assert all(code in (0, 5) for rank, code in enumerate(codes) if rank != victim)
        if found == old:  # nobody takes it for saved
            assert 0 not in codes
    assert len(died) >= len(seeds) // 3 > 0
    return died


def test_a_rank_killed_anywhere_in_a_save_leaves_the_old_or_the_new():
    """For each rank, whole; and the others learn of it in time, or had nothing more to hear from it."""
    died = kills(range(AT_ONCE, 2 * AT_ONCE))
    assert {len(found) for _, _, found, _ in died} == {SAVED, SAVED + 1}
