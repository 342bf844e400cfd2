"""The next batch is drawn at the end of a step, as nanoGPT does it."""

import random

from line import DATA, FIX, Line

from holdfast import Run

random.seed(1)
model = Line()
with Run("runs/x", {"model": model}) as run:
    if FIX:
        run.vars.ahead = random.choice(DATA)
        for _ in run.steps(20):
            run.log(loss=model.step(run.vars.ahead))
            run.vars.ahead = random.choice(DATA)
    else:
        ahead = random.choice(DATA)
        for _ in run.steps(20):
            run.log(loss=model.step(ahead))
            ahead = random.choice(DATA)
