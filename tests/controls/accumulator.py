"""A control for the drill: the loop adds up its losses in a variable of its own. With --repaired, in run.vars."""

import sys
import time

from weights import Weights

from holdfast import Every, Run

weights, total = Weights(), 0.0

with Run("runs/control", {"weights": weights}, every=Every(steps=4), vars={"total": 0.0}) as run:
    for _ in run.epochs(3):
        for batch in run.batches([1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0]):
            loss = weights.step(batch)
            total += loss
            run.vars.total += loss
            run.log(mean_loss=(run.vars.total if "--repaired" in sys.argv else total) / (run.step + 1))
            time.sleep(0.01)
