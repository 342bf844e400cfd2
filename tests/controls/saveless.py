"""A control for the drill: the first save would come after ten minutes. With --repaired, after four steps."""

import sys
import time

from weights import Weights

from holdfast import Every, Run

weights = Weights()
every = Every(steps=4) if "--repaired" in sys.argv else Every(minutes=10)

with Run("runs/control", {"weights": weights}, every=every) as run:
    for step in run.steps(24):
        run.log(loss=weights.step(step), step_s=time.perf_counter())
        time.sleep(0.01)
