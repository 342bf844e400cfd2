"""Every kind of loader, cut after every batch and at every end of an epoch: what follows is what would have
followed.
"""

import random

import pytest

from loader_cases import CASES, differing_cuts, differing_trainer_cuts
from samples import sample

pytestmark = pytest.mark.filterwarnings("ignore:'set_vital' is deprecated")  # torchdata's own


def ends_and_two(cuts):
    return [cuts[0], *sample(cuts[1:-1], 2), cuts[-1]]


@pytest.mark.parametrize("name", [name for name, case in CASES.items() if 0 in case.workers])
def test_a_cut_anywhere_changes_nothing(name, tmp_path):
    """Without workers: at the first place, the last one and two others; tests/prove/test_every_loader.py takes all."""
    assert {} == differing_cuts(name, 0, tmp_path, ends_and_two)


@pytest.mark.parametrize("name", sample([name for name, case in CASES.items() if 2 in case.workers], 8))
def test_a_cut_changes_nothing_with_workers(name, tmp_path):
    """One cut, at random by the name of the case; tests/prove/test_every_loader.py takes all."""
    assert {} == differing_cuts(name, 2, tmp_path, lambda cuts: random.Random(name).sample(cuts, 1))


@pytest.mark.parametrize(("ahead", "nth"), [(0, 12), (1, 12), (3, 18)])
def test_a_cut_changes_nothing_whatever_a_trainer_has_fetched_ahead(tmp_path, ahead, nth):
    """Some kinds; tests/prove has all."""
    assert {} == differing_trainer_cuts(ahead, tmp_path, nth=nth)
