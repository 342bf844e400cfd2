"""Containers in an environment: each kind comes back, or is refused. Asserted here, in one process."""

import json
import random
from collections import deque
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from stable_baselines3 import PPO
from stable_baselines3.common.callbacks import BaseCallback

from holdfast import Every
from holdfast.errors import UsageError
from holdfast.stable_baselines3 import Holdfast


class Own(list):
    pass


class Named(dict):
    pass


class Recent(deque):
    pass


class Dice(random.Random):
    pass


class Array(np.ndarray):
    pass


class Thing:
    def __init__(self):
        self.number = 0


class Counting(gymnasium.Env):
    observation_space = gymnasium.spaces.Box(-1, 1, (2,))
    action_space = gymnasium.spaces.Discrete(2)

    def __init__(self, array=None):
        self.time, self.array = 0, array
        self.own, self.named, self.recent, self.dice = Own(), Named(), Recent(), Dice(1)
        self.mixed: list[Any] = [0, Thing(), abs]

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.time = 0
        return np.zeros(2, np.float32), {}

    def step(self, action):
        self.time += 1
        self.own.append(self.time)
        self.named[str(self.time)] = self.named.get(str(self.time), 0) + 1
        self.recent.append(self.dice.random())
        self.mixed[0] += 1
        self.mixed[1].number += 1
        return np.full(2, self.time / 20, np.float32), float(action), self.time >= 20, False, {}


class Fails(BaseCallback):
    at = -1

    def _on_step(self):
        if self.n_calls == self.at:
            raise ValueError("enough")
        return True


class Counts(BaseCallback):
    def __init__(self, folder):
        super().__init__()
        self.folder, self.count = folder, 0

    def _on_step(self):
        self.count += 1
        return True


def learn(path, at=-1, array=None, counts=None):
    env, Fails.at = Counting(array), at
    callbacks = [Holdfast(path, every=Every(steps=1), background=False), Fails(), counts or Counts("first")]
    PPO("MlpPolicy", env, n_steps=8, batch_size=8, n_epochs=1, seed=1).learn(64, callback=callbacks)
    return env


whole = learn("whole")
with pytest.raises(ValueError, match="enough"):
    learn("killed", at=28)
counts = Counts("then")  # what training does not change is the script's
env = learn("killed", counts=counts)
assert (counts.folder, counts.count) == ("then", 64)
assert (env.own, env.named, env.recent) == (whole.own, whole.named, whole.recent)
assert env.dice.getstate() == whole.dice.getstate()
assert (type(env.own), type(env.recent)) == (Own, Recent)
assert env.mixed[0] == env.mixed[1].number == 64
with pytest.raises(UsageError, match=r"keep a plain numpy\.ndarray"):
    learn("array", array=np.zeros(2).view(Array))
with pytest.raises(UsageError, match="has finished this run"):
    learn("killed")
Path("result.json").write_text(json.dumps("all laws hold"))
