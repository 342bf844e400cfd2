"""A function counts its calls in an attribute of its own."""

from line import DATA, FIX, Line

import holdfast
from holdfast import Run


def noise():
    noise.calls += 1
    return 0.1 * noise.calls


noise.calls = 0
model = Line()
state = {"model": model, "noise": holdfast.Fields(noise, "calls")} if FIX else {"model": model}
with Run("runs/x", state) as run:
    for _ in run.epochs(3):
        for x in run.batches(DATA):
            run.log(loss=model.step(x, noise=noise()))
