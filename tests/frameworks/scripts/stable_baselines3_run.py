"""A training with Stable-Baselines3, as a script of `framework_runs.trained`: KIND of algorithm, then WORDS.

It takes notes of all that must be the same with and without kills: weights, optimizer, what the algorithm, its buffers
and its environments hold, what they do next, and the logs.
"""

import hashlib
import json
import os
import sys
from pathlib import Path

import numpy as np
import torch
from stable_baselines3 import A2C, DQN, PPO, SAC, TD3
from stable_baselines3.common.callbacks import BaseCallback, EvalCallback, StopTrainingOnMaxEpisodes
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.noise import OrnsteinUhlenbeckActionNoise
from stable_baselines3.common.vec_env import SubprocVecEnv, VecFrameStack, VecNormalize

from holdfast import Every, journal
from holdfast.stable_baselines3 import Holdfast, Resumable
from struck import event

torch.set_num_threads(1)

CLOCKS = ("time/fps", "time/time_elapsed")


class Struck(BaseCallback):
    """Marks each step inside a rollout."""

    def _on_step(self):
        event("step")
        return True


def environment(words, name="CartPole-v1", count=1):
    if "processes" in words:
        return make_vec_env(name, count, seed=7, wrapper_class=Resumable, vec_env_cls=SubprocVecEnv)
    env = make_vec_env(name, count, seed=7)
    if "normalized" in words:
        env = VecNormalize(VecFrameStack(env, 3))
    return env


def algorithm(kind, words):
    small = {"policy_kwargs": {"net_arch": [16]}, "seed": 3, "device": "cpu"}
    if kind == "ppo":
        return PPO("MlpPolicy", environment(words, count=2), n_steps=32, batch_size=16, n_epochs=2, **small)
    if kind == "a2c":
        return A2C("MlpPolicy", environment(words, "Pendulum-v1", 2), use_sde=True, n_steps=8, **small)
    if kind == "dqn":
        often = {"train_freq": (1, "episode"), "gradient_steps": 3} if "episodes" in words else {"train_freq": 4}
        sizes = {"buffer_size": 200, "learning_starts": 40, "target_update_interval": 50, "batch_size": 16}
        return DQN("MlpPolicy", environment(words), exploration_fraction=0.5, **sizes, **often, **small)
    sizes = {"buffer_size": 300, "learning_starts": 20, "batch_size": 16, "train_freq": 2}
    if kind == "sac":
        return SAC("MlpPolicy", environment(words, "Pendulum-v1"), **sizes, **small)
    noise = OrnsteinUhlenbeckActionNoise(np.zeros(1), 0.1 * np.ones(1))
    return TD3("MlpPolicy", environment(words, "Pendulum-v1"), action_noise=noise, **sizes, **small)


def digest(value):
    found = hashlib.sha256()

    def add(each):
        if isinstance(each, dict):
            for key in each:
                found.update(repr(key).encode())
                add(each[key])
        elif isinstance(each, list | tuple):
            for one in each:
                add(one)
        elif isinstance(each, torch.Tensor | np.ndarray):
            found.update(np.asarray(each.detach() if isinstance(each, torch.Tensor) else each).tobytes())
        else:
            found.update(repr(each).encode())

    add(value)
    return found.hexdigest()[:16]


def outcome(model, run_path, callbacks):
    modules, _ = model._get_torch_save_params()
    facts = {}
    for name in modules:
        each = model
        for part in name.split("."):
            each = getattr(each, part)
        facts[name] = digest(each.state_dict())
    env = model.get_env()
    actions = np.array([getattr(model.action_space, "low", 1)] * env.num_envs)
    facts |= {
        "timesteps": model.num_timesteps,
        "updates": model._n_updates,
        "observation": digest(model._last_obs),
        "episodes": [[info["r"], info["l"]] for info in model.ep_info_buffer],
        "random": [float(np.random.rand()), float(torch.rand(1)), digest(model.action_space.sample())],
        "next": [digest(env.step(actions)[0]) for _ in range(3)],
        "callbacks": callbacks,
        "log": [
            [line["step"], {name: repr(value) for name, value in line["values"].items() if name not in CLOCKS}]
            for line in journal.metrics(Path(run_path))
        ],
    }
    if getattr(model, "replay_buffer", None) is not None:
        buffer = model.replay_buffer
        arrays = [buffer.observations, buffer.next_observations, buffer.actions, buffer.rewards, buffer.dones]
        facts["buffer"] = [digest(arrays), buffer.pos, buffer.full]
    if env.__class__.__name__ == "VecNormalize":
        facts["normalized"] = digest([env.obs_rms.mean, env.obs_rms.var, env.ret_rms.var, env.returns])
    return facts


def main(kind, *words):
    total = int(os.environ.get("TOTAL", "400"))
    model = algorithm(kind, words)
    holdfast = Holdfast("run", every=Every(steps=3), background="background" in words)
    others = [Struck()]
    if "evaluated" in words:
        quick = {"eval_freq": 37, "n_eval_episodes": 2, "verbose": 0}
        others.append(EvalCallback(make_vec_env("CartPole-v1", 1, seed=9), best_model_save_path="best", **quick))
    if "stopped" in words:
        others.append(StopTrainingOnMaxEpisodes(8))
    interval = 3 if "interval" in words else 1
    model.learn(total, callback=[holdfast, *others], log_interval=interval)
    if "evaluated" in words:
        PPO.load("best/best_model")  # made while learn() was ours
    told = [[each.n_calls, repr(getattr(each, "best_mean_reward", getattr(each, "n_episodes", "")))] for each in others]
    with open("result.json", "w", encoding="utf-8") as file:
        json.dump(outcome(model, "run", told), file, indent=1)


if __name__ == "__main__":
    main(*sys.argv[1:])
