"""The clock decides when the learning rate falls."""

import time

from line import DATA, FIX, Line

from holdfast import Run

model, lr = Line(), 0.1
began = time.time()
with Run("runs/x", {"model": model}, vars={"lr": 0.1}) as run:
    for _ in run.epochs(3):
        for x in run.batches(DATA):
            if not FIX and (time.time() * 1000) % 7 < 3:
                run.vars.lr *= 0.9
            if FIX and run.step % 7 < 3:
                run.vars.lr *= 0.9
            run.log(loss=model.step(x, run.vars.lr))
