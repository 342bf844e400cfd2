"""The tests of the store are themselves tested: each disk call of it and of its engine removed or swapped must be noticed."""

import pytest

from faults import scratched
from mutants import EQUIVALENT, FILES, caught, changing, mutants, survivors


@pytest.mark.slow
def test_the_laws_hold_on_what_is_not_mutated():
    """Else everything would be caught."""
    with scratched("unmutated") as place:
        assert not caught(None, place / "plain")


@pytest.mark.slow
@pytest.mark.timeout(1500)  # each mutant has a minute of its own
def test_every_mutant_is_caught(record_property):
    """Except those that change nothing that anybody could ever notice; each is listed with the reason."""
    with scratched("mutants") as place:
        made, left = survivors(place)
    record_property("mutants", len(made))
    print(len(made), "mutants,", len(EQUIVALENT), "equivalent")
    assert [f"{mutant.file} {mutant.name}" for mutant in left] == []
    assert len(made) > 100


def test_the_equivalent_mutants_are_ones_that_are_made():
    """A reason whose call is gone goes, too."""
    assert set(EQUIVALENT) <= {mutant.name for mutant in mutants()}


def test_no_module_of_the_store_is_left_out():
    """Wherever a statement changes files, it is taken away and swapped; asking for cold bytes changes none."""
    assert changing() - {"store/reading.py"} == {file for file in FILES if file.startswith("store/")}
