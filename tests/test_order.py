"""The order of an epoch: a permutation, even, and the same for ever."""

from collections import Counter
from itertools import pairwise, permutations
from statistics import NormalDist

import pytest

from holdfast.data.order import SMALL, VERSION, Order, key
from holdfast.data.sampler import Sampler
from holdfast.errors import Mismatch


def chi_square_score(counts, cells, draws):
    """How many standard deviations the chi-square statistic of `counts` lies above its mean."""
    expected = draws / cells
    statistic = sum((count - expected) ** 2 / expected for count in counts.values())
    statistic += (cells - len(counts)) * expected
    freedom = cells - 1
    # Wilson and Hilferty, 1931: the cube root of a chi-square is nearly normal
    return ((statistic / freedom) ** (1 / 3) - (1 - 2 / (9 * freedom))) / (2 / (9 * freedom)) ** 0.5


def test_the_values_are_fixed_for_ever():
    """A checkpoint of any age finds the order that it was saved in: these numbers never change under this name."""
    assert VERSION == "feistel-1"
    assert list(Order(10, 0, 0)) == [7, 8, 1, 9, 0, 2, 3, 6, 4, 5]
    assert [Order(SMALL, 1, 2)[place] for place in range(6)] == [27, 193, 71, 250, 136, 135]
    assert [Order(SMALL + 1, 1, 2)[place] for place in range(6)] == [53, 186, 13, 83, 14, 140]
    assert [Order(1_281_167, 2**70, 89)[place] for place in range(6)] == [
        167438,
        804485,
        660544,
        1048962,
        14671,
        1085278,
    ]
    assert key("sample", 1, 2, 3) == 17014339515200596840


@pytest.mark.parametrize("epoch", [0, 1, 2**40])
def test_every_small_length_is_permuted(epoch):
    """Each place once, none left out, for every length from 0 to 300."""
    for length in range(301):
        assert sorted(Order(length, 7, epoch)) == list(range(length))


@pytest.mark.parametrize("length", [4095, 4096, 4097, 10007, 50000])
def test_every_large_length_is_permuted(length):
    """Squares, primes and their neighbours too."""
    assert sorted(Order(length, 3, 1)) == list(range(length))


def test_a_place_of_a_huge_order_costs_no_memory_of_its_size():
    """Seeking is arithmetic: a length that no list could hold."""
    order = Order(10**15, 1, 1)
    assert len({order[place] for place in range(0, 10**15, 10**12)}) == 1000
    assert all(0 <= order[place] < 10**15 for place in (0, 10**15 - 1))


def test_a_walk_from_anywhere_is_the_rest():
    """Starting late gives what starting early would have given from there."""
    order = Order(97, 5, 3)
    whole = list(order)
    assert all(list(order.walk(start)) == whole[start:] for start in range(98))
    assert order[-1] == whole[-1]
    with pytest.raises(IndexError):
        order[97]
    with pytest.raises(ValueError, match="0 or more"):
        Order(-1, 0, 0)


def test_epochs_and_seeds_differ():
    """No two of them share an order."""
    orders = {tuple(Order(50, seed, epoch)) for seed in range(20) for epoch in range(20)}
    assert len(orders) == 400


@pytest.mark.parametrize("length", [2, 3, 4, 5])
def test_all_orders_of_a_few_are_equally_likely(length):
    """Over many epochs every permutation turns up as often as any other."""
    draws = 6000
    counts = Counter(tuple(Order(length, 11, epoch)) for epoch in range(draws))
    assert chi_square_score(counts, len(list(permutations(range(length)))), draws) < NormalDist().inv_cdf(0.9999)


@pytest.mark.parametrize("length", [7, 12, 20])
def test_places_and_pairs_are_even(length):
    """Over many epochs each value stands at each place, and each pair at each pair of places, equally often."""
    draws = 4000
    orders = [list(Order(length, 5, epoch)) for epoch in range(draws)]
    for first, second in ((0, 1), (length // 2, length - 1)):
        places = Counter(order[first] for order in orders)
        pairs = Counter((order[first], order[second]) for order in orders)
        assert chi_square_score(places, length, draws) < NormalDist().inv_cdf(0.9999)
        assert chi_square_score(pairs, length * (length - 1), draws) < NormalDist().inv_cdf(0.9999)


def test_neighbours_are_scattered_in_a_large_order():
    """Within one epoch the step from one value to the next is spread over the whole range."""
    values = list(Order(20000, 1, 1))
    steps = Counter((after - before) % 20000 // 1000 for before, after in pairwise(values))
    assert chi_square_score(steps, 20, len(values) - 1) < NormalDist().inv_cdf(0.9999)


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
