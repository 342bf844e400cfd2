"""run.epochs is forgotten."""

from line import DATA, FIX, Line

from holdfast import Run

model = Line()
with Run("runs/x", {"model": model}) as run:
    for _ in run.epochs(3) if FIX else range(3):
        for x in run.batches(DATA):
            run.log(loss=model.step(x))
