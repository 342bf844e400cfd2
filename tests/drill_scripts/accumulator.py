"""The loss of an epoch is added up in a local, and logged after it."""

from line import DATA, FIX, Line

from holdfast import Run

model = Line()
with Run("runs/x", {"model": model}) as run:
    for _ in run.epochs(3):
        total = 0.0
        if FIX:
            run.vars.total = 0.0
        for x in run.batches(DATA):
            if FIX:
                run.vars.total += model.step(x)
            else:
                total += model.step(x)
        run.log(loss=run.vars.total if FIX else total)
