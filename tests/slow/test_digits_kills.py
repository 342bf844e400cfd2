"""A few kills of the example in its phases; `make soak` makes thousands."""

from types import SimpleNamespace

import pytest

import digits_kills
import soak
from stores import having


def test_the_example_killed_in_a_few_phases_loses_nothing():
    """Whatever it was doing, what a save had returned is there, with the bits of a run that nobody kills."""
    found = list(soak.of_digits(seed=1, count=12))
    assert [""] * 12 == [each.problem for each in found]
    assert len({each.phase for each in found}) > 3


@pytest.mark.parametrize(("acknowledged", "problem"), [(6, "a newer save had returned"), (4, "")])
def test_a_save_that_had_returned_and_is_gone_is_a_problem(tmp_path, acknowledged, problem):
    """The memory that outlives the process says which save had returned: an older newest checkpoint is a loss."""
    store = having(tmp_path, 1, 2)
    asked = SimpleNamespace(notes=[0, 0, acknowledged], reference={"step-000000002": store.latest()})
    assert problem in digits_kills.Lane._compared(asked, store.checkpoints())
