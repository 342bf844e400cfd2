"""Every kind of loader, cut everywhere: the whole of what tests/slow/test_loader_matrix.py samples."""

import pytest

from loader_cases import CASES, differing_cuts, differing_trainer_cuts

pytestmark = [
    pytest.mark.usefixtures("no_syncs"),
    pytest.mark.filterwarnings("ignore:'set_vital' is deprecated"),  # torchdata's own
]


@pytest.mark.parametrize(
    ("name", "workers"),
    [(name, workers) for name, case in CASES.items() for workers in (0, 2) if workers in case.workers],
)
def test_a_cut_at_any_place_changes_nothing(name, workers, tmp_path):
    """After each batch, and at each end of an epoch."""
    assert {} == differing_cuts(name, workers, tmp_path)


@pytest.mark.parametrize("ahead", [0, 1, 3])
def test_a_cut_changes_nothing_for_a_trainer_of_any_loader(ahead, tmp_path):
    """Whatever it has fetched ahead."""
    assert {} == differing_trainer_cuts(ahead, tmp_path)
