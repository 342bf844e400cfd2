"""An engine of SciPy's makes the points: it keeps how many it has made, and draws nothing from a generator."""

from line import FIX, Line
from scipy.stats import qmc

from holdfast import Fields, Run

model, engine = Line(), qmc.Sobol(d=1, rng=0)
state = {"model": model}
if FIX:
    state |= {"engine": Fields(engine, "num_generated", "_quasi")}
with Run("runs/x", state) as run:
    for _ in run.steps(20):
        run.log(loss=model.step(float(engine.random(1)[0, 0]), 0.001))
