"""Code between epochs and batches draws, for each epoch."""

import random

from line import DATA, FIX, Line

from holdfast import Every, Run

random.seed(4)
model = Line()
with Run("runs/x", {"model": model}, every=Every(steps=3)) as run:
    for _ in run.epochs(3):
        shift = random.random()
        if FIX:
            run.vars.shift = shift
        for x in run.batches(DATA):
            run.log(loss=model.step(x + (run.vars.shift if FIX else shift), noise=random.random()))
