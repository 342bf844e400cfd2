"""A loop that another program walks: a trainer that fetches ahead, validates, and calls the loop's methods."""

import random
from contextlib import contextmanager
from itertools import islice

import pytest

from holdfast import Store
from holdfast.data import Zip
from holdfast.drill.evidence import final_differences
from holdfast.errors import Damaged, Mismatch, Stopped, UsageError
from holdfast.run.position import Position, RunProgress
from holdfast.stateful.tracked import digest_state
from holdfast.trainers.training import newest_recorded
from loader_cases import CASES, fetched_ahead, start
from subjects import asked_of
from toy import Cut, Toy, events, lines, names, new_run

pytestmark = pytest.mark.filterwarnings("ignore:'set_vital' is deprecated")  # torchdata's own


@pytest.mark.parametrize("name", ["generator", "stream", "zip"])
def test_a_resume_notes_of_a_loader_that_is_read_again_what_the_whole_run_noted(tmp_path, name):
    """Bit for bit, in each checkpoint, though the trainer draws between two fetches: a drill compares that, too."""

    def notes(path, seed, **options):
        start(seed)
        loader, toy = CASES[name].make(0), Toy()
        with new_run(path, toy, **options) as run:
            loop = run.loop(epochs=1)
            loop.begin_epoch()
            for batch in fetched_ahead(loop.batches(CASES[name].each(loader)), 1):
                toy.learn(str(batch))
                loop.step_done()
            loop.end_epoch()
            loop.leave()
        return {each.name: each.load(part="holdfast")["position"] for each in Store(path).checkpoints()}

    whole = notes(tmp_path / "whole", 1)
    for number, cut in enumerate([*Store(tmp_path / "whole").checkpoints()][:-1]):
        found = notes(tmp_path / str(number), 99, branch_from=cut.path)
        assert found
        for each, position in found.items():
            assert digest_state({"position": position}) == digest_state({"position": whole[each]}), each


# What a trainer does at the end of an epoch, and of its own accord ----------------------------------------------------


class Trainer:
    """It learns from batches of a list, validates at the end of each epoch, and may have enough early."""

    def __init__(self, path, epochs=3, enough=None, *, says=False, **options):
        self.toy, self.best = Toy(), 2**61
        self.run = new_run(path, self.toy, vars={"best": 2**61}, **options).__enter__()
        self.loop, self.enough, self.says = self.run.loop(epochs=epochs), enough, says

    def fit(self, stop_in=None):
        """Train; with `stop_in` a signal comes in that validation. Return the numbers of the batches, and the end."""
        loop, seen = self.loop, []
        try:
            while loop.goes_on and loop.epoch != self.enough:
                loop.begin_epoch()
                for batch in loop.batches(range(10, 14)):
                    seen.append((loop.epoch, batch))
                    self.toy.learn(batch)
                    if batch < 13:
                        loop.step_done()
                if loop.epoch == stop_in:
                    self.run._session.stop.reason = "SIGTERM"
                self.run.vars.best = min(self.run.vars.best, self.toy.value)  # the validation
                self.run.log(best=self.run.vars.best)
                loop.end_epoch(batches=1, last=self.says and loop.epoch + 1 == self.enough)
        except BaseException as error:
            loop.leave(error)
            return seen, error
        loop.leave()
        return seen, (self.toy.value, self.run.vars.best)


def test_a_stop_in_a_validation_comes_after_it(tmp_path):
    """The last batch of the epoch is no place to resume from: the validation after it would be missed."""
    random.seed(1)
    whole, found = Trainer(tmp_path / "whole").fit()
    random.seed(1)
    first, stopped = Trainer(tmp_path / "cut").fit(stop_in=1)
    assert isinstance(stopped, Stopped)
    assert names(tmp_path / "cut")[-1] == "step-000000008-end"
    assert "step-000000004" not in names(tmp_path / "cut")
    rest, ended = Trainer(tmp_path / "cut").fit()
    assert [*first, *rest] == whole
    assert ended == found
    assert lines(tmp_path / "cut") == lines(tmp_path / "whole")


def test_a_trainer_that_has_enough_has_finished_until_its_total_is_raised(tmp_path):
    """Whether it says so with the last epoch's end, or leaves the loop after it."""
    for says, last in (True, "step-000000008-end"), (False, "step-000000009"):
        path = tmp_path / str(says)
        first, _ = Trainer(path, epochs=9, enough=2, says=says).fit()
        assert last in names(path)[-1]
        again, _ = Trainer(path, epochs=9).fit()
        more, _ = Trainer(path, epochs=10).fit()
        assert [epoch for epoch, _ in first[::4]] == [0, 1]
        assert not again
        assert [epoch for epoch, _ in more[::4]] == [*range(2, 10)]


def test_after_an_error_nothing_is_saved(tmp_path):
    trainer = Trainer(tmp_path, every=None)
    trainer.loop.begin_epoch()
    next(trainer.loop.batches(range(3)))
    trainer.loop.step_done()
    trainer.loop.leave(ValueError("no"))
    assert not names(tmp_path)
    assert [event["error"] for event in events(tmp_path, "failed")] == ["ValueError: no"]


def test_steps_without_epochs_go_to_their_total(tmp_path):
    """As an algorithm does that collects its own data: killed after 7 of 20, it does the other 13."""
    counts = []
    for last in 7, 99:
        random.seed(last)
        toy, run = Toy(), None
        run = new_run(tmp_path, toy).__enter__()
        loop = run.loop(steps=20)
        loop.settle()
        count = 0
        while loop.goes_on and count < last:
            toy.learn(loop.step)
            loop.step_done()
            count += 1
        counts.append(count)
        loop.leave(Cut() if last == 7 else None)
    assert counts == [7, 13]
    assert [event["event"] for event in events(tmp_path, "end")] == ["end"]


def test_what_is_logged_before_the_first_step_belongs_to_no_checkpoint(tmp_path):
    """It was measured on other weights; as in run.steps()."""
    run = new_run(tmp_path, Toy()).__enter__()
    run.log(accuracy=0.5)
    loop = run.loop(steps=2)
    loop.settle()
    while loop.goes_on:
        run.log(loss=loop.step)
        loop.step_done()
    loop.leave()
    assert [checkpoint.metrics for checkpoint in Store(tmp_path).checkpoints()] == [{"loss": 0.0}, {"loss": 1.0}]


def test_what_does_not_fit_together_is_said_at_once(tmp_path):
    """Two loops, a generator inside of one, another loader in one epoch, or neither total."""
    with new_run(tmp_path, Toy()) as run:
        with pytest.raises(UsageError, match=r"epochs=.*steps="):
            run.loop()
        loop = run.loop(epochs=1)
        for another in (lambda: run.loop(epochs=1), lambda: next(iter(run.epochs(1))), run.safe_point):
            with pytest.raises(UsageError):
                another()
        loop.begin_epoch()
        loop.batches([1, 2])
        with pytest.raises(UsageError, match="in progress"):
            loop.batches([3], "more")
        loop.leave()


# What an adapter may do wrong, or late -------------------------------------------------------------------------------


@contextmanager
def begun(path, loader=range(8), **options):
    """A loop of three epochs inside an epoch, what it does, and the batches; afterwards its attempt has failed."""
    run = new_run(path, Toy(), **options).__enter__()
    try:
        loop = run.loop(epochs=3)
        loop.begin_epoch()
        yield run, loop, loop.batches(loader)
    finally:
        run.__exit__(ValueError, ValueError(), None)


@pytest.mark.parametrize("ahead", [1, 2, 3, 9])
def test_a_script_goes_on_where_a_trainer_had_fetched_ahead(tmp_path, ahead):
    """With run.enumerate: each batch once, with its index, and each a step."""
    with begun(tmp_path) as (run, loop, batches):
        list(islice(batches, 1 + ahead))
        run._session.stop.reason = "SIGTERM"
        with pytest.raises(Stopped):
            loop.step_done()
    with new_run(tmp_path, Toy()) as run:
        found = [pair for _ in run.epochs(1) for pair in run.enumerate(range(8))]
        assert found == [(number, number) for number in range(1, 8)]
        assert run.step == 8


class Noise(list):
    def __getitem__(self, place):
        return place, random.random()


@pytest.mark.parametrize("leaves", [True, False])
def test_a_trainer_that_leaves_with_batches_fetched_ahead_begins_the_next_epoch_afresh(tmp_path, leaves):
    """If its total is raised later, or if it ends that epoch at once. The batches that were out are not fetched again,
    nor are their random numbers.
    """
    with begun(tmp_path, Noise(range(8))) as (_, loop, batches):
        list(islice(batches, 4))
        loop.step_done()
        if leaves:
            loop.leave()
        left = random.getstate()
    random.seed(3)
    run = new_run(tmp_path, Toy()).__enter__()
    loop = run.loop(epochs=5)
    if not leaves:
        loop.begin_epoch()
        loop.settle()
        loop.end_epoch()
    loop.begin_epoch()
    found = next(loop.batches(Noise(range(8))))
    random.setstate(left)
    assert (loop.epoch, found) == (1, (0, random.random()))
    loop.leave(Cut())


def test_an_iterator_that_a_trainer_holds_has_ended_with_its_epoch(tmp_path):
    """It takes nothing from the next epoch, and keeps nothing of the loader: its workers could not end."""
    kept = []

    class Closes:
        def __iter__(self):
            try:
                yield from range(8)
            finally:
                kept.append("closed")

    loader = Zip(Closes(), range(8))
    with begun(tmp_path, Zip(iter(Closes()), range(8))) as (_, loop, held):
        assert [next(held), next(held)] == [(0, 0), (1, 1)]
        loop.step_done()
        loop.end_epoch()
        assert kept == ["closed"]
        loop.begin_epoch()
        fresh = loop.batches(loader)
        assert [*held, next(fresh), next(held, None), next(fresh)] == [(0, 0), None, (1, 1)]


def test_a_number_of_batches_that_are_not_out_is_refused_and_nothing_is_counted(tmp_path):
    with begun(tmp_path) as (_, loop, batches):
        list(islice(batches, 2))
        for wrong in 3, 0, -1, True, 1.5, "1":
            with pytest.raises(UsageError, match="batches"):
                loop.step_done(wrong)
            if wrong != 0:
                with pytest.raises(UsageError, match="batches"):
                    loop.end_epoch(wrong)
        assert (loop.consumed(), loop.step, loop.epoch) == (0, 0, 0)
        loop.step_done(2)
        assert (loop.consumed(), loop.step) == (2, 1)


def test_an_epoch_begins_once_and_ends_once(tmp_path):
    """Otherwise an epoch would be skipped."""
    run = new_run(tmp_path, Toy()).__enter__()
    loop = run.loop(epochs=3)
    with pytest.raises(UsageError, match="begin_epoch"):
        loop.batches([1])
    with pytest.raises(UsageError, match="begin_epoch"):
        loop.end_epoch()
    loop.begin_epoch()
    with pytest.raises(UsageError, match="end_epoch"):
        loop.begin_epoch()
    loop.end_epoch()
    assert (loop.epoch, loop.step) == (1, 1)
    loop.leave(Cut())


def test_a_trainer_that_swallows_the_stop_or_the_end_changes_nothing_more(tmp_path):
    """Each call raises again; leaving a second time does nothing."""
    with begun(tmp_path) as (run, loop, batches):
        list(islice(batches, 2))
        run._session.stop.reason = "SIGTERM"
        with pytest.raises(Stopped) as stopped:
            loop.step_done()
        saved = names(tmp_path)
        for call in loop.step_done, loop.end_epoch, loop.begin_epoch, loop.settle, lambda: loop.batches([1]):
            with pytest.raises(Stopped):
                call()
        with pytest.raises(Stopped):
            loop.leave()
        loop.leave(stopped.value)
        loop.leave()
        for call in loop.step_done, loop.end_epoch, loop.begin_epoch, loop.settle, lambda: loop.batches([1]):
            with pytest.raises((Stopped, UsageError)):
                call()
        assert (names(tmp_path), run.step, loop.consumed()) == (saved, 1, 1)


def test_a_trainer_that_took_its_last_batch_before_the_checkpoint_settles_before_its_validation(tmp_path):
    """It limits the batches of an epoch, and has none to take. Otherwise it is told to, and nothing is saved."""

    def fit(path, seed, *, settles=True, stop=None):
        random.seed(seed)
        toy = Toy()
        run = new_run(path, toy).__enter__()
        loop = run.loop(epochs=3)
        try:
            while loop.goes_on:
                loop.begin_epoch()
                for batch in islice(fetched_ahead(loop.batches(range(9)), 1), 2 - loop.consumed()):
                    toy.learn(batch)
                    if loop.step + 1 == stop:
                        run._session.stop.reason = "SIGTERM"
                    loop.step_done()
                if settles:
                    loop.settle()
                toy.learn(random.random())  # the validation
                loop.end_epoch()
        except BaseException as error:
            loop.leave(error)
            raise
        loop.leave()
        return toy.value

    whole = fit(tmp_path / "whole", 1)
    for place, settles in (tmp_path / "told", False), (tmp_path / "done", True):
        with pytest.raises(Stopped):
            fit(place, 1, settles=settles, stop=4)
    saved = names(tmp_path / "told")
    with pytest.raises(Mismatch, match=r"settle\(\)"):
        fit(tmp_path / "told", 2, settles=False)
    assert saved == names(tmp_path / "told")
    assert fit(tmp_path / "done", 2) == whole


def test_what_a_file_says_was_fetched_ahead_is_checked_before_anything_is_overwritten(tmp_path):
    stored = Position().state_dict()
    fetched = {"epoch": 0, "batches": 1, "ahead": [{"python": 1}]}
    assert Position.from_stored({**stored, "feeds": {"train": fetched}}).feeds == {"train": fetched}
    for feeds in 5, [], {"train": 5}, *({"train": {"ahead": each}} for each in (5, None, {}, "no", [5], [None], [[]])):
        with asked_of(str(feeds)), pytest.raises(Damaged):
            Position.from_stored({**stored, "feeds": feeds})


@pytest.mark.parametrize("ahead", [5, [{"python": 5}], [{}, {"numpy": {}}], [{"torch": {"cpu": 1, "cuda": []}}]])
def test_a_checkpoint_with_unsound_random_numbers_of_what_was_fetched_ahead_is_set_aside(tmp_path, monkeypatch, ahead):
    """The one before is restored, whole."""
    written = RunProgress.state_dict
    with begun(tmp_path) as (_, loop, batches):
        list(islice(batches, 4))
        loop.step_done()
        state = random.getstate()
        with monkeypatch.context() as altered:
            of = lambda self: {**written(self), "feeds": {"train": {"epoch": 0, "batches": 3, "ahead": ahead}}}
            altered.setattr(RunProgress, "state_dict", of)
            loop.step_done()
    random.seed(5)
    with begun(tmp_path) as (run, loop, batches):
        assert (run.step, loop.consumed(), next(batches)) == (1, 1, 1)
        assert random.getstate() == state


def test_an_adapters_events_are_its_own_and_an_ended_run_is_reopened(tmp_path):
    """None of them is one of the journal's. A run that was ended before its total has no steps until it is reopened."""
    Trainer(tmp_path, epochs=9, enough=2, says=True).fit()
    with new_run(tmp_path, Toy()) as run:
        loop = run.loop(epochs=9)
        loop.record("saved", number=1)
        loop.record("saved", number=2)
        assert (newest_recorded(tmp_path, "saved") or {})["number"] == 2
        assert not [event for event in events(tmp_path, "saved") if "number" in event]
        for name in "event", "time":
            with pytest.raises(UsageError, match=name):
                loop.record("mine", **{name: "saved"})
        assert not loop.goes_on
        loop.reopen()
        assert loop.goes_on
        loop.leave(Cut())
        with pytest.raises(UsageError, match="ended"):
            loop.record("late")


def test_durations_are_kept_and_compared_by_no_drill(tmp_path):
    """What a clock says comes back with the run, and is in no digest of a drill."""
    found = []
    for goal in (2, 4):
        toy = Toy()
        with new_run(tmp_path, toy) as run:
            loop = run.loop(steps=goal)
            found.append(dict(loop.durations))
            loop.settle()
            while loop.goes_on:
                toy.learn(loop.step)
                loop.durations["trained"] = [loop.step + 0.5]
                loop.step_done()
            loop.leave()
    assert found == [{}, {"trained": [1.5]}]
    checkpoint = [*Store(tmp_path).checkpoints()][-1]
    assert checkpoint.load(part="holdfast")["durations"] == {"trained": [3.5]}
    assert final_differences(tmp_path, tmp_path) == []
