"""The store against a model of it, under threads of one process, and after a process that died."""

import itertools
import os
import subprocess
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from faults import FULL, door, failing, scratched
from holdfast import retention
from holdfast.errors import HoldfastError, NotFound, UsageError
from holdfast.rules import Best, Last
from holdfast.store.store import ManifestFields, Store
from stores import put, state_of, steps, whole


@pytest.fixture
def root():
    with scratched("store") as base:
        yield base / "run"


def test_a_dead_process_makes_way(root):
    """A writer that was killed is provably gone."""
    script = f"from holdfast.store.store import Store; Store({str(root)!r}).save({{}}, step=1); import os; os._exit(9)"
    assert subprocess.run([sys.executable, "-c", script], check=False).returncode == 9
    put(Store(root), 2)
    assert steps(Store(root)) == [1, 2]


def all_of(works: list[Callable[[], Any]]) -> list[BaseException]:
    """What went wrong when each was done by a thread of its own, all at once."""
    errors: list[BaseException] = []
    start = threading.Barrier(len(works))

    def work(each: Callable[[], Any]) -> None:
        start.wait()
        try:
            each()
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=work, args=(each,)) for each in works]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return errors


def test_threads_may_share_a_store():
    """Their first saves claim the run once, the others come in turn, and all of them succeed."""
    for keep in (None, Last(2), Last(1) | Best("acc", max)) * 10:
        with scratched("threads") as base:
            store = Store(base / "run", keep=keep)

            def saves(at: int, store: Store = store) -> None:
                put(store, at)
                put(store, at + 4)

            assert [] == all_of([partial(saves, step) for step in range(4)])
            assert [path.name for path in (base / "run" / "attempts").iterdir()] == ["1"]
            assert keep is not None or steps(store) == list(range(8))
            assert all(whole(each.load(), each.step) for each in store.checkpoints())
            assert os.readlink(base / "run" / "checkpoints" / "latest") == store.latest().path.name
            assert [path.name for path in store.attempt.room.iterdir()] == [store.attempt.journal.name]


def test_of_threads_that_save_one_step_one_succeeds(root):
    """The others are told that it is committed, and what is committed is whole."""
    store = Store(root)
    errors = all_of([lambda: put(store, 1)] * 4)
    assert [UsageError] * 3 == list(map(type, errors))
    assert whole(store.load(), 1)


# -- readers while the owner writes ---------------------------------------------------------------------------------


def test_readers_never_see_less_than_a_whole_newest_checkpoint(root):
    """While another thread saves and prunes as fast as it can: no error, never half, never back in time."""
    store = Store(root, keep=Last(1))
    put(store, 1)
    stop = threading.Event()
    looks = itertools.count()

    def read() -> None:
        reader, last = Store(root), 0
        while not stop.is_set():
            assert store.parent
            at_least = int(store.parent.split("-")[1])
            state = reader.load()
            assert whole(state, state["step"])
            assert state["step"] >= max(last, at_least - 1)
            last = state["step"]
            with suppress(NotFound):  # it was pruned under the reader's eyes
                assert not list(reader.latest().problems())
            next(looks)

    def write() -> None:
        try:
            for step in range(2, 200):
                put(store, step)
        finally:
            stop.set()

    assert [] == all_of([read] * 3 + [write])
    assert next(looks) > 50


# -- against a model ------------------------------------------------------------------------------------------------


class StoreModel(RuleBasedStateMachine):
    """Save, prune, pin, quarantine, crash and open again, in any order: the store is what a dict would be."""

    @initialize()
    def begin(self) -> None:
        self.scratch = scratched("model")
        self.root = self.scratch.__enter__() / "run"
        self.store = Store(self.root, take_over=True)
        self.facts: dict[str, retention.CheckpointFacts] = {}
        self.pins: set[str] = set()
        self.aside = 0
        self.unsure = ""  # the name of a save that failed: what is there of it may not survive a power loss
        self.next = 1

    def teardown(self) -> None:
        self.scratch.__exit__(None, None, None)

    def _saved(self, name: str, step: int, phase: str) -> None:
        size = self.store[name].size_bytes
        self.facts[name] = retention.CheckpointFacts(
            name, step, phase, None, float(step), {"acc": self.acc}, size, False
        )

    @rule(gap=st.integers(0, 3), phase=st.sampled_from(["step", "end"]), acc=st.integers(0, 5))
    def save(self, gap: int, phase: str, acc: int) -> None:
        step = self.next + gap
        name = f"step-{step:09d}" + ("-end" if phase == "end" else "")
        self.acc = float(acc)
        facts = ManifestFields(phase=phase, metrics={"acc": acc}, document={"by": "a model"})
        if name in self.facts and name != self.unsure:
            with pytest.raises(UsageError):
                self.store.save(state_of(step), step=step, facts=facts)
            return
        self.aside += name in self.facts  # it makes way for one that is sure
        self.store.save(state_of(step), step=step, facts=facts)
        self.unsure = "" if name == self.unsure else self.unsure
        self._saved(name, step, phase)
        self.next = max(self.next, step + (phase == "end"))

    def _newest(self) -> str:
        return max(self.facts, key=lambda name: (self.facts[name].step, self.facts[name].phase == "end"))

    @precondition(lambda self: self.facts)
    @rule(n=st.integers(1, 3), best=st.booleans())
    def prune(self, n: int, best: bool) -> None:
        rules = Last(n) | Best("acc", max) if best else Last(n)
        pinned = [facts._replace(pinned=name in self.pins) for name, facts in self.facts.items()]
        kept = retention.keep(pinned, rules)
        gone = [checkpoint.path.name for checkpoint in self.store.prune(rules)]
        assert set(gone) == self.facts.keys() - kept
        self.facts = {name: facts for name, facts in self.facts.items() if name in kept}

    @precondition(lambda self: self.facts)
    @rule(pick=st.integers(0, 100), on=st.booleans())
    def pin(self, pick: int, on: bool) -> None:
        name = sorted(self.facts)[pick % len(self.facts)]
        (self.store.pin if on else self.store.unpin)(name)
        (self.pins.add if on else self.pins.discard)(name)

    @precondition(lambda self: self.facts)
    @rule(pick=st.integers(0, 100))
    def quarantine(self, pick: int) -> None:
        name = sorted(self.facts)[pick % len(self.facts)]
        self.store.quarantine(self.store[name], "model")
        del self.facts[name]
        self.aside += 1

    @rule(nth=st.integers(0, 60), code=st.sampled_from([5, FULL]))
    def save_on_a_bad_disk(self, nth: int, code: int) -> None:
        name, self.acc = f"step-{self.next:09d}", 0.0
        may_go = name not in self.facts or name == self.unsure
        try:
            with door(failing(nth, code)):
                self.store.save(
                    state_of(self.next), step=self.next, facts=ManifestFields(metrics={"acc": 0}, document={"by": "x"})
                )
        except HoldfastError:
            self.unsure = name if may_go else self.unsure
        else:
            self.unsure = ""
        if may_go:
            went = self._set_aside() - self.aside
            assert went in {0, int(name in self.facts)}
            self.aside += went
            if went:
                del self.facts[name]
            if name in {checkpoint.path.name for checkpoint in self.store.checkpoints()} - self.facts.keys():
                self._saved(name, self.next, "step")

    @rule()
    def open_again(self) -> None:
        if self.store.attempt is not None:
            (self.store.attempt.room / "step-000000777").mkdir(exist_ok=True)  # it died in the middle of a save
        self.store, self.unsure = Store(self.root, take_over=True), ""

    def _set_aside(self) -> int:
        """How many checkpoints lie in quarantine, or on the way there: an error may come between the two renames."""
        return len([*self.root.glob("quarantine/*"), *self.root.glob("attempts/*/quarantine-*")])

    @invariant()
    def is_what_the_model_says(self) -> None:
        names = [checkpoint.path.name for checkpoint in self.store.checkpoints()]
        assert names == sorted(self.facts, key=lambda name: (self.facts[name].step, self.facts[name].phase == "end"))
        assert self._set_aside() == self.aside
        if names:
            assert whole(self.store.load(), self.facts[names[-1]].step)
        else:
            with pytest.raises(NotFound):
                self.store.load()


StoreModel.TestCase.settings = settings(max_examples=40, stateful_step_count=25, deadline=None)
test_the_store_is_what_a_model_says = StoreModel.TestCase
