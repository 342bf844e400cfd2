"""Is Shuffle as random as torch.randperm? One battery, asked of both; and of weakened mixings, which it must find out.

Each measure takes a maker of orders, orders(length)(number), and returns how many standard deviations its statistic
lies off its mean. The seeds are fixed: what passes today passes for ever.
"""

from collections import Counter
from itertools import pairwise
from math import exp, factorial, pi, sqrt
from statistics import NormalDist

import numpy as np
import pytest
import torch

from holdfast.data import Shuffle, order

LIMIT = 4.9  # a fair order exceeds it once in a million measurements, in either direction


def shuffles(length):
    """One order per seed."""
    return lambda number: Shuffle(length, number).block(0, length)


def epochs(length):
    """One order per epoch of one seed."""
    return lambda number: Shuffle(length, 7, number).block(0, length)


def randperms(length):
    """The peer."""
    return lambda number: torch.randperm(length, generator=torch.Generator().manual_seed(number)).numpy()


def chi_square(counts, expected, freedom):
    """How many standard deviations `counts` are too uneven, or too even."""
    statistic = float(((counts - expected) ** 2 / expected).sum())
    # Wilson and Hilferty, 1931: the cube root of a chi-square is nearly normal
    return ((statistic / freedom) ** (1 / 3) - (1 - 2 / (9 * freedom))) / (2 / (9 * freedom)) ** 0.5


def dependence(rows, columns, size=32):
    """Chi-square of two features with `size` classes each: does one tell something of the other?"""
    table = np.bincount(rows * size + columns, minlength=size * size).reshape(size, size)
    expected = np.outer(table.sum(1), table.sum(0)) / table.sum()
    return chi_square(table, expected, (size - 1) ** 2)


def worst(scores):
    return max(scores, key=abs)


def values_by_place(orders):
    """Where a value stands, by thirty-seconds of the range and by its last bits."""
    values = orders(100_003)(1)
    places = np.arange(len(values))
    high = dependence(places * 32 // len(values), values * 32 // len(values))
    return worst([high, dependence(places % 32, values % 32), dependence(places % 32, values * 32 // len(values))])


def values_by_their_neighbours(orders):
    """What stands 1, 2, 3, 64, 4096 or half an order further on."""
    values = orders(100_003)(2)
    features = (values * 32 // len(values), values % 32)
    lags = (1, 2, 3, 64, 4096, len(values) // 2, 2**16)
    return worst([dependence(feature[:-lag], feature[lag:]) for feature in features for lag in lags])


def steps(orders):
    """The distance from each value to the next."""
    values = orders(100_003)(3)
    counts = np.bincount(np.diff(values) % len(values) * 1000 // len(values), minlength=1000)
    return chi_square(counts, (len(values) - 1) / 1000, 999)


def waves(orders):
    """The highest peak of the spectrum: an order that is nearly a lattice has one."""
    values = orders(2**16)(4).astype(float)
    power = np.abs(np.fft.rfft(values - values.mean())[1:-1]) ** 2 / (len(values) * values.var())
    tail = -np.expm1(len(power) * np.log1p(-exp(-power.max())))  # the highest of so many exponential variables
    return NormalDist().inv_cdf(1 - max(tail, 1e-16)) if tail < 0.5 else 0.0


def descents(orders):
    """How often a value is less than the one before. Mean and variance: Euler's numbers."""
    values = orders(100_003)(5)
    count = len(values)
    return float((np.diff(values) < 0).sum() - (count - 1) / 2) / sqrt((count + 1) / 12)


def inversions(orders):
    """How many pairs stand the wrong way round, order by order: their mean, and that they vary as they should."""
    count, draws = 300, 300
    mean, variance = count * (count - 1) / 4, count * (count - 1) * (2 * count + 5) / 72
    upper = np.triu_indices(count, 1)
    found = np.array([(values[upper[0]] > values[upper[1]]).sum() for values in map(orders(count), range(draws))])
    scores = (found - mean) / sqrt(variance)
    return worst([scores.sum() / sqrt(draws), ((scores**2).sum() - draws) / sqrt(2 * draws)])


def fixed_points(orders):
    """How many values stand at their own place: as good as Poisson's law with mean 1."""
    found = [int((values == np.arange(300)).sum()) for values in map(orders(300), range(2000))]
    return poisson(found)


def agreements(orders):
    """How many values stand at the same place in the order of the next number."""
    made = [orders(300)(number) for number in range(2000)]
    return poisson([int((one == other).sum()) for one, other in pairwise(made)])


def poisson(found):
    counts = np.bincount(np.minimum(found, 5), minlength=6)
    chances = np.array([1 / (factorial(k) * exp(1)) for k in range(5)])
    return chi_square(counts, len(found) * np.append(chances, 1 - chances.sum()), 5)


def values_by_the_next_order(orders):
    """What the order of the next number has at the same place."""
    one, other = orders(100_003)(6), orders(100_003)(7)
    return dependence(one * 32 // len(one), other * 32 // len(one))


def cycles(orders):
    """How many cycles there are: a harmonic number, on average; and even permutations are no more common than odd."""
    count, draws = 1024, 300
    found = np.array([number_of_cycles(values.tolist()) for values in map(orders(count), range(draws))])
    mean = sum(1 / k for k in range(1, count + 1))
    odd = ((count - found) % 2).sum()
    return worst([(found.mean() - mean) / sqrt((mean - pi**2 / 6) / draws), (odd - draws / 2) / sqrt(draws / 4)])


def number_of_cycles(values):
    cycles, seen = 0, bytearray(len(values))
    for place in range(len(values)):
        cycles += not seen[place]
        while not seen[place]:
            seen[place] = 1
            place = values[place]  # noqa: PLW2901  once round
    return cycles


def differences(orders):
    """Over many orders, the difference of the values at two places: half an order apart is where mixing comes last."""
    draws, pairs = 4000, ((0, 1), (5, 261), (3, 508), (7, 8))
    made = np.array([orders(512)(number) for number in range(draws)])
    counts = [np.bincount((made[:, one] - made[:, other]) % 512, minlength=512)[1:] for one, other in pairs]
    counts += [np.bincount(made[:, one] ^ made[:, other], minlength=512)[1:] for one, other in pairs]
    return worst([chi_square(count, draws / 511, 510) for count in counts])


def values_at_the_ends(orders):
    """Over many orders, each value is as often the first, the last and the middle one."""
    made = np.array([orders(300)(number) for number in range(3000)])
    return worst([chi_square(np.bincount(made[:, at], minlength=300), 10, 299) for at in (0, 150, 299)])


def all_orders_of_a_few(orders):
    """Every order of two to six things turns up as often as any other."""
    scores = []
    for length in range(2, 7):
        kinds, draws = factorial(length), 20 * factorial(length)
        counts = Counter(tuple(orders(length)(number).tolist()) for number in range(draws))
        found = np.array([*counts.values(), *[0] * (kinds - len(counts))])
        scores.append(chi_square(found, 20, kinds - 1))
    return worst(scores)


BATTERY = [
    values_by_place,
    values_by_their_neighbours,
    steps,
    waves,
    descents,
    inversions,
    fixed_points,
    agreements,
    values_by_the_next_order,
    cycles,
    differences,
    values_at_the_ends,
    all_orders_of_a_few,
]


def test_an_order_is_as_random_as_randperm():
    """Seed after seed, by a limit that one fair order in a million exceeds; by the quick measures."""
    quick = (values_by_place, steps, waves, fixed_points, values_by_the_next_order)
    assert {} == {each.__name__: score for each in quick if abs(score := each(shuffles)) >= LIMIT}


FOUND_OUT = {  # rounds left -> who must see it
    1: [values_by_place, values_by_their_neighbours, steps, waves, fixed_points, agreements, differences],
    2: [values_by_their_neighbours, differences],
    3: [differences],
}


@pytest.mark.parametrize("rounds", FOUND_OUT)
def test_a_weakened_order_is_found_out(rounds, monkeypatch):
    """A battery that never went red would prove nothing: with rounds left out, it does."""
    monkeypatch.setattr(order, "ROUNDS", rounds)
    assert [] == [each.__name__ for each in FOUND_OUT[rounds] if abs(each(shuffles)) <= LIMIT]
