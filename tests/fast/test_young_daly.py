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
    Chosen,
    Costs,
    Limits,
    Seen,
    choose,
    daly,
    expected_s,
    explain,
)
from interruptions import CELLS, UPTIMES, done_at, table

COSTS = Costs(stall_s=0.3, slow_s=0.1, save_s=0.5, restart_s=95)
OFTEN = Seen(interruptions=400, uptime_s=400 * 3 * 3600.0)  # at random, every 3 hours


def test_the_example_of_the_documentation():
    """A save costs 0.4 s, a restart 95 s, interrupted every 3 h."""
    choice = choose(COSTS, OFTEN, Limits(assumed_hours=3))
    said = explain(Chosen(choice, COSTS, OFTEN, Limits(assumed_hours=3)))
    assert (
        "a save costs 0.4 s, a restart 95 s, interrupted every 3 h: save every 93 s; "
        "you lose 1.7%, 0.9% of it to restarts" == said
    )


@given(st.floats(1e-3, 1e3), st.floats(10.0, 1e6))
def test_no_interval_loses_less_where_interruptions_come_at_random(cost_s, mean_s):
    """Daly's series beside the exact loss: (1 - cost / T) of the work of T is kept with probability exp(-T / M)."""

    def kept(interval_s):
        return (interval_s - cost_s) / math.expm1(interval_s / mean_s) / mean_s

    found = daly(cost_s, mean_s)
    if cost_s < mean_s / 2:
        assert kept(found) > 0.985 * max(kept(found * factor) for factor in (0.5, 0.7, 0.8, 0.9, 1.1, 1.25, 1.5, 2))
    assert found > cost_s


def test_young_and_daly_agree_where_saves_are_cheap():
    """Young's is the square root; Daly's is longer by a third of the cost."""
    assert math.sqrt(2 * 0.4 * 10800) == pytest.approx(daly(0.4, 10800), rel=0.002)
    assert math.sqrt(2 * 1e-3 * 1e6) == pytest.approx(daly(1e-3, 1e6), rel=1e-4)


def test_one_early_interruption_does_not_swing_it():
    """24 hours are assumed; what the caller says weighs as much as four interruptions."""
    assert 24 * 3600 == expected_s(Seen(), None)
    assert 3 * 3600 == expected_s(Seen(), 3)
    after = Seen().after(60, interrupted=True)
    assert 4 * 3600 < expected_s(after, None) < 5 * 3600
    assert 2.4 * 3600 < expected_s(after, 3) < 3 * 3600
    often = Seen(100, 100 * 1800.0)
    assert expected_s(often, None) == pytest.approx(1800, rel=0.12)


def test_announced_stops_count_as_time_without_an_interruption():
    """A stop, and a run's end."""
    stopped = Seen().after(7200, interrupted=False)
    assert Seen(0, 7200.0) == stopped
    assert expected_s(stopped, None) > expected_s(Seen(), None)
    assert choose(COSTS, stopped, Limits()).interval_s > choose(COSTS, Seen(), Limits()).interval_s


@pytest.mark.parametrize(
    ("costs", "around", "interval_s", "bound"),
    [
        (COSTS, Limits(left_s=100), 50, "deadline"),  # a save is durable before that of the deadline
        (COSTS, Limits(left_s=0.1), LEAST_S, "deadline"),
        (Costs(0.01, 0, 300, 9), Limits(), 300, "save"),  # one is in flight at a time
        (Costs(1e-9, 0, 0.01, 9), Limits(), LEAST_S, "shortest"),
        (Costs(9000, 0, 9000, 9), Limits(), MOST_S, "longest"),
    ],
)
def test_the_interval_has_limits(costs, around, interval_s, bound):
    """And the sentence names them."""
    choice = choose(costs, Seen(), around)
    assert (interval_s, bound) == (pytest.approx(choice.interval_s), choice.bound)
    assert "(" in explain(Chosen(choice, costs, OFTEN, around)).partition("save every")[2]


def test_what_was_not_seen_is_said_to_be_assumed():
    """Nobody should take the assumption for a measurement."""
    for hours, word in [(None, "24 h (assumed: none was seen)"), (3, "3 h (as given: none was seen)")]:
        around = Limits(assumed_hours=hours)
        assert word in explain(Chosen(choose(COSTS, Seen(), around), COSTS, Seen(), around))


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
    costs = Costs(1, 0, 3, 10)
    # with half a step: begun at 28.5 and durable at 31.5; begun at 49 and durable at 52
    assert [0, 18.5, 18.5, 38] == [float(done_at([uptime], 20, costs)[0]) for uptime in (31.4, 31.6, 51.9, 52.1)]
