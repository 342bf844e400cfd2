"""A chain of PyMC's NUTS: the step method tells its whole state, and the draws are a list."""

import dataclasses

import numpy as np

import pymc as pm
from holdfast import Every, Last, Run

TUNE, STEPS = 60, 120


def told(state):
    """The fields of a state that may change, as plain values."""
    if not dataclasses.is_dataclass(state):
        return state._asdict() if hasattr(state, "_asdict") else state
    return {
        each.name: told(getattr(state, each.name))
        for each in dataclasses.fields(state)
        if not each.metadata.get("frozen")
    }


def filled(state, values):
    """The same state with these values."""
    if not dataclasses.is_dataclass(state):
        return type(state)(**values) if hasattr(state, "_asdict") else values
    return dataclasses.replace(state, **{name: filled(getattr(state, name), value) for name, value in values.items()})


class Sampler:
    """A step method, as a run saves it."""

    def __init__(self, step):
        self.step = step

    def state_dict(self):
        return told(self.step.sampling_state)

    def load_state_dict(self, values):
        self.step.sampling_state = filled(self.step.sampling_state, values)


with pm.Model() as model:
    mean = pm.Normal("mean", 0, 1)
    scale = pm.HalfNormal("scale", 1)
    pm.Normal("seen", mean, scale, observed=np.array([0.5, 1.0, -0.3, 2.0]))
    nuts = pm.NUTS(rng=np.random.default_rng(42))
chain = {"point": model.initial_point(random_seed=7), "draws": []}
with Run("runs/pymc", {"sampler": Sampler(nuts), "chain": chain}, keep=Last(3), every=Every(steps=10)) as run:
    for step in run.steps(STEPS):
        if step == TUNE:
            nuts.stop_tuning()
        chain["point"], _ = nuts.step(chain["point"])
        if step >= TUNE:
            chain["draws"].append(float(chain["point"]["mean"]))
        run.log(mean=float(chain["point"]["mean"]))
print("mean", np.mean(chain["draws"]))
