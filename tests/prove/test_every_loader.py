"""Every kind of loader with workers, cut everywhere: the whole of what tests/slow/test_loader_matrix.py samples."""

import pytest

from loader_cases import CASES, differing_cuts, differing_trainer_cuts

pytestmark = [
    pytest.mark.usefixtures("no_syncs"),
    pytest.mark.filterwarnings("ignore:'set_vital' is deprecated"),  # torchdata's own
]


@pytest.mark.parametrize("name", [name for name, case in CASES.items() if 2 in case.workers])
def test_a_cut_anywhere_changes_nothing_with_workers(name, tmp_path):
    """At all of them."""
    assert {} == differing_cuts(name, 2, tmp_path)


@pytest.mark.parametrize("ahead", [0, 1, 3])
def test_a_cut_changes_nothing_for_a_trainer_of_any_loader(ahead, tmp_path):
    """Whatever it has fetched ahead."""
    assert {} == differing_trainer_cuts(ahead, tmp_path)
