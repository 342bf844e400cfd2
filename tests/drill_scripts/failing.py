"""The script fails by itself, after half of its steps."""

from line import Line

from holdfast import Every, Run

model = Line()
with Run("runs/x", {"model": model}, every=Every(steps=4)) as run:
    for step in run.steps(24):
        model.step(step / 24)
        if step == 12:
            raise ValueError("no more of this")
