"""Streams that keep their own position, walked for several epochs."""

import random
from itertools import cycle

import pytest
from torch.utils.data import DataLoader, IterableDataset

from holdfast import Every, Run
from holdfast.data.feed import feed_for
from holdfast.errors import Mismatch
from subjects import asked_of
from toy import Cut, Toy, new_run


class Stays:
    """Begins each pass of an epoch at the state that was loaded last. Source: datasets.IterableDataset."""

    def __init__(self, initial=None):
        self.epoch, self.state, self.starting = 0, initial, None

    def __iter__(self):
        self.state = {"at": 0, "epoch": self.epoch}
        if self.starting and self.starting["epoch"] == self.epoch:
            self.state = dict(self.starting)
        while self.state["at"] < 6:
            self.state["at"] += 1
            yield self.state["at"] - 1

    def state_dict(self):
        return None if self.state is None else dict(self.state)

    def load_state_dict(self, state):
        self.starting = state

    def set_epoch(self, epoch):
        self.epoch = epoch


class Dataset(Stays, IterableDataset):
    """The same as a dataset."""


def walked(path, make, cut=None, set_epoch=False, every=None):
    """The samples of three epochs; the process is gone in pass `cut`."""
    stream, passes = make(), 0
    options = {"every": every or Every(steps=1), "background": False, "vars": {"seen": []}}
    with new_run(path, Toy(), **options) as run:
        for epoch in run.epochs(3):
            if set_epoch:
                getattr(stream, "dataset", stream).set_epoch(epoch)
            for sample in run.batches(stream):
                passes += 1
                if passes == cut:
                    raise Cut
                run.vars.seen += [int(sample["a"] if isinstance(sample, dict) else sample)]
        return run.vars.seen


def cut_anywhere(path, make, cuts, **options):
    expected = walked(path / "whole", make, **options)
    for cut, every in zip(cuts, cycle([Every(steps=1), Every(epochs=1)]), strict=False):
        with asked_of(cut, every):
            place = path / f"{cut}"
            with pytest.raises(Cut):
                walked(place, make, cut, every=every, **options)
            assert walked(place, make, every=every, **options) == expected
    return expected


def test_no_sample_of_a_stream_is_lost_in_later_epochs(tmp_path):
    """Whether or not it stays at a loaded state, with set_epoch and without; alone and in a DataLoader."""
    for number, (make, options) in enumerate(
        [
            (Stays, {}),
            (Stays, {"set_epoch": True}),
            (lambda: Stays({"at": 0, "epoch": 0}), {}),
            (lambda: DataLoader(Dataset(), batch_size=None), {}),
            (lambda: DataLoader(Dataset(), batch_size=None), {"set_epoch": True}),
        ]
    ):
        assert cut_anywhere(tmp_path / str(number), make, (9, 7, 14), **options) == [*range(6)] * 3


class BufferShuffledExamplesIterable:
    """The name of the part that keeps a buffer in datasets."""


BufferShuffledExamplesIterable.__module__ = "datasets.iterable_dataset"


class Shuffles(Stays):
    """A stream of datasets' own package that shuffles."""

    def __init__(self):
        super().__init__()
        self._ex_iterable = BufferShuffledExamplesIterable()


Shuffles.__module__ = "datasets.iterable_dataset"


def test_a_stream_whose_state_leaves_its_buffer_out_is_read_again():
    """With a DataLoader around it and without."""
    for loader in (Shuffles(), DataLoader(type("Both", (Shuffles, IterableDataset), {"__module__": "datasets.x"})())):
        assert feed_for(loader, 1).replays
        assert feed_for(loader, 1).unknown is None


def shuffled(path, cut=None, anew=False, state=False, **options):
    """A script that shuffles its list of batches in each epoch; the process is gone in pass `cut`."""
    random.seed(0)
    batches, passes = [[number, number + 1] for number in range(0, 12, 2)], 0
    tracked = {"batches": batches} if state else {}
    with Run(path, {"toy": Toy(), **tracked}, every=None, vars={"seen": []}, background=False, **options) as run:
        for _ in run.epochs(3):
            order = random.sample(batches, len(batches)) if anew else batches
            if not anew:
                random.shuffle(batches)
            for batch in run.batches(order):
                passes += 1
                if passes == cut:
                    raise Cut
                run.vars.seen += batch
                run.save()
            run.save()
        return run.vars.seen


def test_a_list_that_was_reordered_is_never_taken_for_the_one_of_before(tmp_path):
    """Shuffled in place: refused from the second epoch on, inside and at its end. Other samples are accepted."""
    expected = shuffled(tmp_path / "whole")
    for cut in (3, 8, 10, 13):
        path = tmp_path / str(cut)
        with pytest.raises(Cut):
            shuffled(path, cut)
        if cut == 3:
            assert shuffled(path) == expected
            continue
        with pytest.raises(Mismatch, match=r'list in run\.batches is not as it was.*accept=\{"data"\}'):
            shuffled(path)
        assert len(shuffled(path, accept={"data"})) == 36


def test_a_list_that_is_made_anew_or_restored_goes_on(tmp_path):
    """A sample of it in each epoch, or the list in the state: exact after any cut."""
    for name, how in {"anew": {"anew": True}, "state": {"state": True}}.items():
        expected = shuffled(tmp_path / name, **how)
        for cut in (3, 7, 13):
            path = tmp_path / f"{name}-{cut}"
            with pytest.raises(Cut):
                shuffled(path, cut, **how)
            assert shuffled(path, **how) == expected
