"""Every third index of enumerate makes one more step."""

from line import DATA, FIX, Line

from holdfast import Run

model = Line()
with Run("runs/x", {"model": model}) as run:
    for _ in run.epochs(3):
        for i, x in run.enumerate(DATA) if FIX else enumerate(run.batches(DATA)):
            loss = model.step(x)
            if i % 3 == 2:
                model.step(0.5)
            run.log(loss=loss)
