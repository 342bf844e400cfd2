"""Some kinds of loaders without workers, cut once; tests/slow/test_loader_matrix.py cuts all of them everywhere."""

import pytest

from loader_cases import CASES, differing_cuts, differing_trainer_cuts
from subjects import asked_of

pytestmark = pytest.mark.filterwarnings("ignore:'set_vital' is deprecated")  # torchdata's own


def test_a_cut_changes_nothing_for_any_kind_of_loader(tmp_path):
    """Every sixteenth kind; from one to the next another batch, or an end of an epoch."""
    for number, name in enumerate([name for name, case in CASES.items() if 0 in case.workers][::16]):
        with asked_of(name):
            chosen = lambda cuts, number=number: [cuts[(2 * number + 1) % len(cuts)]]
            assert {} == differing_cuts(name, 0, tmp_path / str(number), chosen)


def test_a_trainer_that_has_fetched_ahead_loses_nothing_at_a_cut(tmp_path):
    """Every sixteenth kind, three batches ahead, cut once; tests/slow/test_loader_matrix.py cuts them everywhere."""
    assert {} == differing_trainer_cuts(3, tmp_path, lambda cuts: [cuts[len(cuts) // 2]], nth=16)
