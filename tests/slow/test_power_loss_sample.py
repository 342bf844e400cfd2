"""A few losses of power in real saves; `make prove` samples thousands."""

import pytest
import test_power_truth
from test_power_loss import PARTS, loses_power

from needed import needs

STRIDES = {"a run": 24, "a store": 4, "two ranks": 4}


@needs("strace")
@pytest.mark.parametrize("story", PARTS)
def test_a_loss_of_power_in_a_real_save_leaves_the_old_or_the_new(story):
    """As `test_power_loss` says, of a few disks."""
    assert loses_power(story, 1, seed=2, stride=STRIDES[story]) > 10


@test_power_truth.pytestmark
def test_a_few_real_disks_that_lost_power_are_as_the_model_says():
    """As `test_power_truth` says."""
    tried, lossy = test_power_truth.really_loses_power("a store", "data=ordered", 25, seed=3)
    assert (tried, lossy > 2) == (25, True)
