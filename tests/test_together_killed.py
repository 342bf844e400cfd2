"""Ranks that are processes, one of which is killed somewhere in a save: the old checkpoint or the new one, whole for each."""

import os
import random
import signal
import time
from contextlib import ExitStack
from multiprocessing import get_context

import pytest

from faults import door, scratched
from holdfast.errors import RanksError
from holdfast.ranks import Ranks
from holdfast.store import division
from holdfast.store.store import Store
from together import put, read, same, state

WORLD = 3
TIMEOUT_S = 1.0
ENDS, AT_ONCE = 60, 4  # seeded instants
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

    def twin(self):
        return self


def rank_of(base, rank, victim, instant):
    """One rank's life: a save that succeeds, and one in which the victim dies at a change of a file, or of a word."""
    told = 3
    division.SHARE_BYTES = 1  # each writes
    ranks = Ranks(rank, WORLD, Files(base / "words"), timeout_s=TIMEOUT_S)
    store = Store(base / "run", ranks=ranks)
    put(store, state(rank, 300, step=1), 1)
    seen = 0

    def act(call, perform):
        nonlocal seen
        seen += 1
        if rank == victim and seen == instant:
            os.kill(os.getpid(), signal.SIGKILL)
        return perform()

    try:
        with door(act):
            put(store, state(rank, 300, step=2), 2)
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
    started = [fork.Process(target=rank_of, args=(base, rank, victim, instant)) for rank in range(WORLD)]
    for process in started:
        process.start()
    return started, victim


def ended(base, started, victim):
    """The exit codes of the ranks, who was to die, and the steps that are there: each whole for each."""
    for process in started:
        process.join(60)
    store = Store(base / "run", take_over=True)
    found = [checkpoint.step for checkpoint in store.checkpoints()]
    for checkpoint in store.checkpoints():
        assert not list(checkpoint.problems())
        for rank in range(WORLD):
            assert same(state(rank, 300, step=checkpoint.step), read(checkpoint, rank))
    store.save({"a": 1}, step=7)  # and the run goes on
    assert not [path for path in (base / "run/attempts").rglob("*") if "step-" in path.name]
    return [process.exitcode for process in started], victim, found


@pytest.mark.slow
@pytest.mark.ranks
def test_a_rank_killed_anywhere_in_a_save_leaves_the_old_or_the_new():
    """For each rank, whole; and the others learn of it in time, or had nothing more to hear from it."""
    outcomes = []
    for first in range(0, ENDS, AT_ONCE):
        with ExitStack() as stack:
            bases = [stack.enter_context(scratched("killed")) for _ in range(AT_ONCE)]
            running = [begun(first + number, base) for number, base in enumerate(bases)]
            outcomes += [ended(base, *each) for base, each in zip(bases, running, strict=True)]
    died = [(codes, victim, found) for codes, victim, found in outcomes if DIED in codes]
    for codes, victim, found in outcomes:
        assert found in ([1], [1, 2])
        assert codes[victim] in (0, DIED)
        assert all(code in (0, 5) for rank, code in enumerate(codes) if rank != victim)
        if found == [1]:  # nobody takes it for saved
            assert 0 not in codes
    assert len(died) >= ENDS // 3
    assert {tuple(found) for _, _, found in died} == {(1,), (1, 2)}
