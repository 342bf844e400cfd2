"""Every loop, cut in each of its passes."""

import pytest

from holdfast import Every
from run_loops import LOOPS, cut_at_each_interval

pytestmark = [pytest.mark.usefixtures("no_syncs"), pytest.mark.filterwarnings("error")]


@pytest.mark.parametrize("every", [Every(steps=1), Every(steps=3), Every(epochs=1)], ids=repr)
@pytest.mark.parametrize("name", LOOPS)
def test_a_run_that_is_cut_in_any_pass_ends_as_the_uninterrupted_one(tmp_path, name, every):
    """The whole of what tests/slow/test_cuts.py asks of every ninth one."""
    cut_at_each_interval(tmp_path, name, 1, 1, every=every)
