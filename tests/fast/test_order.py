"""The order of an epoch: a permutation that any place can be asked of, and the same for ever."""

import random
import subprocess
import sys
import tracemalloc
from itertools import islice, pairwise

import numpy as np
import pytest

from holdfast.data import Sampler, Shuffle, order
from holdfast.data.order import CHUNK, FIRST, LONGEST, SMALL, VERSION, derive_key
from holdfast.errors import Mismatch

LENGTHS = [0, 1, 2, SMALL - 1, SMALL, SMALL + 1, 511, 512, 513, 4096]
HUGE = [2**32 - 1, 2**32 + 1, 10**10, 2**53 + 1, LONGEST - 1, LONGEST]


def test_the_values_are_fixed_for_ever():
    """A checkpoint of any age finds the order that it was saved in: these numbers never change under this name."""
    assert VERSION == "shuffle-1"
    assert list(Shuffle(10, 0)) == [5, 4, 1, 6, 0, 9, 7, 8, 3, 2]
    assert Shuffle(SMALL, 1, 2)[:6] == [94, 112, 189, 51, 185, 30]
    assert Shuffle(SMALL + 1, 1, 2)[:6] == [113, 33, 153, 119, 23, 173]
    assert Shuffle(1_281_167, 2**70, 89)[:6] == [478201, 1137208, 840063, 731963, 1261770, 1058872]
    assert Shuffle(10**10, 1)[10**9 : 10**9 + 3] == [7122825696, 936326557, 1108372353]
    assert Shuffle(2**63, 1)[:3] == [7365040665616829886, 7318167573609159002, 6747923741339641141]
    assert derive_key("sample", 1, 2, 3) == 17014339515200596840


@pytest.mark.parametrize("epoch", [0, 1, 2**40])
def test_every_small_length_is_permuted(epoch):
    """Each place once, none left out, for every length from 0 to 600."""
    for length in range(0, 601, 1 if epoch == 0 else 7):
        assert sorted(Shuffle(length, 7, epoch)) == list(range(length))


@pytest.mark.parametrize("length", [4095, 4096, 4097, 10_007, 2**20 - 1, 2**20, 2**20 + 1])
def test_every_large_length_is_permuted(length):
    """Powers of two, primes and their neighbours too."""
    assert np.array_equal(np.sort(Shuffle(length, 3, 1).block(0, length)), np.arange(length))


@pytest.mark.parametrize("length", HUGE)
def test_no_value_of_a_huge_length_comes_twice(length):
    """Ninety thousand places of lengths that no memory could hold: all within, all different."""
    shuffle = Shuffle(length, 1, 1)
    starts = (0, length // 3, length - 30_000)
    values = np.concatenate([shuffle.block(start, start + 30_000) for start in starts])
    assert len(np.unique(values)) == len(values)
    assert 0 <= values.min()
    assert values.max() < length


@pytest.mark.parametrize("length", LENGTHS)
def test_every_way_to_ask_gives_the_same(length, monkeypatch):
    """One place, a slice, a block, a walk; with NumPy and without."""
    for seed, epoch in ((0, 0), (2**70, 3), (-1, 2**40)):
        shuffle = Shuffle(length, seed, epoch)
        expected = [shuffle[place] for place in range(length)]
        for start in {0, min(1, length), min(FIRST, length), length // 2, length}:
            assert list(shuffle.walk(start)) == expected[start:]
            assert shuffle[start:] == expected[start:]
            assert shuffle.block(start, length).tolist() == expected[start:]
        with monkeypatch.context() as without:
            without.setitem(sys.modules, "numpy", None)
            assert list(shuffle) == expected == shuffle[:]


@pytest.mark.parametrize("length", HUGE)
def test_a_huge_length_is_the_same_without_numpy(length):
    """Every bit of the 63 comes out alike."""
    shuffle = Shuffle(length, 9, 4)
    for start in (0, length // 2, length - 500):
        assert [shuffle[place] for place in range(start, start + 500)] == shuffle.block(start, start + 500).tolist()


def test_blocks_of_any_size_fit_together():
    """Where a block begins and ends changes no value in it."""
    shuffle = Shuffle(10**10, 5)
    at = 10**9
    whole = shuffle.block(at, at + 3 * CHUNK)
    cuts = [0, 1, 2, 1000, CHUNK - 1, CHUNK, CHUNK + 1, 2 * CHUNK + 5, 3 * CHUNK]
    parts = [shuffle.block(at + start, at + stop) for start, stop in pairwise(cuts)]
    assert np.array_equal(np.concatenate(parts), whole)
    assert whole.dtype == np.int64
    assert list(islice(shuffle.walk(at), 3 * CHUNK)) == whole.tolist()


def test_slices_are_those_of_a_list():
    """Negative bounds, steps, empty ranges."""
    for length in (10, 300):
        shuffle = Shuffle(length, 5)
        whole = list(shuffle)
        draw = random.Random(1)
        for _ in range(200):
            start, stop = (draw.choice([None, draw.randint(-400, 400)]) for _ in range(2))
            where = slice(start, stop, draw.choice([None, -3, 2]))
            assert shuffle[where] == whole[where]
        assert (shuffle[-1], shuffle[np.int64(3)], len(shuffle)) == (whole[-1], whole[3], length)


def test_what_is_no_place_is_refused():
    """Nothing beyond the ends, no negative start, no length that 64 bits cannot number."""
    shuffle = Shuffle(300, 0)
    for ask in (
        lambda: shuffle[300],
        lambda: shuffle[-301],
        lambda: shuffle.walk(-1),
        lambda: shuffle.block(-1, 5),
        lambda: shuffle.block(5, 301),
        lambda: shuffle.block(5, 4),
    ):
        with pytest.raises(IndexError):
            ask()
    for length in (-1, LONGEST + 1):
        with pytest.raises(ValueError, match="from 0 to 2"):
            Shuffle(length, 0)


def test_lengths_seeds_and_epochs_differ():
    """No two of them share an order, nor begin as another one of nearly the same length does."""
    assert len({tuple(Shuffle(50, seed, epoch)) for seed in range(20) for epoch in range(20)}) == 400
    assert len({tuple(Shuffle(length, 1)[:5]) for length in range(10**6, 10**6 + 100)}) == 100


def test_a_resume_at_a_billion_computes_a_thousand_places(monkeypatch):
    """Nothing before the place is computed, little after it, and hardly any memory is taken."""
    mix, computed = order._permute_array, []
    monkeypatch.setattr(order, "_permute_array", lambda values, by: (computed.append(len(values)), mix(values, by)))
    tracemalloc.start()
    try:
        first = list(islice(Sampler(10**10, seed=1).indices(0, 10**9), 1000))
        used = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert first == Shuffle(10**10, 1)[10**9 : 10**9 + 1000]
    assert used < 2**20
    assert sum(computed) < 2 * 2 * FIRST  # a walk's first block and the slice's, each less than twice over


def test_a_long_walk_never_takes_more_than_a_mebibyte():
    """However far it goes, it holds one block."""
    walk = Shuffle(10**10, 1).walk(10**9)
    tracemalloc.start()
    try:
        assert sum(1 for _ in islice(walk, 200_000)) == 200_000
        assert tracemalloc.get_traced_memory()[1] < 2**20
    finally:
        tracemalloc.stop()


def test_numpy_is_not_imported_for_an_order():
    """A program without NumPy stays one, and gets the same order."""
    script = """if True:
        import sys
        from holdfast.data import Sampler, Shuffle
        print(Shuffle(10**10, 3)[:5], list(Shuffle(1000, 3).walk(995)), [*Sampler(1000, seed=3).indices(0, 995)])
        assert "numpy" not in sys.modules
    """
    told = subprocess.run([sys.executable, "-c", script], check=True, capture_output=True, text=True).stdout
    last = Shuffle(1000, 3)[995:]
    assert f"{Shuffle(10**10, 3)[:5]} {last} {last}\n" == told


def test_a_sampler_reshuffles_every_epoch():
    """Iterating again is the next epoch: another order, the same samples."""
    sampler = Sampler(range(30), seed=1)
    epochs = [list(sampler) for _ in range(3)]
    assert [sorted(epoch) for epoch in epochs] == [list(range(30))] * 3
    assert epochs[0] != epochs[1] != epochs[2]
    assert [index.epoch for epoch in epochs for index in epoch] == [0] * 30 + [1] * 30 + [2] * 30


def test_a_sampler_resumes_anywhere():
    """A fresh sampler with the state of another hands out what the other would have."""
    for taken in range(25):
        first, second = Sampler(12, seed=4), Sampler(12, seed=4)
        indices = iter(first)
        for _ in range(taken % 12):
            next(indices)
        second.load_state_dict(first.state_dict())
        assert list(second) == list(indices)
        assert list(second) == list(first)


def test_set_epoch_keeps_a_restored_position():
    """The loop says again which epoch it is in; only another epoch begins at its start."""
    sampler = Sampler(10, seed=4, shuffle=False)
    sampler.load_state_dict({**sampler.state_dict(), "epoch": 3, "position": 7})
    sampler.set_epoch(3)
    assert list(sampler) == [7, 8, 9]
    sampler.set_epoch(9)
    assert [index.epoch for index in sampler] == [9] * 10


def test_an_epoch_left_in_the_middle_begins_again():
    """Breaking out and iterating anew is a whole epoch."""
    sampler = Sampler(10, seed=4)
    for _ in zip(range(4), sampler, strict=False):
        pass
    assert sorted(sampler) == list(range(10))


def test_a_state_of_another_order_is_refused():
    """A position means nothing in an order that is not the one it was taken in."""
    state = Sampler(10, seed=4).state_dict()
    for other in (Sampler(11, seed=4), Sampler(10, seed=5), Sampler(10, seed=4, shuffle=False)):
        with pytest.raises(Mismatch, match="make it the same again"):
            other.load_state_dict(state)
    with pytest.raises(Mismatch, match="order is 'shuffle-1', in its saved state 'feistel-1'"):
        Sampler(10, seed=4).load_state_dict({**state, "order": "feistel-1"})
