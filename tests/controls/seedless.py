"""A control for the drill: nothing is seeded, so that no two runs are alike. With --repaired there is a seed."""

import sys
import time

import numpy as np
from weights import Weights

from holdfast import Every, Run

rng = np.random.default_rng(0 if "--repaired" in sys.argv else None)
weights = Weights()

with Run("runs/control", {"weights": weights, "rng": rng}, every=Every(steps=4)) as run:
    for _ in run.steps(24):
        run.log(loss=weights.step(rng.normal()))
        time.sleep(0.01)
