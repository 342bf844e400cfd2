"""How often the model was evaluated is counted in a local."""

from line import DATA, FIX, Line

from holdfast import Run

model, evaluations = Line(), 0
with Run("runs/x", {"model": model}, vars={"evaluations": 0} if FIX else {}) as run:
    for _ in run.epochs(4):
        for x in run.batches(DATA):
            run.log(loss=model.step(x))
        if FIX:
            run.vars.evaluations += 1
            evaluations = run.vars.evaluations
        else:
            evaluations += 1
        run.log(accuracy=-model.loss(), evaluations=evaluations)
