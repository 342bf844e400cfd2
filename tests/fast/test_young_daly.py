"""How often to save: the formula, its limits, what is believed of interruptions, and the sentence that explains it."""

import math
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.errors import UsageError
from holdfast.rules import Auto
from holdfast.young_daly import (
    LEAST_S,
    MOST_S,
    NEWEST,
    Around,
    Choice,
    Chosen,
    Costs,
    Seen,
    Window,
    choose,
    daly,
    expected_s,
    explain,
    is_due,
)
from interruptions import CELLS, STEP_S, UPTIMES, begun, done_at, done_by, table
from interruptions import COSTS as COSTS_OF_CELLS

COSTS = Costs(stall_s=0.3, slow_s=0.1, save_s=0.5, restart_s=95, step_s=0.1)
OFTEN = Seen(interruptions=400, uptime_s=400 * 3 * 3600.0)  # at random, every 3 hours


def test_the_example_of_the_documentation():
    """A save costs 0.4 s, a restart 95 s, interrupted every 3 h."""
    choice = choose(COSTS, OFTEN, Around(assumed_hours=3))
    said = explain(Chosen(choice, COSTS, OFTEN, Around(assumed_hours=3)))
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
    often = Seen((), 100, 100 * 1800.0)
    assert expected_s(often, None) == pytest.approx(1800, rel=0.12)


def test_announced_stops_count_as_time_without_an_interruption():
    """A stop, and a run's end."""
    stopped = Seen().after(7200, interrupted=False)
    assert Seen((), 0, 7200.0) == stopped
    assert expected_s(stopped, None) > expected_s(Seen(), None)
    assert choose(COSTS, stopped, Around()).interval_s > choose(COSTS, Seen(), Around()).interval_s


def test_only_the_newest_uptimes_are_remembered():
    """The journal's line stays short; the sums are of all."""
    seen = Seen()
    for number in range(NEWEST + 5):
        seen = seen.after(number, interrupted=True)
    assert tuple(range(5, NEWEST + 5)) == seen.uptimes_s
    assert NEWEST + 5 == seen.interruptions


@pytest.mark.parametrize(
    ("costs", "around", "interval_s", "bound"),
    [
        (COSTS, Around(left_s=100), 50, "deadline"),  # a save is durable before that of the deadline
        (COSTS, Around(left_s=0.1), LEAST_S, "deadline"),
        (Costs(0.01, 0, 300, 9, 1), Around(), 300, "save"),  # one is in flight at a time
        (Costs(1e-9, 0, 0.01, 9, 1), Around(), LEAST_S, "shortest"),
        (Costs(9000, 0, 9000, 9, 1), Around(), MOST_S, "longest"),
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
        around = Around(assumed_hours=hours)
        assert word in explain(Chosen(choose(COSTS, Seen(), around), COSTS, Seen(), around))


def saves_begun(choice, begun_s, uptime_s):
    """When saves begin if each second is a safe point."""
    found = [begun_s]
    for now in range(math.ceil(begun_s), uptime_s):
        if is_due(choice, begun_s, found[-1], now):
            found.append(now)
    return found[1:]


def regular(*uptimes):
    seen = Seen()
    for each in uptimes:
        seen = seen.after(each, interrupted=True)
    return seen


EXACT, LOOSE = regular(3600, 3601, 3599), regular(3600, 3700, 3500, 3650, 3550)


def test_the_last_save_is_durable_just_before_a_periodic_interruption():
    """After three interruptions at nearly the same age, and not after two."""
    costs, around = Costs(3, 2, 20, 30, 1), Around(begun_s=24)
    assert choose(costs, regular(3600, 3601), around).window is None
    choice = choose(costs, EXACT, around)
    durable = 24 + choice.window.from_s + costs.step_s + costs.save_s
    assert 3580 < durable < 3599
    assert choice.window.before_s == choice.window.from_s  # it is the only one until then
    said = explain(Chosen(choice, costs, EXACT, around))
    assert "interrupted every 60 min as regularly as a clock: save every 59 min, and every 20 s around then; " in said


def test_around_a_time_that_differs_saves_are_frequent():
    """In the window, and rare before it; that loses less than one interval."""
    costs = Costs(20, 10, 120, 300, 1)
    choice, random = choose(costs, LOOSE, Around()), choose(costs, Seen((), 500, 500 * 3600.0), Around())
    assert choice.window.from_s < min(LOOSE.uptimes_s)
    assert choice.window.until_s > max(LOOSE.uptimes_s)
    assert choice.window.within_s < random.interval_s < choice.window.before_s
    assert choice.lost < 0.75 * random.lost


def test_after_the_window_the_interval_is_the_usual_one():
    """If the interruption does not come this time, saves neither stop nor remain so frequent."""
    choice = choose(Costs(20, 10, 120, 300, 1), LOOSE, Around())
    times = saves_begun(choice, 24.0, 10000)
    after = [each for each in times if each > 24 + choice.window.until_s + choice.interval_s]
    assert len(after) > 5
    assert all(abs(late - early - choice.interval_s) <= 1 for early, late in pairwise(after))


def test_unequal_times_are_not_periodic():
    """Even if there are many."""
    assert choose(COSTS, regular(3600, 200, 9000, 3600, 3700), Around()).window is None
    assert choose(COSTS, regular(3600, 4000, 3200), Around()).window is None


def test_there_is_a_window_only_if_that_loses_less():
    """Not before so short a time that no interval fits."""
    assert choose(COSTS, regular(1.2, 1.2, 1.2), Around()).window is None
    assert choose(Costs(1, 0, 1000, 9, 1), regular(1005, 1005, 1005), Around(begun_s=5)).window is None


def test_a_deadline_limits_periodic_intervals_too():
    """At least one save is durable before it."""
    choice = choose(Costs(3, 2, 20, 30, 1), regular(3600, 3600, 3600), Around(left_s=1000))
    assert choice.window is not None
    assert max(choice.interval_s, choice.window.before_s, choice.window.within_s) <= 500


def test_intervals_count_from_the_last_save_or_if_periodic_from_the_beginning():
    """A new best in between must not push the last save behind the interruption."""
    usual = Choice(100, 3600, bound="", lost=0, lost_restarting=0)
    aligned = Choice(300, 3600, bound="", lost=0, lost_restarting=0, window=Window(3000, 3100, 100, 10))
    assert [False, True] == [is_due(usual, 5, 150, now) for now in (249, 251)]
    assert [False, True] == [is_due(aligned, 5, 150, now) for now in (204, 206)]
    assert not is_due(aligned, 5, 206, 207)


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
    assert all((0.6 if "+-5%" in kind else 1 / 1.05) < lost.ratio < 1.35 for kind, lost in found.items())
    assert sum(lost.auto for lost in found.values()) < 1.12 * sum(lost.best for lost in found.values())


def test_the_simulation_counts_what_a_start_keeps():
    """By hand: restart 10 s, saves of 1 s that are durable after 3 s, one every 20 s from second 8 on."""
    costs = Costs(1, 0, 3, 10, STEP_S)
    # with half a step: begun at 28.5 and durable at 31.5; begun at 49 and durable at 52
    assert [0, 18.5, 18.5, 38] == [float(done_at([uptime], 20, costs)[0]) for uptime in (31.4, 31.6, 51.9, 52.1)]


@pytest.mark.parametrize("seen", [EXACT, LOOSE])
@pytest.mark.parametrize("costs", COSTS_OF_CELLS)
def test_the_simulation_saves_when_a_run_does(seen, costs):
    """The search's and the choice's formula, beside a run that is asked at each second."""
    choice = choose(costs, seen, Around(begun_s=begun(costs)))
    assert choice.window is not None
    for uptime in (3400, 3590, 3700, 5000):
        times = [each for each in saves_begun(choice, begun(costs), uptime) if each + costs.save_s <= uptime]
        kept = times[-1] - costs.restart_s - (len(times) - 1) * (costs.stall_s + costs.slow_s) if times else 0
        assert done_by(choice, uptime, costs) == pytest.approx(max(0, kept), abs=1.5)
