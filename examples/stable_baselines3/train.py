"""PPO balances CartPole's pole; one callback lets the training be killed at any time and go on bit for bit.

holdfast drill -- python examples/stable_baselines3/train.py
"""

import torch
from stable_baselines3 import PPO
from stable_baselines3.common.env_util import make_vec_env

from holdfast.stable_baselines3 import Holdfast

torch.set_num_threads(1)  # the networks are small

env = make_vec_env("CartPole-v1", n_envs=4, seed=1)
model = PPO("MlpPolicy", env, n_steps=128, batch_size=64, n_epochs=4, seed=1, device="cpu")

model.learn(10_240, callback=Holdfast("runs/cartpole"))

lengths = [info["l"] for info in model.ep_info_buffer]
print(f"the pole stood {sum(lengths) / len(lengths):.1f} steps, on average over the last {len(lengths)} episodes")
