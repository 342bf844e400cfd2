"""The code behind the batch loop divides by what only the loop's body counts."""

from line import DATA, Line

from holdfast import Run

model = Line()
with Run("runs/x", {"model": model}) as run:
    for _ in run.epochs(4):
        count = 0
        for x in run.batches(DATA):
            model.step(x)
            count += 1
        model.step(0.5 + 0 * (1 // count))
