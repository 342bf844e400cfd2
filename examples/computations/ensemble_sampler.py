"""A chain of emcee's ensemble sampler: its walkers, its generator and the samples so far are the state."""

import emcee
import numpy as np
from emcee.state import State

from holdfast import Every, Last, Run

WALKERS, DIMENSIONS = 16, 3


def log_density(x):
    return -0.5 * np.sum(x * x / np.arange(1, DIMENSIONS + 1))


sampler = emcee.EnsembleSampler(WALKERS, DIMENSIONS, log_density)
random = np.random.RandomState(42)  # of the moves
start = np.random.default_rng(0).normal(size=(WALKERS, DIMENSIONS))
chain = {"walkers": start, "densities": None, "samples": []}
with Run("runs/emcee", {"chain": chain, "random": random}, keep=Last(3), every=Every(steps=5)) as run:
    for _ in run.steps(40):
        state = State(chain["walkers"], log_prob=chain["densities"], random_state=random.get_state())
        *_, end = sampler.sample(state, iterations=20, store=False)
        random.set_state(end.random_state)
        chain["walkers"], chain["densities"] = end.coords, end.log_prob
        chain["samples"].append(end.coords.copy())
        run.log(mean=float(end.coords.mean()))
print("mean", np.mean(chain["samples"], axis=(0, 1)))
