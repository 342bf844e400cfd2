"""A control for the drill: every third index of an epoch makes one more pass through a normalization that keeps a running
mean; `enumerate` begins anew after a resume. With --repaired, the index is kept in run.vars.
"""

import sys

from weights import Weights

from holdfast import Every, Run

EVERY = int(next((word for word in sys.argv[1:] if word.isdecimal()), 6))
BATCHES = [float(number) for number in range(18)]


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


weights, norm = Weights(), Norm()

with Run("runs/control", {"weights": weights, "norm": norm}, every=Every(steps=EVERY), vars={"index": 0}) as run:
    for _ in run.epochs(2):
        for index, batch in enumerate(run.batches(BATCHES)):
            seen = run.vars.index % len(BATCHES) if "--repaired" in sys.argv else index
            if seen % 3 == 0:
                norm(batch)
            run.vars.index += 1
            run.log(loss=weights.step(norm(batch)))
