"""The script fails by itself, after half of its steps; the first save would come after ten minutes."""

import time

from line import Line

from holdfast import Run

model = Line()
with Run("runs/x", {"model": model}) as run:
    for step in run.steps(24):
        run.log(loss=model.step(step / 24), step_s=time.perf_counter())
        if step == 12:
            raise ValueError("no more of this")
