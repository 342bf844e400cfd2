"""The whole battery of tests/fast/test_shuffle.py; tests/prove/test_shuffle_epochs.py asks it of epochs and of
torch.
"""

from test_shuffle import BATTERY, LIMIT, shuffles


def test_an_order_is_as_random_by_every_measure():
    """Seed after seed, by a limit that one fair order in a million exceeds."""
    assert {} == {each.__name__: score for each in BATTERY if abs(score := each(shuffles)) >= LIMIT}
