"""The battery of tests/fast/test_shuffle.py, asked of epochs and of torch; and how many rounds a mixing needs."""

import numpy as np
import pytest
from test_shuffle import BATTERY, LIMIT, chi_square, epochs, randperms, worst

from holdfast.data import order


@pytest.mark.parametrize("orders", [epochs, randperms])
def test_epochs_are_as_random_as_randperm(orders):
    """Epoch after epoch of one seed, by the same limit as torch's own."""
    assert {} == {each.__name__: score for each in BATTERY if abs(score := each(orders)) >= LIMIT}


@pytest.mark.parametrize(("rounds", "seen"), [(4, True), (5, True), (6, False), (order.ROUNDS, False)])
def test_half_of_the_rounds_are_enough(rounds, seen):
    """Two million draws of the keys, on as few bits as a mixing ever has: five rounds still show, six no longer do."""
    draws, bits, random = 2_000_000, 9, np.random.default_rng(1)
    words = [random.integers(0, 2**bits, draws, dtype=np.uint64) for _ in range(2 * rounds)]
    keys = tuple(zip([factor | np.uint64(1) for factor in words[::2]], words[1::2], strict=True))
    mixing = order._BitPermutation(np.uint64(2**bits - 1), np.uint64((bits + 1) // 2), keys)
    scores = []
    for one, other in ((0, 1), (3, 508), (5, 133), (5, 261)):
        first, second = (order._permute_value(np.full(draws, place, np.uint64), mixing) for place in (one, other))
        counts = np.bincount(np.asarray(first ^ second, int), minlength=2**bits)[1:]
        scores.append(chi_square(counts, draws / 511, 510))
    assert seen == (abs(worst(scores)) > LIMIT)
