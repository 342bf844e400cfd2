"""Young and Daly: how often to save, from what saves and interruptions cost. Pure: the caller measures.

A save costs the loop `cost_s` (its stall, and what it slows the steps beside it), and its state is safe `save_s` after
the save began. An interruption loses what came after the last state that was safe: on average `save_s` and half an
interval. So a run that is interrupted every M seconds and saves every T loses the part

    cost_s / T  +  (save_s + T / 2) / M  +  restart_s / M

of its time. It is least at T = sqrt(2 cost_s M) (Young); Daly's series holds also where T is not small beside M.

A run that is interrupted periodically saves rarely until a window around the expected moment, and often in it: the
window has the length W, its interval is sqrt(2 cost_s W), and an interruption before it loses a long interval.

Sources: J. W. Young, A first order approximation to the optimum checkpoint interval, CACM 17(9), 1974.
J. T. Daly, A higher order estimate of the optimum checkpoint interval for restart dumps, FGCS 22(3), 2006, eq. 37.
"""

from __future__ import annotations

import math
from statistics import NormalDist, fmean, stdev
from typing import NamedTuple

import msgspec

UNKNOWN_HOURS = 24.0  # between interruptions, until some are seen
UNKNOWN_WEIGHT = 0.25  # so many interruptions, seen in their mean time, say as much as that assumption
GIVEN_WEIGHT = 4.0  # and as much as the time that the caller gives
RARE_HOURS = 3700.0  # five months: between other interruptions of a run that is interrupted periodically
LEAST_S, MOST_S = 1.0, 6 * 3600.0  # of all intervals
DATED_S = 0.1  # uptimes are rounded to this
PERIODIC = 0.04  # uptimes whose standard deviation is at most this part of their mean are nearly equal
PERIODS = 3  # at least so many interruptions, of nearly equal starts, are periodic
EARLY = [part / 2 for part in range(13)]  # standard deviations: so long before the expected moment a window may begin
NEWEST = 20  # starts whose uptimes are remembered
_UNITS = ((86400, "days"), (3600, "h"), (60, "min"))


class Seen(msgspec.Struct, frozen=True):
    """The starts of a run that are over."""

    uptimes_s: tuple[float, ...] = ()  # of the newest ones that were interrupted without notice, oldest first
    interruptions: int = 0  # of all starts
    uptime_s: float = 0.0  # of all starts

    def after(self, uptime_s: float, *, interrupted: bool) -> Seen:
        """Return this with one more start."""
        uptimes = (*self.uptimes_s, round(uptime_s, 1))[-NEWEST:] if interrupted else self.uptimes_s
        return Seen(uptimes, self.interruptions + interrupted, self.uptime_s + uptime_s)


class Costs(msgspec.Struct, frozen=True):
    """What was measured, in seconds."""

    stall_s: float  # the loop waits for a save
    slow_s: float  # and is slower beside it, in total
    save_s: float  # from a save's beginning until it is durable
    restart_s: float  # from the start of the process to its first step
    step_s: float


class Around(msgspec.Struct, frozen=True):
    """What limits the choice of one start."""

    assumed_hours: float | None = None  # between interruptions, as the caller says
    left_s: float | None = None  # until the deadline
    begun_s: float = 0.0  # from the attempt's beginning to the moment from which its intervals count


class Window(msgspec.Struct, frozen=True):
    """When a periodic interruption is expected, in seconds from where the intervals count."""

    from_s: float
    until_s: float
    before_s: float  # the interval until then: a save begins when the window begins
    within_s: float  # the interval in it


class Choice(msgspec.Struct, frozen=True):
    """An interval, and what is to be expected of it."""

    interval_s: float
    interrupted_s: float  # the expected time between interruptions
    bound: str  # what the interval is limited by; empty: nothing
    lost: float  # the part of the time that is lost
    lost_restarting: float  # of it, to restarts
    window: Window | None = None  # if interruptions are periodic: until its end, its intervals count


class Chosen(msgspec.Struct, frozen=True):
    """A choice with all that it was made from."""

    choice: Choice
    costs: Costs
    seen: Seen
    around: Around


msgspec.json.Decoder(Chosen)  # made here for the reason that `format` has


def choose(costs: Costs, seen: Seen, around: Around) -> Choice:
    """Return how often to save."""
    cost_s, mean_s = costs.stall_s + costs.slow_s, expected_s(seen, around.assumed_hours)
    interval_s, bound = _bounded(daly(cost_s, mean_s), costs, around)
    lost, window = cost_s / interval_s + (costs.save_s + interval_s / 2) / mean_s, None
    planned = _planned(costs, seen, around)
    if planned is not None and planned.lost_s / planned.mean_s < lost:
        window, mean_s, bound = planned.window, planned.mean_s, ""
        lost = planned.lost_s / mean_s
    restarting = costs.restart_s / mean_s
    return Choice(interval_s, mean_s, bound, min(1.0, lost + restarting), min(1.0, restarting), window)


def daly(cost_s: float, mean_s: float) -> float:
    """Return the best time from one save's beginning to the next one's, if interruptions come at random."""
    if cost_s >= 2 * mean_s:
        return mean_s + cost_s
    part = math.sqrt(cost_s / (2 * mean_s))
    return math.sqrt(2 * cost_s * mean_s) * (1 + part / 3 + part * part / 9)


def expected_s(seen: Seen, assumed_hours: float | None) -> float:
    """Return the time between interruptions to expect: what was assumed before, corrected by what was seen.

    It is the mean of a gamma distribution of the rate, so that one early interruption does not change it much.
    """
    weight = UNKNOWN_WEIGHT if assumed_hours is None else GIVEN_WEIGHT
    before_s = 3600 * (UNKNOWN_HOURS if assumed_hours is None else assumed_hours)
    return (weight * before_s + seen.uptime_s) / (weight + seen.interruptions)


def is_due(choice: Choice, begun_s: float, last_s: float, now_s: float) -> bool:
    """Whether to save now. The intervals of periodic interruptions count from `begun_s`, others from the last save."""
    if choice.window is None:
        return now_s - last_s >= choice.interval_s
    return math.floor(_intervals(choice, choice.window, now_s - begun_s)) > math.floor(
        _intervals(choice, choice.window, last_s - begun_s)
    )


def _intervals(choice: Choice, window: Window, age_s: float) -> float:
    """Return how many intervals are over."""
    within_s = max(0.0, min(age_s, window.until_s) - window.from_s)
    after_s = max(0.0, age_s - window.until_s)
    return min(age_s, window.from_s) / window.before_s + within_s / window.within_s + after_s / choice.interval_s


class _Planned(NamedTuple):
    """A window, and the seconds that are lost until the next interruption, expected after `mean_s`."""

    lost_s: float
    mean_s: float
    window: Window


def _planned(costs: Costs, seen: Seen, around: Around) -> _Planned | None:
    """Return the window that loses the least; None if interruptions are not periodic, or too few were seen.

    Their times are taken as normally distributed; that of the next one is less certain than they differ, the more so
    the fewer were seen.
    """
    times = seen.uptimes_s[-NEWEST // 2 :]
    count = len(times)
    if count < PERIODS or stdev(times) > PERIODIC * fmean(times):
        return None
    spread_s = stdev(times) * math.sqrt(1 + 1 / count) * count / (count - 1) + costs.step_s / 3
    expected = NormalDist(fmean(times), max(spread_s, DATED_S))
    rare = 1 / (3600 * RARE_HOURS + seen.uptime_s)
    plans = [_window(costs, around, expected, early * expected.stdev, rare) for early in EARLY]
    return min(filter(None, plans), key=lambda plan: plan.lost_s, default=None)


def _window(costs: Costs, around: Around, expected: NormalDist, early_s: float, rare: float) -> _Planned | None:
    """Return the window that begins so long before the expected moment; None if no interval fits before it.

    `rare`: other interruptions, per second.
    """
    cost_s, (least_s, most_s, _) = costs.stall_s + costs.slow_s, _limits(costs, around)
    safe_s = expected.mean - early_s  # the save at the window's beginning is durable
    from_s = safe_s - around.begun_s - costs.save_s - costs.step_s / 2
    if from_s < least_s:
        return None
    missed = expected.cdf(safe_s)
    wanted_s = math.sqrt(2 * cost_s * from_s / (2 * missed + from_s * rare))
    most = int(from_s / least_s)
    saves = max(math.ceil(from_s / most_s), min(most, round(from_s / max(least_s, wanted_s))), 1)
    if saves > most:
        return None
    before_s = from_s / saves
    left_s = early_s * (1 - missed) + expected.variance * expected.pdf(safe_s)  # on average, from then on
    within_s = min(most_s, max(least_s, costs.step_s, math.sqrt(2 * cost_s * left_s)))
    lost_s = saves * cost_s + (missed + from_s * rare / 2) * before_s
    lost_s += min(left_s, cost_s * left_s / within_s + within_s / 2) + costs.save_s + costs.step_s / 2
    window = Window(from_s, expected.mean + early_s - around.begun_s, before_s, within_s)
    return _Planned(lost_s, expected.mean, window)


def _bounded(wanted_s: float, costs: Costs, around: Around) -> tuple[float, str]:
    """Return the interval within its limits, and what limits it."""
    least_s, most_s, bound = _limits(costs, around)
    if wanted_s < least_s:
        return least_s, "save" if costs.save_s > LEAST_S else "shortest"
    return (most_s, bound) if wanted_s > most_s else (wanted_s, "")


def _limits(costs: Costs, around: Around) -> tuple[float, float, str]:
    """Return the shortest and the longest interval, and what limits the longest."""
    least_s = max(LEAST_S, costs.save_s)  # one save is in flight at a time
    if around.left_s is not None and around.left_s / 2 < MOST_S:  # one save is durable before the deadline's own
        return least_s, max(least_s, around.left_s / 2), "deadline"
    return least_s, max(least_s, MOST_S), "longest"


def explain(chosen: Chosen) -> str:
    """Return the choice and its reasons in one sentence."""
    choice, costs, seen = chosen.choice, chosen.costs, chosen.seen
    often, every = f"interrupted every {_span(choice.interrupted_s)}", _span(choice.interval_s)
    if choice.window is not None:
        often += " as regularly as a clock"
        every = f"{_span(choice.window.before_s)}, and every {_span(choice.window.within_s)} around then"
    elif not seen.interruptions:
        often += f" ({'assumed' if chosen.around.assumed_hours is None else 'as given'}: none was seen)"
    limits = {
        "save": " (no sooner: a save takes that long)",
        "shortest": " (no sooner)",
        "deadline": " (because of the deadline)",
        "longest": " (at the latest)",
    }
    return (
        f"a save costs {_span(costs.stall_s + costs.slow_s)}, a restart {_span(costs.restart_s)}, {often}: "
        f"save every {every}{limits.get(choice.bound, '')}; "
        f"you lose {choice.lost:.1%}, {choice.lost_restarting:.1%} of it to restarts"
    )


def _span(seconds: float) -> str:
    """Return a time as people say it: 0.4 s, 95 s, 7.5 min, 3 h."""
    size, unit = next((each for each in _UNITS if seconds >= 2 * each[0]), (1, "s"))
    value = seconds / size
    return f"{value:.0f} {unit}" if value >= 9.95 else f"{value:.2g} {unit}"
