"""The best loss is given to run.vars, and the loop uses its own."""

from line import DATA, FIX, Line

from holdfast import Run

model, best = Line(), 9.0
with Run("runs/x", {"model": model}, vars={"best": best}) as run:
    for _ in run.epochs(3):
        for x in run.batches(DATA):
            loss = model.step(x, noise=run.vars.best if FIX else best)
            if FIX:
                run.vars.best = min(run.vars.best, loss)
            else:
                best = min(best, loss)
            run.log(loss=loss)
