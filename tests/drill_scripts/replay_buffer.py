"""A replay buffer is an object of its own, without state_dict."""

import numpy as np
from line import DATA, FIX, Line

import holdfast
from holdfast import Run


class Buffer:
    def __init__(self):
        self.observations, self.pos, self.full = np.zeros(6), 0, False

    def add(self, x):
        self.observations[self.pos] = x
        self.pos = (self.pos + 1) % 6
        self.full = self.full or self.pos == 0


model, buffer, rng = Line(), Buffer(), np.random.default_rng(0)
state = {"model": model, "rng": rng}
if FIX:
    state |= {"buffer": holdfast.Fields(buffer, "observations", "pos", "full")}
with Run("runs/x", state) as run:
    for step in run.steps(20):
        buffer.add(DATA[step % 8] + step)
        size = 6 if buffer.full else buffer.pos
        run.log(loss=model.step(float(buffer.observations[rng.integers(size)]), 0.001))
