"""Every kind of loader without workers, cut in two places; tests/slow/test_loader_matrix.py cuts all of them everywhere."""

import pytest

from loader_cases import CASES, differing_cuts
from subjects import asked_of

pytestmark = [
    pytest.mark.usefixtures("no_syncs"),
    pytest.mark.filterwarnings("ignore:'set_vital' is deprecated"),  # torchdata's own
]


def test_a_cut_changes_nothing_for_any_kind_of_loader(tmp_path):
    """In the middle of an epoch and at an end of one: from case to case another batch."""
    for number, name in enumerate(name for name, case in CASES.items() if 0 in case.workers):
        with asked_of(name):
            chosen = lambda cuts, n=number: [cuts[at] for at in sorted({n % len(cuts), (2 * n + 3) % len(cuts)})]
            assert {} == differing_cuts(name, 0, tmp_path / str(number), chosen)
