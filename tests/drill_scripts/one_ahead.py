"""The loop asks run.batches for a batch before it trains on the one before."""

from line import DATA, FIX, Line

from holdfast import Run

model = Line()
with Run("runs/x", {"model": model}) as run:
    for _ in run.epochs(3):
        if FIX:
            for x in run.batches(DATA):
                run.log(loss=model.step(x))
        else:
            batches = iter(run.batches(DATA))
            ahead = next(batches)
            for x in batches:
                run.log(loss=model.step(ahead))
                ahead = x
            run.log(loss=model.step(ahead))
