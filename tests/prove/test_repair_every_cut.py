"""A repair that is cut short at any of its changes, each of the ways it may be left in opened."""

import pytest
from test_repair_cut import blind, cut_short


def test_a_repair_that_is_cut_at_any_change_is_finished_by_the_next(tally, monkeypatch: pytest.MonkeyPatch):
    """As the law of the same kind in tests/slow, with every picture."""
    monkeypatch.setenv("HOLDFAST_TAKE_OVER", "1")
    counts = cut_short(1)
    assert counts["opened"] == counts["different"] > 60
    tally("A repair of a run's directory is killed, or loses power", tried=counts["opened"])


def test_a_read_that_fails_at_any_look_of_a_repair_harms_nothing(tally, monkeypatch: pytest.MonkeyPatch):
    """As the law of the same kind in tests/slow, at every third look."""
    monkeypatch.setenv("HOLDFAST_TAKE_OVER", "1")
    struck = blind(3)["struck"]
    assert struck > 30
    tally("The disk cannot be read during a repair", tried=struck)
