"""Loops as people write them: iterators that are held, loops that are left, means, ranges, and endless steps."""

from itertools import islice

import pytest

from holdfast import Run, Store
from holdfast.errors import UsageError
from toy import Toy, events, new_run


@pytest.fixture(autouse=True)
def _no_syncs(monkeypatch):
    """What a power loss does is asked elsewhere."""
    monkeypatch.setattr("os.fsync", lambda descriptor: None)


class Bar:
    """Holds what it wraps, as tqdm does: its own iterator is another one each time."""

    def __init__(self, iterable, initial=0):
        self.iterable, self.n = iterable, initial
        self.total = len(iterable)

    def __iter__(self):
        for item in self.iterable:
            yield item
            self.n += 1


def lines(path):
    return [(line["step"], line["phase"], line["values"]) for line in Run(path, {}).metrics()]


# Iterators that somebody still holds ---------------------------------------------------------------------------------


def test_without_epochs_a_second_pass_is_refused_with_what_to_write(tmp_path):
    """It would be empty: 10, 0, 0 batches, and a restart would do nothing."""
    counts = []
    with pytest.raises(UsageError, match=r"for epoch in run\.epochs\(3\)"), new_run(tmp_path, Toy()) as run:
        for _ in range(3):
            passes = [*run.batches(range(10))]
            counts.append(len(passes))
    assert [10] == counts
    with pytest.raises(UsageError, match=r"for epoch in run\.epochs\(3\)"), new_run(tmp_path, Toy()) as run:
        for _ in range(3):
            passes = [*run.batches(range(10))]
            counts.append(len(passes))
    assert [10, 0] == counts


def test_a_progress_bar_that_is_held_leaves_each_epoch_its_batches(tmp_path):
    """The bar of the last epoch lives until the next one takes its name."""
    counts, bars = [], []
    with new_run(tmp_path, Toy()) as run:
        for _ in run.epochs(4):
            bar = Bar(run.batches(range(10)))
            bars.append(bar)
            for count, _ in enumerate(bar, 1):
                if count == 5:
                    break
            counts.append((count, run.step))
    assert [(5, 5), (5, 10), (5, 15), (5, 20)] == counts


@pytest.mark.parametrize("when", ["at once", "in the next epoch", "after the block"])
def test_an_iterator_that_is_held_is_closed_when_its_epoch_ends(tmp_path, when):
    """Whenever the script lets go of it, nothing changes any more."""
    counts, held = [], []
    with new_run(tmp_path, Toy()) as run:
        for _ in run.epochs(4):
            iterator = iter(run.batches(range(10)))
            for count, _ in enumerate(iterator, 1):
                if when == "in the next epoch" and count == 3:
                    held.clear()
                if count == 5:
                    break
            if when != "at once":
                held.append(iterator)
            del iterator
            counts.append(count)
        assert 20 == run.step
    held.clear()
    assert ([5] * 4, 20, 4) == (counts, run.step, run.epoch)
    assert ["step-000000020-end"] == [c.name for c in Store(tmp_path).checkpoints()][-1:]
    assert events(tmp_path, "end")[0]["step"] == 20


# What was left counts ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", ["islice", "break"])
def test_a_pass_that_was_left_is_a_step_with_a_line_of_its_own(tmp_path, shape):
    """islice(run.batches(loader), 5) is five steps, and the fifth has its own metrics."""
    with new_run(tmp_path, Toy()) as run:
        for _ in run.epochs(2):
            batches = run.batches(range(10))
            for number, _ in enumerate(islice(batches, 5) if shape == "islice" else batches):
                run.log(number=number)
                if number == 4 and shape == "break":
                    break
            assert run.step in (5, 10)
            run.log(evaluated=run.step)
    steps = [(n + 1, "step", {"number": n % 5}) for n in range(10)]
    ends = [(5, "end", {"evaluated": 5}), (10, "end", {"evaluated": 10})]
    assert [*steps[:5], ends[0], *steps[5:], ends[1]] == lines(tmp_path)
