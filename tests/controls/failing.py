"""A control for the drill: the script fails by itself, after half of its steps."""

from weights import Weights

from holdfast import Every, Run

weights = Weights()

with Run("runs/control", {"weights": weights}, every=Every(steps=4)) as run:
    for step in run.steps(24):
        weights.step(step)
        if step == 12:
            raise ValueError("no more of this")
