"""Runs that are interrupted again and again, simulated: what `Auto` loses beside the best interval found by search.

A history is a sequence of starts. Each is restarted, saves, and is interrupted at a moment that a seed draws. What was
done after the last save that was durable then is lost. `Auto` knows of a history only what a journal tells: the starts
before, each seen alive a little before its end. The search knows all histories of a cell, and takes the one interval
that loses the least in them together.
"""

import math
from itertools import product
from typing import NamedTuple

import numpy as np

from holdfast.young_daly import MOST_S, IntervalLimits, PastStarts, SaveCosts, choose_interval

HOUR_S = 3600
STEP_S = 1.0


def weibull(shape):
    """Draws uptimes: the smaller the shape, the more of them are short."""
    return lambda mean, dice, n: mean / math.gamma(1 + 1 / shape) * dice.weibull(shape, n)


LEARNED = 10  # starts after which it is asked what was learned
UPTIMES = {
    "exponential": lambda mean, dice, n: dice.exponential(mean, n),
    **{f"Weibull {shape}": weibull(shape) for shape in (0.5, 0.7, 1.5, 2.0)},
}
MEANS_S = (HOUR_S, 6 * HOUR_S, 24 * HOUR_S)
COSTS = [  # stall, slower steps, until durable, restart
    SaveCosts(0.3, 0.1, 2.0, 95.0),
    SaveCosts(3.0, 2.0, 20.0, 30.0),
    SaveCosts(20.0, 10.0, 120.0, 300.0),
]
CELLS = len(MEANS_S) * len(COSTS)


class Lost(NamedTuple):
    """Seconds lost in all starts, and in those after the first few."""

    auto: float
    best: float
    auto_learned: float
    best_learned: float
    uptime: float

    @property
    def ratio(self):
        return self.auto / self.best

    @property
    def learned(self):
        return self.auto_learned / self.best_learned


def begun(costs):
    """When a start's intervals begin to count: most of a restart is before that."""
    return 0.8 * costs.restart_s


def done(uptimes, first_s, interval_s, costs):
    """Work that a start keeps, for each uptime: it saves first at that time, and then at this interval."""
    saves = np.maximum(np.floor((np.asarray(uptimes) - costs.save_s - first_s) / interval_s) + 1, 0)
    kept = first_s + (saves - 1) * interval_s - costs.restart_s - (saves - 1) * (costs.stall_s + costs.slow_s)
    return np.where(saves > 0, np.maximum(kept, 0), 0)


def done_at(uptimes, interval_s, costs):
    """The same, of a fixed interval: it counts from the last save, and half a step is added on average."""
    every = interval_s + STEP_S / 2
    return done(uptimes, begun(costs) + every, every, costs)


def lost_by_auto(uptimes, costs, dice, hours):
    """Seconds lost in each start of one history."""
    seen, found = PastStarts(), []
    for uptime in uptimes:
        interval_s = choose_interval(costs, seen, IntervalLimits(hours, None)).interval_s
        found.append(uptime - float(done_at(np.array([uptime]), interval_s, costs)[0]))
        unseen_s = dice.uniform(0, max(1, min(uptime / 100, 10)))
        seen = seen.with_start(max(0.0, uptime - unseen_s), interrupted=True)
    return np.array(found)


def intervals(costs):
    """What the search tries."""
    return np.geomspace(max(1, costs.save_s), MOST_S, 300)


def cell(kind, mean_s, costs, sizes, dice, *, given):
    """What all histories of one kind, mean and cost lose. `sizes`: of histories, and of starts in each."""
    histories = [np.maximum(UPTIMES[kind](mean_s, dice, sizes[1]), 1.0) for _ in range(sizes[0])]
    together = np.concatenate(histories)
    tried = intervals(costs)
    best = tried[np.argmax([done_at(together, interval, costs).sum() for interval in tried])]
    hours = mean_s / HOUR_S if given else None
    auto = [lost_by_auto(each, costs, dice, hours) for each in histories]
    searched = [each - done_at(each, best, costs) for each in histories]
    return Lost(
        auto=sum(each.sum() for each in auto),
        best=sum(each.sum() for each in searched),
        auto_learned=sum(each[LEARNED:].sum() for each in auto),
        best_learned=sum(each[LEARNED:].sum() for each in searched),
        uptime=together.sum(),
    )


def table(seed, sizes, *, given):
    """{kind of interruptions: what is lost}, where each cell counts by the part of its time that it loses."""
    found = {}
    for kind in UPTIMES:
        dice = np.random.default_rng([seed, len(found)])
        cells = [cell(kind, mean, costs, sizes, dice, given=given) for mean, costs in product(MEANS_S, COSTS)]
        parts = [Lost._make(seconds / each.uptime for seconds in each) for each in cells]
        found[kind] = summed(parts)
    return found


def summed(parts):
    """What is lost in all of them."""
    return Lost._make(map(sum, zip(*parts, strict=True)))


def shown(found, title):
    """The table as text."""
    lines = [f"{title:24} {'lost':>7} {'best':>7} {'ratio':>6} {'learned':>8}"]
    for kind, lost in {**found, "all": summed(found.values())}.items():
        part = [lost.auto / lost.uptime, lost.best / lost.uptime]
        lines.append(f"{kind:24} {part[0]:7.2%} {part[1]:7.2%} {lost.ratio:6.3f} {lost.learned:8.3f}")
    return "\n".join(lines)
