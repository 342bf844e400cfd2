"""A NumPy generator of the script's own is not tracked."""

import numpy as np
from line import DATA, FIX, Line

from holdfast import Run

model, rng = Line(), np.random.default_rng(3)
state = {"model": model, "rng": rng} if FIX else {"model": model}
with Run("runs/x", state) as run:
    for _ in run.epochs(3):
        for x in run.batches(DATA):
            run.log(loss=model.step(x, noise=rng.normal()))
