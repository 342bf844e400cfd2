"""The learning rate is a number that the loop makes smaller."""

from line import DATA, FIX, Line

from holdfast import Run

model, lr = Line(), 0.1
with Run("runs/x", {"model": model}, vars={"lr": lr} if FIX else {}) as run:
    for _ in run.epochs(3):
        for x in run.batches(DATA):
            run.log(loss=model.step(x, run.vars.lr if FIX else lr))
        if FIX:
            run.vars.lr *= 0.7
        else:
            lr *= 0.7
