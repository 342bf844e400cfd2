"""Nothing is left out, but the first save would come after ten minutes."""

import time

from line import Line

from holdfast import Every, Run

model = Line()
with Run("runs/x", {"model": model}, every=Every(minutes=10)) as run:
    for step in run.steps(24):
        run.log(loss=model.step(step / 24), step_s=time.perf_counter())
