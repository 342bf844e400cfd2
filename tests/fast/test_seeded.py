"""Seeded: what a sample draws depends on (seed, epoch, index) and on nothing else."""

import pickle
import random
import subprocess
import sys
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import ConcatDataset, DataLoader, Subset

from holdfast.data import Sampler, Seeded
from holdfast.data.feed import feed_for
from holdfast.data.seeded import Index
from holdfast.errors import UsageError
from kept import bits
from subjects import asked_of


class Noisy:
    """A sample is its index and three draws, one from each global generator."""

    labels = ("a", "b")

    def __init__(self, length=20):
        self.length = length

    def __len__(self):
        return self.length

    def __getitem__(self, index):
        draws = [random.random(), np.random.rand(), torch.rand((), dtype=torch.float64).item()]
        return torch.tensor([float(index), *draws], dtype=torch.float64)


class Failing(Noisy):
    """Cannot be read."""

    def __getitem__(self, index):
        raise OSError(index)


class Batched(Noisy):
    """Reads a batch at once, as Hugging Face's datasets do."""

    def __getitems__(self, indices):
        raise AssertionError("a batched read has no seed per sample")


def globals_now():
    numpy: Any = np.random.get_state()
    return random.getstate(), numpy[1].tolist(), torch.get_rng_state().tolist()


def epochs(dataset, first=0, last=3, **settings):
    """All samples of the epochs, as lists, in the order that the run hands them out."""
    feed = feed_for(DataLoader(dataset, batch_size=4, shuffle=True, **settings), seed=1)
    return [torch.cat(list(feed.open(epoch, None))).tolist() for epoch in range(first, last)]


def test_a_sample_is_a_pure_function_of_seed_epoch_and_index():
    """Asked in any order, after anything, a sample is the same; another seed, epoch or index is another one."""
    dataset = Seeded(Noisy(), 5)
    asked = [dataset[Index(3, 1)]]
    random.random()
    torch.rand(3)
    dataset[Index(4, 1)]
    asked.append(dataset[Index(3, 1)])
    assert torch.equal(*asked)
    others = [dataset[Index(3, 2)], dataset[Index(4, 1)], Seeded(Noisy(), 6)[Index(3, 1)]]
    assert len({tuple(sample.tolist()[1:]) for sample in [asked[0], *others]}) == 4


def test_the_values_are_fixed_for_ever():
    """The same sample in every version: the seed of a sample is part of what a checkpoint relies on."""
    sample = Seeded(Noisy(), 5)[Index(3, 1)].tolist()
    assert sample == [3.0, 0.051602817346275365, 0.03506732212225783, 0.8178779136150316]


def test_the_training_stream_is_not_touched():
    """After a sample, a batch of them or one that fails, the three global generators are where they were."""
    dataset = Seeded(Noisy(), 5)
    before = globals_now()
    dataset[Index(3, 1)]
    dataset.__getitems__([Index(4, 1), Index(5, 1)])
    with pytest.raises(OSError, match="3"):
        Seeded(Failing(), 5)[Index(3, 1)]
    assert globals_now() == before


def test_augmentation_is_the_same_with_any_workers_and_after_a_resume():
    """How many processes load and how long they live leaves no trace; a process that begins in a later epoch draws what
    the uninterrupted one drew there. A dataset with __getitems__ is asked sample by sample. Epochs differ.
    """
    expected = epochs(Seeded(Noisy(), 5))
    assert len({sample[1] for epoch in expected for sample in epoch}) == 60
    for kind, first, settings in [
        (Noisy, 0, {"num_workers": 2, "persistent_workers": True}),
        (Noisy, 2, {"num_workers": 2}),
        (Batched, 0, {}),
    ]:
        with asked_of(kind.__name__, first, settings):
            assert expected[first:] == epochs(Seeded(kind(), 5), first, **settings)


def test_what_collate_draws_in_workers_is_repeatable():
    """In a worker the generators stay where the batch's last sample left them: mixup in collate_fn resumes too."""
    settings = {"num_workers": 2, "collate_fn": mixed}
    expected = epochs(Seeded(Noisy(), 5), **settings)
    assert epochs(Seeded(Noisy(), 5), first=1, **settings | {"num_workers": 1}) == expected[1:]


def mixed(samples):
    return torch.stack(samples) * random.random()


def test_a_plain_index_warns_once():
    """Without an epoch each epoch repeats the first; who loses the epoch on the way is told what to do."""
    for dataset in (Subset(Seeded(Noisy(), 5), range(8)), Seeded(Noisy(), 5)):
        with asked_of(dataset), pytest.warns(UserWarning, match="outermost wrapper") as told:
            first, second = dataset[3], dataset[3]
        assert len(told) == 1
        assert bits(first) == bits(second) == bits(Seeded(Noisy(), 5)[Index(3, 0)])


def test_around_other_wrappers_it_needs_no_warning():
    """Outermost is right: the wrappers inside get their index and its randomness."""
    parts: list[Any] = [Subset(Noisy(), range(5)), Noisy(3)]
    dataset = Seeded(ConcatDataset(parts), 5)
    assert len(dataset) == 8
    assert not torch.equal(dataset[Index(6, 0)], dataset[Index(6, 1)])


def test_a_holdfast_sampler_carries_the_epoch_without_a_run():
    """In the user's own DataLoader the sampler's indices say which epoch it is."""
    dataset = Seeded(Noisy(), 5)
    loader = DataLoader(dataset, batch_size=4, sampler=Sampler(dataset, seed=1))
    loaded = [torch.cat(list(loader)).tolist() for _ in range(3)]
    assert loaded == epochs(Seeded(Noisy(), 5))


def test_an_index_travels():
    """Between processes an index keeps its number and its epoch, and it is a number like any other."""
    index = pickle.loads(pickle.dumps(Index(7, 3)))
    assert (index, index.epoch, type(index)) == (7, 3, Index)
    assert torch.arange(9)[index] == np.arange(9)[index] == list(range(9))[index] == 7


def test_tuples_and_strings_are_indices_too():
    """A bucket sampler's (index, size) has its own randomness; its epoch is the one inside it."""

    class Sized(Noisy):
        def __getitem__(self, index):
            return random.random()

    dataset = Seeded(Sized(), 5)
    assert dataset[Index(1, 0), 32] != dataset[Index(1, 1), 32] != dataset[Index(1, 1), 64]
    with pytest.warns(UserWarning, match="plain str"):
        assert dataset["cat"] != dataset["dog"]
    with pytest.raises(UsageError, match="slice"):
        dataset[2:3]


def test_attributes_are_the_datasets():
    """What a script asks of its dataset it may ask of the wrapper; copies and pickles of it work."""
    dataset = pickle.loads(pickle.dumps(Seeded(Noisy(9), 5)))
    assert (dataset.labels, dataset.length, len(dataset)) == (("a", "b"), 9, 9)
    with pytest.raises(AttributeError):
        dataset.nothing


def test_an_attribute_is_set_where_it_is_read():
    """timm's create_loader sets `dataset.transform`: set on the wrapper alone, it changed no sample."""
    wrapped = Seeded(Noisy(9), 5)
    wrapped.length, wrapped.seed, wrapped.mine = 3, 6, 7
    assert (wrapped.dataset.length, wrapped.seed, wrapped.mine, len(wrapped)) == (3, 6, 7, 3)
    assert not {"seed", "mine"} & vars(wrapped.dataset).keys()


def test_it_needs_no_framework():
    """Neither NumPy nor torch is imported for a dataset and a loop that use neither."""
    script = (
        "import sys, random; from holdfast.data import Seeded, Sampler; from holdfast.data.seeded import Index\n"
        "from holdfast.data.feed import feed_for\n"
        "class Plain:\n"
        "    def __len__(self): return 3\n"
        "    def __getitem__(self, i): return random.random()\n"
        "d = Seeded(Plain(), 1); assert d[Index(1, 1)] == d[Index(1, 1)]\n"
        "assert list(feed_for([1, 2, 3], 1).open(0, {'epoch': 0, 'batches': 1})) == [2, 3]\n"
        "assert not {'torch', 'numpy'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", script], check=True)
