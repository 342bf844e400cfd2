"""A control for the drill: noise comes from a NumPy generator that is not tracked. With --repaired it is."""

import sys
import time

import numpy as np
from weights import Weights

from holdfast import Every, Run

rng = np.random.default_rng(0)
weights = Weights()
state = {"weights": weights}
if "--repaired" in sys.argv:
    state["rng"] = rng

with Run("runs/control", state, every=Every(steps=4)) as run:
    for _ in run.epochs(3):
        for batch in run.batches([1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0]):
            loss = weights.step(batch + rng.normal())
            run.log(loss=loss)
            time.sleep(0.01)
