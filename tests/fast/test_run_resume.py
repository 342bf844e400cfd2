"""Coming back: wherever a run was cut, its end is the one of an uninterrupted run; and what happens when it cannot be."""

import contextlib
import itertools
import json
import random
import re
import shutil
from datetime import UTC, datetime, timedelta

import numpy as np
import pytest

from holdfast import Every, Last, Run, Stopped, Store, interval, journal
from holdfast.cli.ls import quarantine
from holdfast.errors import Damaged, Mismatch, NotFound, StoreError, UsageError
from holdfast.run import stop
from toy import BATCHES, EPOCHS, Cut, Passes, Toy, events, new_run


@pytest.fixture(autouse=True)
def _no_syncs(monkeypatch):
    """Thousands of saves; what a power loss does is asked elsewhere."""
    monkeypatch.setattr("os.fsync", lambda descriptor: None)


def names(path):
    return [checkpoint.name for checkpoint in Store(path).checkpoints()]


def damage(path, name):
    """Turn one bit in the middle of a leaf's bytes, or of the manifest where there is no shard."""
    shards = sorted((path / "checkpoints" / name).glob("*.safetensors"))
    place = shards[0] if shards else path / "checkpoints" / name / "manifest.json"
    data = bytearray(place.read_bytes())
    data[-20] ^= 1
    place.write_bytes(data)


# Loops, cut anywhere -------------------------------------------------------------------------------------------


class Keeper:
    """A loader that keeps its own state and draws its own order, another one in each epoch."""

    def __init__(self):
        self.epoch, self.done, self.ended = -1, 0, True
        self.loaded = False

    def __iter__(self):
        if self.ended or not self.loaded:
            self.epoch, self.done, self.ended = self.epoch + 1, 0, False
        self.loaded = False
        order = random.Random(self.epoch).sample(range(BATCHES), BATCHES)
        while self.done < BATCHES:
            self.done += 1
            yield order[self.done - 1]
        self.ended = True

    def __len__(self):
        return BATCHES

    def state_dict(self):
        return {"epoch": self.epoch, "done": self.done, "ended": self.ended}

    def load_state_dict(self, state):
        self.epoch, self.done, self.ended = state["epoch"], state["done"], state["ended"]
        self.loaded = True


class Drawn:
    """An iterable that draws its batches from the global generator as it begins."""

    def __iter__(self):
        return iter([random.getrandbits(30) for _ in range(BATCHES)])


def by_batches(run, toy, passes, loader, **options):
    for epoch in run.epochs(EPOCHS):
        random.random()
        for batch in run.batches(loader(epoch), **options):
            toy.learn(batch)
            passes.one()
            run.vars.seen += 1
            run.log(value=toy.value % 1000)
        toy.learn("evaluation".__len__())
        passes.one()
        run.log(at_end=toy.value % 1000, seen=run.vars.seen)


def by_steps(run, toy, passes):
    for step in run.steps(EPOCHS * BATCHES):
        toy.learn(step)
        passes.one()
        run.vars.seen += 1
        run.log(value=toy.value % 1000)


def by_steps_in_epochs(run, toy, passes):
    for epoch in run.epochs(EPOCHS):
        for step in run.steps(BATCHES):
            toy.learn(10 * epoch + step)
            passes.one()


def by_two_loaders(run, toy, passes):
    for _ in run.epochs(EPOCHS):
        for name in ("a", "b"):
            for batch in run.batches(range(3), name):
                toy.learn(batch)
                passes.one()


def by_safe_points(run, toy, passes):
    while run.step < EPOCHS * BATCHES:
        toy.learn(run.step)
        passes.one()
        run.log(value=toy.value % 1000)
        run.safe_point()


def by_one_pass(run, toy, passes):
    for batch in run.batches(range(EPOCHS * BATCHES)):
        toy.learn(batch)
        passes.one()


def by_breaks(run, toy, passes):
    loader = Keeper()
    for epoch in run.epochs(9):
        for batch in run.batches(loader, accumulate=2):
            toy.learn(batch)
            passes.one()
            if batch == epoch % 2:
                break
        if epoch == 3:
            break
        passes.one()


def by_two_phases(run, toy, passes):
    for step in run.steps(4):
        toy.learn(step)
        passes.one()
        if step == 2:
            break
    for epoch in run.epochs(2):
        for batch in run.batches([epoch, epoch + 1]):
            toy.learn(batch)
            passes.one()


def by_islice(run, toy, passes):
    for _ in run.epochs(3):
        batches = run.batches([*range(9)])
        for batch in itertools.islice(batches, 4 - batches.done):
            toy.learn(batch)
            run.log(batch=batch)
            passes.one()
        run.log(evaluated=toy.value % 1000)


def by_held_iterators(run, toy, passes):
    held = []
    for epoch in run.epochs(3):
        held.append(iter(run.batches([*range(9)])))
        for batch in held[-1]:
            toy.learn(batch)
            run.log(batch=batch)
            passes.one()
            if batch == epoch + 1:
                break
        del held[:epoch]


def by_enumerate_from_one(run, toy, passes):
    for epoch in run.epochs(range(1, 4)):
        for index, batch in run.enumerate([3, 1, 4]):
            toy.learn((epoch, index, batch))
            run.log(loss=toy.value / 7, n=batch)
            passes.one()
        toy.learn(run.mean("loss", weight="n"))


def by_endless_steps(run, toy, passes):
    for epoch in run.epochs(2):
        for step in run.steps():
            toy.learn(step)
            passes.one()
            if step == 2 + epoch:
                break


def once(loader):
    made = loader()
    return lambda epoch: made


LOOPS = {
    "a list": lambda *a: by_batches(*a, once(lambda: [3, 1, 4, 1])),
    "a list, made anew": lambda *a: by_batches(*a, lambda epoch: [epoch, 1, 2, 3]),
    "one with a state": lambda *a: by_batches(*a, once(Keeper)),
    "one with a state, made anew": lambda *a: by_batches(*a, lambda epoch: Keeper()),
    "an iterable": lambda *a: by_batches(*a, once(Drawn)),
    "zip, made anew": lambda *a: by_batches(*a, lambda epoch: zip(range(epoch, epoch + 3), range(3), strict=True)),
    "groups": lambda *a: by_batches(*a, once(lambda: range(7)), accumulate=3),
    "growing": lambda *a: by_batches(*a, lambda epoch: range(epoch + 1)),
    "steps": by_steps,
    "steps in epochs": by_steps_in_epochs,
    "two loaders": by_two_loaders,
    "safe points": by_safe_points,
    "one pass": by_one_pass,
    "breaks": by_breaks,
    "two phases": by_two_phases,
    "islice": by_islice,
    "held iterators": by_held_iterators,
    "enumerate from one": by_enumerate_from_one,
    "endless steps": by_endless_steps,
}


def train(path, loops, cut=None, **options):
    """One attempt. Its fresh generators are those of nobody: a fresh run seeds them, a resumed one restores them."""
    random.seed(1 if not names(path) else 99)
    toy, passes = Toy(), Passes(cut)
    with new_run(path, toy, vars={"seen": 0}, **options) as run:
        loops(run, toy, passes)
    return (toy.value, random.random(), run.step, run.epoch, run.vars.seen), passes.count


WITHOUT_BLOCK = sorted(set(LOOPS) - {"safe points", "two phases"})  # those want one


@pytest.mark.parametrize("name", WITHOUT_BLOCK)
@pytest.mark.filterwarnings("error")
def test_without_a_block_the_end_is_the_same(tmp_path, name):
    """start() in place of `with`, cut in some of its passes: value, generator, position and metrics."""

    def train_started(path, cut=None):
        random.seed(1 if not names(path) else 99)
        toy, passes = Toy(), Passes(cut)
        run = new_run(path, toy, vars={"seen": 0}, every=Every(steps=3)).start()
        LOOPS[name](run, toy, passes)
        return toy.value, random.random(), run.step, run.epoch, run.vars.seen

    expected, count = train(tmp_path / "whole", LOOPS[name], every=Every(steps=3))
    for first in range(1, count + 1, 4):
        path = tmp_path / str(first)
        for cut in (first, 2):
            with contextlib.suppress(Cut):
                train_started(path, cut)
        assert (first, expected) == (first, train_started(path))
        assert lines(tmp_path / "whole") == lines(path)
        assert names(tmp_path / "whole")[-1] == names(path)[-1]


def lines(path):
    return [(e["step"], e["phase"], e["epoch"], e["values"]) for e in Run(path, {}).metrics()]


@pytest.mark.parametrize(
    "every", [pytest.param(Every(steps=1), marks=pytest.mark.slow), Every(steps=3), Every(epochs=1)], ids=repr
)
@pytest.mark.parametrize("name", LOOPS)
@pytest.mark.filterwarnings("error")
def test_wherever_a_run_is_cut_its_end_is_the_uninterrupted_one(tmp_path, name, every):
    """Value, generator, position, variables and metrics log; cut in each pass in turn, and twice in a row."""
    expected, count = train(tmp_path / "whole", LOOPS[name], every=every)
    for first in range(1, count + 1, 1 if every.steps == 1 else 2):
        path = tmp_path / str(first)
        for cut in (first, 2):
            with contextlib.suppress(Cut):  # the second attempt may have less than two passes to do
                train(path, LOOPS[name], cut, every=every)
        assert (first, expected) == (first, train(path, LOOPS[name], every=every)[0])
        assert lines(tmp_path / "whole") == lines(path)


@pytest.mark.parametrize("name", LOOPS)
def test_a_finished_run_yields_nothing_and_has_its_final_state(tmp_path, name):
    """Code after the loop sees the trained model, as often as it is run; nothing is saved again."""
    expected, _ = train(tmp_path, LOOPS[name])
    before = names(tmp_path)
    for _ in range(2):
        assert (expected, 0) == train(tmp_path, LOOPS[name])
    assert before == names(tmp_path)


def test_resuming_at_the_end_of_an_epochs_batches_evaluates(tmp_path):
    """The checkpoint of the last step: no batch is left, and the body's rest runs with the random numbers it had."""
    drawn = {}

    def run_to(path, cut):
        random.seed(1 if not names(path) else 99)
        with new_run(path, Toy(), every=Every(steps=1)) as run:
            for epoch in run.epochs(2):
                for _ in run.batches([1, 2]):
                    random.random()
                if epoch == cut:
                    raise Cut
                drawn[path.name, epoch] = random.random()

    run_to(tmp_path / "whole", None)
    with pytest.raises(Cut):
        run_to(tmp_path / "cut", 1)
    run_to(tmp_path / "cut", None)
    assert drawn["whole", 1] == drawn["cut", 1]


def test_what_code_before_the_loop_does_to_a_restored_state_is_undone_and_told(tmp_path, capsys):
    """It has run once already. Objects, variables changed in place, generators and what it logged."""

    def go(cut=None):
        toy, passes = Toy(), Passes(cut)
        with new_run(tmp_path, toy, vars={"seen": []}) as run:
            toy.value += 5
            run.vars.seen.append("before")
            run.log(before=1)
            for _ in run.epochs(2):
                toy.value += 100
                random.random()
                run.log(head=1)
                for batch in run.batches([1, 2]):
                    passes.one()
                    toy.value += batch
                    run.log(value=toy.value)
        return toy.value, run.vars.seen

    with pytest.raises(Cut):
        go(2)
    capsys.readouterr()
    assert (1 + 5 + 2 * 103, ["before"]) == go()
    told = capsys.readouterr().err
    assert "changed restored values; they are put back as saved: run.vars.seen, toy" in told
    assert [["head", "before", "value"], ["value"], ["head", "value"], ["value"]] == [
        sorted(line["values"], key=["head", "before", "value"].index) for line in Run(tmp_path, {}).metrics()
    ]


def test_a_loop_that_a_resume_needs_and_does_not_find_is_missed(tmp_path):
    """The checkpoint lies inside a loader's epoch that the script no longer walks."""
    with pytest.raises(Cut), new_run(tmp_path, Toy()) as run:
        for _ in run.epochs(2):
            for batch in run.batches([1, 2]):
                if batch == 2:
                    raise Cut
    with pytest.raises(Mismatch, match=r"inside the loop 'train', and run\.batches"), new_run(tmp_path, Toy()) as run:
        for _ in run.epochs(2):
            pass


# break, return and exceptions ----------------------------------------------------------------------------------


def test_leaving_the_batches_ends_them_for_this_epoch_only(tmp_path):
    """The step that was left counts, and neither it nor the rest comes back."""
    seen = []
    with new_run(tmp_path, Toy()) as run:
        for epoch in run.epochs(2):
            for batch in run.batches([0, 1, 2]):
                if batch == 1:
                    break
                seen.append((epoch, batch))
    assert ([(0, 0), (1, 0)], 4) == (seen, run.step)


def leave_by_break(run, toy):
    for epoch in run.epochs(10):
        for batch in run.batches([1, 2]):
            toy.learn(batch)
        if epoch == 2:
            break


def leave_by_return(run, toy):
    for epoch in run.epochs(10):
        for batch in run.batches([1, 2]):
            toy.learn(batch)
            if epoch == 3:
                return


@pytest.mark.parametrize(("leave", "after"), [(leave_by_break, 3), (leave_by_return, 4)])
def test_leaving_the_epochs_finishes_the_run(tmp_path, leave, after):
    """It is saved as it is, a restart yields nothing; a larger total goes on with the next epoch."""
    toy = Toy()
    with new_run(tmp_path, toy, every=None) as run:
        leave(run, toy)
        run.log(test=1)
    for _ in range(2):
        again = Toy()
        with new_run(tmp_path, again) as run:
            assert [] == list(run.epochs(10))
            run.log(test=1)
        assert toy.value == again.value
    assert ["exit"] == [line["phase"] for line in run.metrics()]
    with new_run(tmp_path, Toy()) as run:
        assert list(range(after, 12)) == list(run.epochs(12))
    assert 10 == events(tmp_path, "extended")[0]["was"]


def test_leaving_the_steps_finishes_the_run(tmp_path):
    """The same with run.steps()."""
    with new_run(tmp_path, Toy()) as run:
        for step in run.steps(10):
            if step == 4:
                break
    with new_run(tmp_path, Toy()) as run:
        assert [] == list(run.steps(10))
        assert 5 == run.step
    with new_run(tmp_path, Toy()) as run:
        assert list(range(5, 12)) == list(run.steps(12))


def test_a_finished_run_can_be_extended(tmp_path, capsys):
    """Raising the total goes on where it ended, and is told and journalled."""
    with new_run(tmp_path, Toy()) as run:
        list(run.epochs(2))
    with new_run(tmp_path, Toy()) as run:
        assert [2, 3] == list(run.epochs(4))
    assert "epochs were to end at 2, now at 4" in capsys.readouterr().err
    assert [(2, 4)] == [(event["was"], event["now"]) for event in events(tmp_path, "extended")]


# Fallback ------------------------------------------------------------------------------------------------------


def test_a_damaged_newest_is_set_aside_and_the_next_one_taken(tmp_path, capsys):
    """One line says where it resumes and why not later; nothing is deleted, and the end is the same."""
    expected, _ = train(tmp_path / "whole", by_steps)
    path = tmp_path / "cut"
    with pytest.raises(Cut):
        train(path, by_steps, 6)
    damage(path, "step-000000005")
    capsys.readouterr()
    assert expected == train(path, by_steps)[0]
    (line,) = [line for line in capsys.readouterr().err.splitlines() if "resumes" in line]
    assert "resumes at step 4, epoch 0 (attempt 2), from step-000000004" in line
    assert "step-000000005 (" in line
    assert "changed since commit" in line
    assert ["step-000000005-damaged"] == [p.name for p in (path / "quarantine").iterdir()]
    assert ["step-000000005"] == [event["name"] for event in events(path, "quarantined")]


def test_no_valid_checkpoint_stops_unless_a_fresh_start_is_allowed(tmp_path, capsys):
    """Never from scratch silently; not at the next start either."""
    with pytest.raises(Cut):
        train(tmp_path, by_steps, 2)
    damage(tmp_path, "step-000000001")
    for _ in range(2):
        with pytest.raises(StoreError, match=r"none is valid.*say allow_fresh=True") as raised:
            train(tmp_path, by_steps)
        assert 1 == raised.value.exit_code
    assert (12, 12) == (train(tmp_path, by_steps, allow_fresh=True)[0][2], train(tmp_path, by_steps)[0][2])
    assert "starts fresh" in capsys.readouterr().err


class Stubborn(Toy):
    """Counts how often a state was put into it."""

    restored = 0

    def load_state_dict(self, state):
        super().load_state_dict(state)
        Stubborn.restored += 1


def test_a_fresh_start_never_begins_with_half_a_restored_state(tmp_path):
    """With allow_fresh each checkpoint is read whole before the first object is touched: perhaps none will do."""

    def objects():
        return {"a": Stubborn(), "numbers": np.random.default_rng(1), "block": Block()}

    class Block:
        def __init__(self):
            self.data = np.zeros(100)

        def state_dict(self):
            return {"data": self.data}

        def load_state_dict(self, state):
            self.data = state["data"]

    with Run(tmp_path, objects(), every=Every(steps=1)) as run:
        list(run.steps(2))
    damage(tmp_path, "step-000000001")
    damage(tmp_path, "step-000000002")
    with Run(tmp_path, objects(), allow_fresh=True) as run:
        assert 0 == run.step
    assert 0 == Stubborn.restored


# The poison rule -----------------------------------------------------------------------------------------------


def failing(path, error, *, at=None):
    """An attempt that fails before its first step, when it resumed from `at` (or from anywhere)."""
    toy = Toy()
    with pytest.raises(type(error)), new_run(path, toy, keep=Last(2)) as run:
        for step in run.steps(100):
            if at in (None, step):
                raise error
            if step == at + 2:
                raise Cut
    return toy


def cut_at_three(path):
    with pytest.raises(Cut), new_run(path, Toy(), keep=Last(2)) as run:
        for step in run.steps(100):
            if step == 3:
                raise Cut


def resumed_at(path):
    with new_run(path, Toy()) as run:
        return run.step


def test_two_equal_failures_before_the_first_step_step_back_once(tmp_path, capsys):
    """The checkpoint is set aside with the failure as the reason."""
    cut_at_three(tmp_path)
    failing(tmp_path, RuntimeError("loss is NaN"), at=3)
    failing(tmp_path, RuntimeError("loss is NaN"), at=3)
    capsys.readouterr()
    assert 2 == resumed_at(tmp_path)
    assert "step-000000003 (failed 2 times before the first step with: RuntimeError: loss is NaN)" in (
        capsys.readouterr().err
    )
    assert ["step-000000003-poison"] == [p.name for p in (tmp_path / "quarantine").iterdir()]
    listed = quarantine(tmp_path, journal.logs(tmp_path))
    assert ["poison: failed 2 times before the first step with: RuntimeError: loss is NaN"] == [
        q["why"] for q in listed
    ]


class Picky(Toy):
    def load_state_dict(self, state):
        raise RuntimeError("cannot be loaded")


def test_a_failure_inside_the_restore_counts_too(tmp_path):
    """It is the checkpoint that was being restored."""
    cut_at_three(tmp_path)
    for _ in range(2):
        with pytest.raises(RuntimeError):
            new_run(tmp_path, Picky()).__enter__()
    assert 2 == resumed_at(tmp_path)


def test_an_error_that_comes_from_every_checkpoint_is_the_programs(tmp_path):
    """One step back, no more: the error came along."""
    cut_at_three(tmp_path)
    with new_run(tmp_path, Toy(), go_back=3) as run:
        assert 3 == run.step
    for _ in range(6):
        failing(tmp_path, RuntimeError("bug"))
    assert 2 == resumed_at(tmp_path)


def test_an_error_that_also_came_from_the_start_is_the_programs(tmp_path):
    """It happened without any checkpoint."""
    failing(tmp_path, RuntimeError("bug"))
    cut_at_three(tmp_path)
    for _ in range(3):
        failing(tmp_path, RuntimeError("bug"))
    assert 3 == resumed_at(tmp_path)


@pytest.mark.parametrize(
    "error",
    [MemoryError("x"), OSError("x"), ImportError("x"), NameError("x"), UsageError("x"), Cut("x"), SystemExit(1)],
)
def test_a_failure_of_machine_or_program_never_counts(tmp_path, error):
    """Memory, disks, imports, signals and what Holdfast itself refuses."""
    cut_at_three(tmp_path)
    for _ in range(3):
        failing(tmp_path, error, at=3)
    assert 3 == resumed_at(tmp_path)


def test_different_failures_a_failure_after_a_step_and_a_single_checkpoint_do_not_count(tmp_path):
    """Two of one kind, both at once, and something to step back to."""
    cut_at_three(tmp_path)
    failing(tmp_path, RuntimeError("one"), at=3)
    failing(tmp_path, RuntimeError("two"), at=3)
    assert 3 == resumed_at(tmp_path)
    for _ in range(2):
        with pytest.raises(RuntimeError), new_run(tmp_path, Toy(), every=None) as run:
            for step in run.steps(100):
                if step == 4:
                    raise RuntimeError("three")
    assert 3 == resumed_at(tmp_path)
    shutil.rmtree(tmp_path / "checkpoints" / "step-000000002")
    for _ in range(3):
        failing(tmp_path, RuntimeError("one"), at=3)
    assert 3 == resumed_at(tmp_path)


# Going back, branching -----------------------------------------------------------------------------------------


def test_going_back_is_done_once_however_long_the_script_says_so(tmp_path, capsys):
    """Newer checkpoints move to quarantine; the end is the same; restarts go on from where they were."""
    expected, _ = train(tmp_path, by_steps)
    with pytest.raises(Cut):
        train(tmp_path, by_steps, 3, go_back=5)
    assert "goes back to step 5; moved to quarantine: step-000000006, " in capsys.readouterr().err
    assert 7 == len(list((tmp_path / "quarantine").iterdir()))
    assert [event["names"][0] for event in events(tmp_path, "went_back")] == ["step-000000006"]
    result, passes = train(tmp_path, by_steps, go_back=5)
    assert (expected, 12 - 7) == (result, passes)
    assert (expected, 0) == train(tmp_path, by_steps, go_back=5)
    assert "went back to step 5 before" in capsys.readouterr().err
    assert list(range(1, 13)) == [line[0] for line in lines(tmp_path)]


def test_going_back_to_what_is_not_there_or_damaged_moves_nothing(tmp_path):
    """The message lists what is there."""
    train(tmp_path, by_steps)
    before = names(tmp_path)
    with pytest.raises(NotFound, match="no checkpoint of step 77; the newest are: step-000000008"):
        train(tmp_path, by_steps, go_back=77)
    damage(tmp_path, "step-000000004")
    with pytest.raises(Damaged):
        train(tmp_path, by_steps, go_back=4)
    assert before == names(tmp_path)


def test_going_back_works_past_a_damaged_newest(tmp_path):
    """And is remembered past it."""
    expected, _ = train(tmp_path, by_steps)
    damage(tmp_path, "step-000000012")
    assert expected == train(tmp_path, by_steps, go_back=5)[0]
    damage(tmp_path, "step-000000012")
    assert 1 == train(tmp_path, by_steps, go_back=5)[1]


def test_a_branch_goes_on_exactly_and_leaves_its_source_alone(tmp_path):
    """Position, variables, generators; also when the source is finished. A restart does not branch again."""
    expected, _ = train(tmp_path / "whole", by_steps)
    with pytest.raises(Cut):
        train(tmp_path / "a", by_steps, 6)
    before = names(tmp_path / "a")
    with pytest.raises(Cut):
        train(tmp_path / "b", by_steps, 3, branch_from=tmp_path / "a")
    assert before == names(tmp_path / "a")
    assert ["step-000000006", "step-000000007"] == names(tmp_path / "b")
    result, passes = train(tmp_path / "b", by_steps, branch_from=tmp_path / "a")
    assert (expected, 5) == (result, passes)
    assert 1 == len(events(tmp_path / "b", "branched"))

    one = tmp_path / "b" / "checkpoints" / "step-000000012"
    assert (expected, 0) == train(tmp_path / "c", by_steps, branch_from=one)
    assert ["step-000000012"] == names(tmp_path / "c")


def test_a_store_that_no_run_made_is_refused_in_words(tmp_path):
    """It says how to read it."""
    store = Store(tmp_path)
    store.save({"toy": {"value": 3}}, step=5)
    store.close()
    with pytest.raises(StoreError, match=r"was not saved by a Run: Store\(\.\.\.\)\.load\(\) reads it"):
        new_run(tmp_path, Toy()).__enter__()


@pytest.mark.parametrize(
    ("objects", "words"),
    [
        ({"toy": Toy(), "ema": Toy()}, "ema: not in the checkpoint"),
        ({}, "toy: in the checkpoint, but not tracked here"),
    ],
)
def test_other_objects_than_the_checkpoints_are_a_mismatch(tmp_path, objects, words):
    """Nothing is overwritten, and the way out is named."""
    train(tmp_path, by_steps)
    with pytest.raises(Mismatch) as raised:
        Run(tmp_path, objects).__enter__()
    assert words in str(raised.value)
    assert "start_from=" in str(raised.value)


# Fingerprints --------------------------------------------------------------------------------------------------


class Sized(list):
    """A loader that tells its batch size."""

    batch_size = 8


def cut_in_the_middle(path):
    with pytest.raises(Cut), new_run(path, Toy()) as run:
        for _ in run.epochs(3):
            for batch in run.batches(Sized([0, 1, 2])):
                if batch == 1 and run.epoch == 1:
                    raise Cut


def test_a_change_that_moves_the_data_position_is_refused_unless_accepted(tmp_path, capsys):
    """The message says what it was, what it is, and how to accept it."""
    cut_in_the_middle(tmp_path)
    with (
        pytest.raises(Mismatch, match=r"length was 3, is 4.*say accept=\{'length'\}"),
        new_run(tmp_path, Toy()) as run,
    ):
        for _ in run.epochs(3):
            list(run.batches(Sized([0, 1, 2, 3])))
    with new_run(tmp_path, Toy(), accept="length") as run:
        assert [1, 2] == [
            epoch for epoch in run.epochs(3) for _ in run.batches(Sized([0, 1, 2, 3])) if run.step % 3 == 0
        ]
    assert "changed since the checkpoint: loader train: length: 3, now 4" in capsys.readouterr().err
    assert any("length: 3, now 4" in event["what"] for event in events(tmp_path, "told"))


def test_between_epochs_another_loader_is_told_and_taken(tmp_path, capsys):
    """No position in its data would move."""
    with new_run(tmp_path, Toy()) as run:
        for _ in run.epochs(2):
            list(run.batches([0, 1, 2]))
    with new_run(tmp_path, Toy()) as run:
        for _ in run.epochs(3):
            assert [5, 6] == list(run.batches([5, 6]))
    assert "loader train: length: 3, now 2" in capsys.readouterr().err


def test_other_accumulation_in_the_middle_of_an_epoch_is_refused(tmp_path):
    """The groups would not be the same."""
    cut_in_the_middle(tmp_path)
    with pytest.raises(Mismatch, match="accumulate was 1, is 2"), new_run(tmp_path, Toy()) as run:
        for _ in run.epochs(3):
            list(run.batches(Sized([0, 1, 2]), accumulate=2))


def changed_environment(monkeypatch):
    from holdfast.run import fingerprint

    real = fingerprint.environment
    monkeypatch.setattr(fingerprint, "environment", lambda: real() | {"python": "4.0", "libraries": {"torch": "9"}})


def test_another_environment_is_told(tmp_path, monkeypatch, capsys):
    """Interpreter and libraries, one line each, also in the journal."""
    train(tmp_path, by_steps)
    changed_environment(monkeypatch)
    train(tmp_path, by_steps)
    told = capsys.readouterr().err
    assert "changed since the checkpoint: python: " in told
    assert re.search(r"changed since the checkpoint: libraries\.torch: .+, now 9\n", told)
    assert 2 <= len(events(tmp_path, "told"))


# The probe -----------------------------------------------------------------------------------------------------


def probed(path, result, steps):
    toy = Toy()

    def probe():
        random.random()
        np.random.random()
        return {"value": toy.value, "result": result}

    with new_run(path, toy, probe=probe) as run:
        for step in run.steps(steps):
            toy.learn(step)
    return toy.value


def test_a_probe_with_the_same_result_is_silent_and_draws_for_itself(tmp_path, capsys):
    """The run is as it would be without it."""
    random.seed(3)
    probed(tmp_path / "a", 1, 2)
    random.seed(4)
    with_probe = probed(tmp_path / "a", 1, 4)
    random.seed(3)
    toy = Toy()
    with new_run(tmp_path / "b", toy) as run:
        for step in run.steps(4):
            toy.learn(step)
    assert toy.value == with_probe
    assert "probe's" not in capsys.readouterr().err


def test_a_probe_with_another_result_is_a_mismatch_or_a_warning(tmp_path, monkeypatch, capsys):
    """A mismatch when nothing else has changed; a warning that names what has."""
    probed(tmp_path, 1, 2)
    with pytest.raises(Mismatch, match="the probe gives another result than before the save"):
        probed(tmp_path, 2, 4)
    changed_environment(monkeypatch)
    probed(tmp_path, 2, 4)
    assert "probe's result differs from the one before the save; changed meanwhile: python" in capsys.readouterr().err


# The deadline --------------------------------------------------------------------------------------------------


def test_a_deadline_is_a_time_a_span_or_unix_seconds():
    """All three mean the same moment."""
    now = datetime.now(UTC)
    seconds = now.timestamp() + 60
    for deadline in (now + timedelta(seconds=60), timedelta(seconds=60), seconds, datetime.fromtimestamp(seconds)):  # noqa: DTZ006  a naive one is local
        assert abs(stop.unix_seconds(deadline) - seconds) < 5


def test_before_its_deadline_a_run_saves_and_stops(tmp_path, monkeypatch):
    """In time for one more step and one more save, by what they cost."""
    clock = itertools.count(2_000_000_000)
    monkeypatch.setattr(stop.time, "time", lambda: float(next(clock)))
    run = new_run(tmp_path, Toy(), every=None, deadline=2_000_000_050.0)
    with pytest.raises(Stopped) as stopped, run:
        list(run.steps(10_000))
    assert 75 == stopped.value.code
    assert 0 < run.step < 50
    assert "deadline" == events(tmp_path, "stop")[0]["reason"]


def test_the_cost_of_saving_is_known_from_the_attempt_before(tmp_path):
    """The first save of an attempt comes too late to measure it."""
    train(tmp_path, by_steps)
    run = new_run(tmp_path, Toy())
    with run:
        assert run._now().saves.save_s == max(event["save_s"] for event in events(tmp_path, "saved")) > 0
        assert interval.must_stop(0, 10, save_s=6, step_s=0.1)
        assert not interval.must_stop(0, 12, save_s=6, step_s=0.1)


# The tracker ---------------------------------------------------------------------------------------------------


def test_a_tracker_gets_its_id_back_and_the_step_to_go_on_from(tmp_path):
    """Also when the attempt that made the id was killed before its first save."""
    calls = []

    def tracker(known, step):
        calls.append((known, step))
        return known or f"id-{len(calls)}"

    for cut in (1, 4):
        with pytest.raises(Cut):
            train(tmp_path, by_steps, cut, tracker=tracker)
    train(tmp_path, by_steps, tracker=tracker)
    assert [(None, 0), ("id-1", 0), ("id-1", 3)] == calls
    assert ["id-1"] == [event["id"] for event in events(tmp_path, "tracker")]


def test_the_drills_wishes_are_json(tmp_path, monkeypatch):
    """An interval of its own, for a run that has none."""
    monkeypatch.setenv("HOLDFAST_DRILL", json.dumps({"save_every_steps": 5}))
    train(tmp_path, by_steps, every=None)
    assert ["step-000000005", "step-000000010", "step-000000012"] == names(tmp_path)
