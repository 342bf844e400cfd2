"""Every loop, cut in every seventeenth of its passes; tests/prove/test_every_cut.py cuts each pass."""

import pytest

from holdfast import Every
from run_loops import LOOPS, cut_at_each_interval
from subjects import asked_of

pytestmark = pytest.mark.filterwarnings("error")


@pytest.mark.parametrize("every", [Every(steps=1), Every(steps=3), Every(epochs=1)], ids=repr)
def test_a_run_that_is_cut_ends_as_the_uninterrupted_one(tmp_path, every):
    """Value, generator, position, variables and metrics log, with a block and without."""
    for number, name in enumerate(LOOPS):
        with asked_of(name):
            cut_at_each_interval(tmp_path / str(number), name, 1 + number % 9, 17, every=every)
