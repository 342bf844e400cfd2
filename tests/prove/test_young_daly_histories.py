"""More than a thousand histories of interruptions: `Auto` beside the best interval that a search finds in hindsight."""

import pytest

from interruptions import CELLS, UPTIMES, shown, summed, table

SEED, HISTORIES, STARTS = 20261123, 24, 40  # a seed that no choice in young_daly.py was made with


@pytest.mark.parametrize("given", [False, True], ids=["Auto()", "Auto(interrupted_hours=the mean)"])
def test_the_waste_is_within_5_percent_of_the_best_interval(given, capsys):
    """In all histories together from the first start on, and for each kind once it has seen ten interruptions."""
    assert len(UPTIMES) * CELLS * HISTORIES > 1000
    found = table(SEED, (HISTORIES, STARTS), given=given)
    with capsys.disabled():
        print("\n" + shown(found, "hours given" if given else "nothing given"))
    assert summed(found.values()).ratio < 1.05
    assert all(found[kind].learned < 1.05 for kind in UPTIMES)
    assert all(found[kind].ratio < (1.05 if given else 1.07) for kind in UPTIMES)
