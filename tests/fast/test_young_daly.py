"""How often to save: the formula, its limits, what is believed of interruptions, and the sentence that explains it."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.errors import UsageError
from holdfast.rules import Auto
from holdfast.young_daly import (
    LEAST_S,
    MOST_S,
    ChoiceWithInputs,
    IntervalLimits,
    PastStarts,
    SaveCosts,
    choose_interval,
    daly_interval_s,
    expected_uptime_s,
    explain_choice,
)
from interruptions import CELLS, UPTIMES, done_at, table

COSTS = SaveCosts(stall_s=0.3, slow_s=0.1, save_s=0.5, restart_s=95)
OFTEN = PastStarts(interruptions=400, uptime_s=400 * 3 * 3600.0)  # at random, every 3 hours


def test_the_example_of_the_documentation():
    """A save costs 0.4 s, a restart 95 s, interrupted every 3 h."""
    choice = choose_interval(COSTS, OFTEN, IntervalLimits(assumed_hours=3))
    said = explain_choice(ChoiceWithInputs(choice, COSTS, OFTEN, IntervalLimits(assumed_hours=3)))
    assert (
        "a save costs 0.4 s, a restart 95 s, interrupted every 3 h: save every 93 s; "
        "you lose 1.7%, 0.9% of it to restarts" == said
    )


@given(st.floats(1e-3, 1e3), st.floats(10.0, 1e6))
def test_no_interval_loses_less_where_interruptions_come_at_random(cost_s, mean_s):
    """Daly's series beside the exact loss: (1 - cost / T) of the work of T is kept with probability exp(-T / M)."""

    def kept(interval_s):
        return (interval_s - cost_s) / math.expm1(interval_s / mean_s) / mean_s

    found = daly_interval_s(cost_s, mean_s)
    if cost_s < mean_s / 2:
        assert kept(found) > 0.985 * max(kept(found * factor) for factor in (0.5, 0.7, 0.8, 0.9, 1.1, 1.25, 1.5, 2))
    assert found > cost_s


def test_young_and_daly_agree_where_saves_are_cheap():
    """Young's is the square root; Daly's is longer by a third of the cost."""
    assert math.sqrt(2 * 0.4 * 10800) == pytest.approx(daly_interval_s(0.4, 10800), rel=0.002)
    assert math.sqrt(2 * 1e-3 * 1e6) == pytest.approx(daly_interval_s(1e-3, 1e6), rel=1e-4)


def test_one_early_interruption_does_not_swing_it():
    """24 hours are assumed; what the caller says weighs as much as four interruptions."""
    assert 24 * 3600 == expected_uptime_s(PastStarts(), None)
    assert 3 * 3600 == expected_uptime_s(PastStarts(), 3)
    after = PastStarts().with_start(60, interrupted=True)
    assert 4 * 3600 < expected_uptime_s(after, None) < 5 * 3600
    assert 2.4 * 3600 < expected_uptime_s(after, 3) < 3 * 3600
    often = PastStarts(100, 100 * 1800.0)
    assert expected_uptime_s(often, None) == pytest.approx(1800, rel=0.12)


def test_announced_stops_count_as_time_without_an_interruption():
    """A stop, and a run's end."""
    stopped = PastStarts().with_start(7200, interrupted=False)
    assert PastStarts(0, 7200.0) == stopped
    assert expected_uptime_s(stopped, None) > expected_uptime_s(PastStarts(), None)
    assert (
        choose_interval(COSTS, stopped, IntervalLimits()).interval_s
        > choose_interval(COSTS, PastStarts(), IntervalLimits()).interval_s
    )


@pytest.mark.parametrize(
    ("costs", "around", "interval_s", "bound"),
    [
        (COSTS, IntervalLimits(left_s=100), 50, "deadline"),  # a save is durable before that of the deadline
        (COSTS, IntervalLimits(left_s=0.1), LEAST_S, "deadline"),
        (SaveCosts(0.01, 0, 300, 9), IntervalLimits(), 300, "save"),  # one is in flight at a time
        (SaveCosts(1e-9, 0, 0.01, 9), IntervalLimits(), LEAST_S, "shortest"),
        (SaveCosts(9000, 0, 9000, 9), IntervalLimits(), MOST_S, "longest"),
    ],
)
def test_the_interval_has_limits(costs, around, interval_s, bound):
    """And the sentence names them."""
    choice = choose_interval(costs, PastStarts(), around)
    assert (interval_s, bound) == (pytest.approx(choice.interval_s), choice.bound)
    assert "(" in explain_choice(ChoiceWithInputs(choice, costs, OFTEN, around)).partition("save every")[2]


def test_what_was_not_seen_is_said_to_be_assumed():
    """Nobody should take the assumption for a measurement."""
    for hours, word in [(None, "24 h (assumed: none was seen)"), (3, "3 h (as given: none was seen)")]:
        around = IntervalLimits(assumed_hours=hours)
        assert word in explain_choice(
            ChoiceWithInputs(choose_interval(COSTS, PastStarts(), around), COSTS, PastStarts(), around)
        )


@pytest.mark.parametrize("hours", [0, -1, "3", True, float("nan")])
def test_auto_takes_hours_above_0(hours):
    """Anything else is refused where it is written."""
    with pytest.raises(UsageError, match="interrupted_hours"):
        Auto(interrupted_hours=hours)


def test_simulated_histories_lose_little_more_than_with_the_best_interval():
    """A sample; tests/prove asks more than a thousand histories."""
    found = table(7, (1, 25), given=True)
    assert set(UPTIMES) == set(found)
    assert CELLS == 9
    assert all(1 / 1.05 < lost.ratio < 1.35 for lost in found.values())
    assert sum(lost.auto for lost in found.values()) < 1.12 * sum(lost.best for lost in found.values())


def test_the_simulation_counts_what_a_start_keeps():
    """By hand: restart 10 s, saves of 1 s that are durable after 3 s, one every 20 s from second 8 on."""
    costs = SaveCosts(1, 0, 3, 10)
    # with half a step: begun at 28.5 and durable at 31.5; begun at 49 and durable at 52
    assert [0, 18.5, 18.5, 38] == [float(done_at([uptime], 20, costs)[0]) for uptime in (31.4, 31.6, 51.9, 52.1)]
