"""CMA-ES by asking and telling. What was computed is the state: a start asks and tells the same again, which takes
milliseconds, and computes nothing twice. The same holds for every optimizer with ask and tell.
"""

import cma
import numpy as np

from holdfast import Every, Last, Run


def cost(x):
    return float(np.sum((np.asarray(x) - 1) ** 2))


draws = np.random.default_rng(7)  # a new one at each start, as the strategy
options = {"seed": float("nan"), "randn": lambda *shape: draws.standard_normal(shape), "verbose": -9}
strategy = cma.CMAEvolutionStrategy([0.5] * 4, 0.3, options)
costs = []  # of each generation
with Run("runs/cma", {"costs": costs}, keep=Last(3), every=Every(steps=3)) as run:
    for known in costs:
        strategy.tell(strategy.ask(), known)
    for _ in run.steps(40):
        points = strategy.ask()
        costs.append([cost(x) for x in points])
        strategy.tell(points, costs[-1])
        run.log(best=strategy.result.fbest)
print("best", strategy.result.xbest)
