"""Young and Daly: how often to save, given the costs of saves and interruptions. Pure: the caller
measures.

A save costs the loop `cost_s` (its stall, and what it slows the steps beside it), and its state is
safe `save_s` after the save began. An interruption loses what came after the last state that was
safe: on average `save_s` and half an interval. So a run that is interrupted every M seconds and
saves every T loses the part

    cost_s / T  +  (save_s + T / 2) / M  +  restart_s / M

of its time. It is least at T = sqrt(2 cost_s M) (Young); Daly's series holds also where T is not
small beside M.

Sources: J. W. Young, A first order approximation to the optimum checkpoint interval, CACM 17(9),
1974. J. T. Daly, A higher order estimate of the optimum checkpoint interval for restart dumps, FGCS
22(3), 2006, eq. 37.
"""

from __future__ import annotations

import math

import msgspec

from .legible import duration

UNKNOWN_HOURS = 24.0  # between interruptions, until some are seen
UNKNOWN_WEIGHT = 0.25  # the assumption weighs as much as so many observed interruptions
GIVEN_WEIGHT = 4.0  # the same for the caller's time
LEAST_S, MOST_S = 1.0, 6 * 3600.0  # of all intervals


class PastStarts(msgspec.Struct, frozen=True):
    """The earlier starts of a run: their total time and how many were interrupted."""

    interruptions: int = 0  # without notice
    uptime_s: float = 0.0  # of all starts

    def with_start(self, uptime_s: float, *, interrupted: bool) -> PastStarts:
        """Return these starts with one more."""
        return PastStarts(self.interruptions + interrupted, self.uptime_s + uptime_s)


class SaveCosts(msgspec.Struct, frozen=True):
    """The measured durations of saves and restarts, in seconds."""

    stall_s: float  # the loop waits for a save
    slow_s: float  # and is slower beside it, in total
    save_s: float  # from a save's beginning until it is durable
    restart_s: float  # from the start of the process to its first step


class IntervalLimits(msgspec.Struct, frozen=True):
    """The limits of the interval in one start."""

    assumed_hours: float | None = None  # between interruptions, as the caller says
    left_s: float | None = None  # until the deadline


class IntervalChoice(msgspec.Struct, frozen=True):
    """A chosen interval, and its expected costs."""

    interval_s: float
    interrupted_s: float  # the expected time between interruptions
    bound: str  # what the interval is limited by; empty: nothing
    lost: float  # the part of the time that is lost
    lost_restarting: float  # of it, to restarts


class ChoiceWithInputs(msgspec.Struct, frozen=True):
    """A chosen interval with the measurements and limits it was computed from."""

    choice: IntervalChoice
    costs: SaveCosts
    seen: PastStarts
    around: IntervalLimits


msgspec.json.Decoder(ChoiceWithInputs)  # made here for the reason that `format` has


def choose_interval(costs: SaveCosts, seen: PastStarts, around: IntervalLimits) -> IntervalChoice:
    """Return how often to save."""
    cost_s, mean_s = costs.stall_s + costs.slow_s, expected_uptime_s(seen, around.assumed_hours)
    interval_s, bound = _bounded(daly_interval_s(cost_s, mean_s), costs, around)
    lost = cost_s / interval_s + (costs.save_s + interval_s / 2) / mean_s
    restarting = costs.restart_s / mean_s
    return IntervalChoice(
        interval_s, mean_s, bound, min(1.0, lost + restarting), min(1.0, restarting)
    )


def daly_interval_s(cost_s: float, mean_s: float) -> float:
    """Return the best time from one save's beginning to the next one's,
    if interruptions come at random.
    """
    if cost_s >= 2 * mean_s:
        return mean_s + cost_s
    part = math.sqrt(cost_s / (2 * mean_s))
    return math.sqrt(2 * cost_s * mean_s) * (1 + part / 3 + part * part / 9)


def expected_uptime_s(seen: PastStarts, assumed_hours: float | None) -> float:
    """Return the expected time between interruptions: the assumption, corrected by observations.

    It is the mean of a gamma distribution of the rate, so that one early interruption does not
    change it much.
    """
    weight = UNKNOWN_WEIGHT if assumed_hours is None else GIVEN_WEIGHT
    before_s = 3600 * (UNKNOWN_HOURS if assumed_hours is None else assumed_hours)
    return (weight * before_s + seen.uptime_s) / (weight + seen.interruptions)


def _bounded(wanted_s: float, costs: SaveCosts, around: IntervalLimits) -> tuple[float, str]:
    """Return the interval within its limits, and what limits it."""
    least_s, most_s, bound = _limits(costs, around)
    if wanted_s < least_s:
        return least_s, "save" if costs.save_s > LEAST_S else "shortest"
    return (most_s, bound) if wanted_s > most_s else (wanted_s, "")


def _limits(costs: SaveCosts, around: IntervalLimits) -> tuple[float, float, str]:
    """Return the shortest and the longest interval, and what limits the longest."""
    least_s = max(LEAST_S, costs.save_s)  # one save is in flight at a time
    # one save is durable before the deadline's own
    if around.left_s is not None and around.left_s / 2 < MOST_S:
        return least_s, max(least_s, around.left_s / 2), "deadline"
    return least_s, max(least_s, MOST_S), "longest"


def explain_choice(chosen: ChoiceWithInputs) -> str:
    """Return the choice and its reasons in one sentence."""
    choice, costs, seen = chosen.choice, chosen.costs, chosen.seen
    often = f"interrupted every {duration(choice.interrupted_s)}"
    if not seen.interruptions:
        often += (
            f" ({'assumed' if chosen.around.assumed_hours is None else 'as given'}: none was seen)"
        )
    limits = {
        "save": " (no sooner: a save takes that long)",
        "shortest": " (no sooner)",
        "deadline": " (because of the deadline)",
        "longest": " (at the latest)",
    }
    return (
        f"a save costs {duration(costs.stall_s + costs.slow_s)}, "
        f"a restart {duration(costs.restart_s)}, {often}: "
        f"save every {duration(choice.interval_s)}{limits.get(choice.bound, '')}; "
        f"you lose {choice.lost:.1%}, {choice.lost_restarting:.1%} of it to restarts"
    )
