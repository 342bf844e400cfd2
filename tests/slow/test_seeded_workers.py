"""Augmentation that depends on (seed, epoch, index) alone, however the workers are started."""

import pytest
from test_seeded import Noisy, epochs

from holdfast.data import Seeded


@pytest.mark.parametrize(
    "settings",
    [
        {"num_workers": 1},
        {"num_workers": 4, "persistent_workers": True},
        {"num_workers": 2, "persistent_workers": True, "multiprocessing_context": "spawn"},
    ],
    ids=str,
)
def test_augmentation_is_the_same_however_workers_are_started(settings):
    """Forked or spawned, few or many, for one epoch or for all."""
    assert epochs(Seeded(Noisy(), 5), **settings) == epochs(Seeded(Noisy(), 5))
