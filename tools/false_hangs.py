"""Measure how often a run that does not hang is told to: seeded simulations of the judge of `holdfast run`.

    python tools/false_hangs.py [--runs 200] [--steps 5000] [--seed 0] [--kinds KIND...]
        [--medians SECONDS...]

Prints one JSON line for each distribution of step times and median step: runs, and false alarms among them. The judge
is the one that the supervisor asks; time is simulated.
"""

import argparse
import json
import math
import random
from collections.abc import Callable, Iterator

from holdfast.children import steps
from holdfast.supervise.hang import HangJudge, Observation
from holdfast.supervise.signs import PHASES

STALL_S, STALLED = 300.0, 0.002  # a file system that stands still: so long, in this share of the steps
MEDIANS_S = (0.1, 1.0, 10.0, 60.0, 300.0)
Times = Iterator[tuple[str, float]]  # phases of a run, with seconds


def lognormal(sigma: float) -> Callable[[random.Random, float], float]:
    return lambda dice, median_s: median_s * math.exp(dice.gauss(0.0, sigma))


def pareto(alpha: float) -> Callable[[random.Random, float], float]:
    return lambda dice, median_s: median_s * dice.paretovariate(alpha) / 2 ** (1 / alpha)


def stalls(dice: random.Random, median_s: float) -> float:
    """Steps of lognormal time, some of which wait for the file system."""
    return lognormal(0.3)(dice, median_s) + (STALL_S if dice.random() < STALLED else 0.0)


def plain(one: Callable[[random.Random, float], float]) -> Callable[[random.Random, float, int], Times]:
    """A run with a first step that begins with a minute of its own, and then steps of these times."""

    def run(dice: random.Random, median_s: float, count: int) -> Times:
        yield steps.PHASES[steps.FIRST], 60 + one(dice, median_s)
        for _ in range(count):
            yield steps.PHASES[steps.STEP], one(dice, median_s)

    return run


def recompiled(dice: random.Random, median_s: float, count: int) -> Times:
    """A run whose first step compiles for 1 to 40 minutes; one step of 500 compiles again, for up to twice as long."""
    compiles_s = math.exp(dice.uniform(math.log(60), math.log(2400)))
    yield steps.PHASES[steps.FIRST], compiles_s
    for _ in range(count):
        again_s = compiles_s * dice.uniform(0.2, 2.0) if dice.random() < 0.002 else 0.0
        yield steps.PHASES[steps.STEP], lognormal(0.3)(dice, median_s) + again_s


KINDS: dict[str, Callable[[random.Random, float, int], Times]] = {
    "lognormal, sigma 0.5": plain(lognormal(0.5)),
    "lognormal, sigma 1": plain(lognormal(1.0)),
    "lognormal, sigma 1.5": plain(lognormal(1.5)),
    "Pareto, alpha 2": plain(pareto(2.0)),
    "Pareto, alpha 1.2": plain(pareto(1.2)),
    "stalls of 5 minutes": plain(stalls),
    "compiled again": recompiled,
}


def alarms(times: Times) -> int:
    """How often the judge tells of a hang in this run, looking as often as the supervisor does."""
    judge, found, count = HangJudge(PHASES), 0, 0
    now_s = began_s = look_s = 0.0
    ended: list[tuple[str, float]] = []
    for phase, seconds in times:
        count, ends_s = count + 1, began_s + seconds
        while look_s < ends_s:
            now_s = look_s
            found += len(judge.find_hangs(now_s, [Observation(0, count, phase, ended)]))
            ended, look_s = [], look_s + judge.interval_s
        ended.append((phase, seconds))
        began_s = ends_s
    return found


def main() -> None:
    asked = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    asked.add_argument("--runs", type=int, default=200)
    asked.add_argument("--steps", type=int, default=5000)
    asked.add_argument("--seed", type=int, default=0)
    asked.add_argument("--kinds", nargs="+", default=[*KINDS], choices=[*KINDS], metavar="KIND")
    asked.add_argument("--medians", type=float, nargs="+", default=MEDIANS_S)
    chosen = asked.parse_args()
    for kind in chosen.kinds:
        for median_s in chosen.medians:
            count = max(int(min(chosen.steps, 10 * 86400 / median_s)), 1)  # ten days at most
            found = [
                alarms(KINDS[kind](random.Random(f"{chosen.seed} {kind} {median_s} {number}"), median_s, count))
                for number in range(chosen.runs)
            ]
            line = {"steps": kind, "median_s": median_s, "runs": len(found), "alarmed": sum(map(bool, found))}
            print(json.dumps(line | {"alarms": sum(found), "steps_a_run": count}), flush=True)


if __name__ == "__main__":
    main()
