"""Every third index of an epoch makes one more pass through a normalization that keeps a running mean; `enumerate`
begins anew after a resume. The first argument is the interval of saves.
"""

import sys

from line import FIX, Line

from holdfast import Every, Run

BATCHES = [number / 18 for number in range(18)]


class Norm:
    """Keeps a running mean, as batch norm does in its forward pass."""

    def __init__(self):
        self.mean = 0.0

    def __call__(self, batch):
        self.mean += 0.1 * (batch - self.mean)
        return batch - self.mean

    def state_dict(self):
        return {"mean": self.mean}

    def load_state_dict(self, state):
        self.mean = state["mean"]


model, norm = Line(), Norm()
every = Every(steps=int(sys.argv[1]))
with Run("runs/x", {"model": model, "norm": norm}, every=every, vars={"index": 0}) as run:
    for _ in run.epochs(2):
        for index, batch in enumerate(run.batches(BATCHES)):
            if (run.vars.index % len(BATCHES) if FIX else index) % 3 == 0:
                norm(batch)
            run.vars.index += 1
            run.log(loss=model.step(norm(batch)))
