"""A few losses of power in real saves; `make prove` samples thousands."""

import pytest
from test_power_loss import STORIES, loses_power, pytestmark  # noqa: F401  skipped where it is

STRIDES = {"a run": 24, "a store": 4, "two ranks": 4}


@pytest.mark.parametrize("story", STORIES)
def test_a_loss_of_power_in_a_real_save_leaves_the_old_or_the_new(story):
    """As `test_power_loss` says, of a few disks."""
    assert loses_power(story, 1, seed=2, stride=STRIDES[story]) > 10
