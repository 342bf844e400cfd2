"""An environment with a generator of its own, as gymnasium has them."""

import numpy as np
from line import FIX, Line

import holdfast
from holdfast import Run


class Environment:
    def reset(self, seed):
        self.np_random, self.state, self.elapsed = np.random.default_rng(seed), 0.5, 0
        return self.state

    def step(self, action):
        self.state, self.elapsed = 0.9 * self.state + action + self.np_random.normal() * 0.1, self.elapsed + 1
        return self.state


model, env = Line(), Environment()
env.reset(seed=7)
state = {"model": model}
if FIX:
    state |= {"env_np_random": env.np_random, "env": holdfast.Fields(env, "state", "elapsed")}
with Run("runs/x", state) as run:
    for _ in run.steps(24):
        observation = env.step(0.1 * model.a)
        run.log(loss=model.step(observation, 0.01), elapsed=env.elapsed)
