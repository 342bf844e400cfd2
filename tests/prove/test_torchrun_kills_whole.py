"""One rank is killed in each phase of a step, of a save, of a restore; `python tests/rank_kills.py 100` strikes every
kind of
instant there is.
"""

import pytest

from rank_kills import INSTANTS, ask, nth_of, undisturbed_run  # noqa: F401  a fixture


@pytest.mark.parametrize(("kind", "rank", "launch"), INSTANTS[3:])
def test_a_rank_that_is_killed_in_any_phase_takes_nothing_with_it(undisturbed, tmp_path, tally, kind, rank, launch):
    """The others end by themselves; every checkpoint is read by every rank; the same bits in the end."""
    assert ask(undisturbed, tmp_path / "run", nth_of(undisturbed, kind, rank, launch))
    tally("One of several ranks is killed in a run", tried=1)
