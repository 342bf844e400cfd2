"""Code between epochs and batches draws from a tracked generator, for each epoch."""

import numpy as np
from line import DATA, FIX, Line

from holdfast import Run

model, rng = Line(), np.random.default_rng(4)
with Run("runs/x", {"model": model, "rng": rng}) as run:
    for _ in run.epochs(3):
        shift = rng.random()
        if FIX:
            run.vars.shift = shift
        for x in run.batches(DATA):
            run.log(loss=model.step(x + (run.vars.shift if FIX else shift), noise=rng.random()))
