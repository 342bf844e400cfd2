"""A repair that is cut short at any of its changes, each of the ways it may be left in opened."""

import pytest
from test_repair_cut import cut_short


def test_a_repair_that_is_cut_at_any_change_is_finished_by_the_next(tally, monkeypatch: pytest.MonkeyPatch):
    """As the law of the same kind in tests/slow, with every picture."""
    monkeypatch.setenv("HOLDFAST_TAKE_OVER", "1")
    counts = cut_short(1)
    assert counts["opened"] == counts["different"] > 60
    tally("A repair of a run's directory is killed, or loses power", tried=counts["opened"])
