"""holdfast.stable_baselines3: trainings that are killed inside rollouts and updates end as those that are not."""

import sys

import gymnasium
import numpy as np
import pytest
import torch
from stable_baselines3 import DQN, PPO, HerReplayBuffer
from stable_baselines3.common.callbacks import BaseCallback, CheckpointCallback
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.envs import BitFlippingEnv
from stable_baselines3.common.vec_env import SubprocVecEnv

from framework_runs import trained
from holdfast import Every, Store
from holdfast.errors import Mismatch, UsageError
from holdfast.stable_baselines3 import Holdfast

MODULES = (
    *("struck", "torch", "torch._dynamo", "gymnasium", "stable_baselines3", "stable_baselines3.common.env_util"),
    *("gymnasium.envs.classic_control", "holdfast.stable_baselines3", "holdfast.torch.live", "holdfast.torch.program"),
)
KILLS = ("step:150:KILL", "step:130:TERM")
EARLY = ("step:110:KILL", "step:50:TERM")  # of two environments
CASES = {
    "ppo": EARLY,
    "ppo evaluated interval background": EARLY,
    "ppo normalized": EARLY,
    "ppo stopped": EARLY,
    "a2c": EARLY,
    "dqn": KILLS,
    "dqn episodes": KILLS,
    "dqn normalized background": KILLS,
    "sac": KILLS,
    "td3": KILLS,
}


@pytest.fixture
def python(zygotes):
    return zygotes(*MODULES)


@pytest.mark.parametrize("case", CASES)
def test_a_killed_training_ends_as_an_uninterrupted_one(case, python, tmp_path):
    """Weights, optimizer, buffers, environments, logs, and what comes next, after a KILL and a TERM in mid-rollout."""
    whole = trained(python, "stable_baselines3_run", tmp_path / "whole", *case.split())
    killed = trained(python, "stable_baselines3_run", tmp_path / "killed", *case.split(), strikes=CASES[case])
    assert whole.exits == [0]
    assert killed.exits == [-9, 75, 0]
    assert whole.result == killed.result


def test_containers_of_an_environment_come_back(python, tmp_path):
    """Lists, dicts, deques and generators of classes of its own, and lists with objects; what is unknown is refused."""
    assert "all laws hold" in trained(python, "stable_baselines3_containers", tmp_path).result


def test_environments_in_processes_of_their_own_go_on(tmp_path):
    """In fresh interpreters: the processes of SubprocVecEnv come from a server, which imports the script anew."""
    whole, killed = (
        trained([sys.executable], "stable_baselines3_run", tmp_path / name, "ppo", "processes", strikes=strikes)
        for name, strikes in (("whole", ()), ("killed", EARLY))
    )
    assert killed.exits == [-9, 75, 0]
    assert whole.result == killed.result


def ppo(env="CartPole-v1", **options):
    return PPO("MlpPolicy", env, n_steps=16, batch_size=16, n_epochs=1, seed=1, device="cpu", **options)


def test_a_finished_training_is_finished_and_goes_on_with_a_larger_total(tmp_path, monkeypatch):
    """A second start makes no step; with a larger total the end is that of a training that had it from the start."""
    results = {}
    for totals in ((96,), (48, 48, 96)):
        for total in totals:
            monkeypatch.setattr("holdfast.trainers.training._finished", set())  # as in a process of its own
            model = ppo()
            model.learn(total, callback=Holdfast(tmp_path / str(len(totals))))
            assert model.num_timesteps == total
        results[len(totals)] = [*model.policy.state_dict().values(), torch.tensor(model._last_obs)]
    assert all(map(torch.equal, results[1], results[3]))


def test_the_learning_rate_is_that_of_the_script(tmp_path, capsys):
    """Stable-Baselines3 sets it before each update: a schedule's own change is no news, and an override is refused."""
    ppo(learning_rate=lambda left: 0.1 * left).learn(32, callback=Holdfast(tmp_path))
    model = ppo(learning_rate=0.5)
    model.learn(64, callback=Holdfast(tmp_path))
    assert model.policy.optimizer.param_groups[0]["lr"] == 0.5
    assert "in the checkpoint" not in capsys.readouterr().err
    override = {"policy_optimizer": {"lr": 0.1}}
    with pytest.raises(UsageError, match="change it in the script"):
        ppo().learn(80, callback=Holdfast(tmp_path, overrides=override))


def test_what_is_unknown_or_given_twice_is_refused(tmp_path):
    """Each with what to do; nothing is trained, and no run has begun."""

    class Simulator(gymnasium.Wrapper):
        def __init__(self, env):
            super().__init__(env)
            self.world = memoryview(b"a simulator's")

    with pytest.raises(
        UsageError, match=r"env.envs\[0\].env.world is a memoryview.*state_dict\(\) and load_state_dict"
    ):
        ppo(Simulator(gymnasium.make("CartPole-v1"))).learn(16, callback=Holdfast(tmp_path / "a"))
    with pytest.raises(UsageError, match="remove the others"):
        ppo().learn(16, callback=[Holdfast(tmp_path / "a"), Holdfast(tmp_path / "b")])
    with pytest.raises(UsageError, match="the name 'policy' is taken"):
        ppo().learn(16, callback=Holdfast(tmp_path / "a", state={"policy": []}))
    assert not (tmp_path / "a").exists()
    callback = Holdfast(tmp_path / "c")
    ppo().learn(16, callback=callback)
    with pytest.raises(UsageError, match="each learn"):
        ppo().learn(16, callback=callback)
    with pytest.raises(Mismatch, match="environments: 1 in the checkpoint, 2 here"):
        ppo(make_vec_env("CartPole-v1", 2)).learn(64, callback=Holdfast(tmp_path / "c"))
    env = make_vec_env("CartPole-v1", 1, vec_env_cls=SubprocVecEnv, vec_env_kwargs={"start_method": "fork"})
    try:
        with pytest.raises(UsageError, match=r"wrapper_class=holdfast\.stable_baselines3\.Resumable"):
            ppo(env).learn(16, callback=Holdfast(tmp_path / "d"))
    finally:
        env.close()


@pytest.mark.parametrize("kind", [PPO, DQN])
def test_a_callback_that_saves_the_model_saves_it_as_without_holdfast(kind, tmp_path):
    """CheckpointCallback pickles the model's attributes, while Holdfast's methods stand among them."""
    saved = {}
    for others in ([], [Holdfast(tmp_path / "run")]):
        model = kind(
            "MlpPolicy",
            "CartPole-v1",
            seed=1,
            device="cpu",
            **({"n_steps": 16, "batch_size": 16} if kind is PPO else {}),
        )
        checkpoint = CheckpointCallback(save_freq=24, save_path=str(tmp_path / str(len(others))))
        model.learn(32, callback=[checkpoint, *others])
        saved[len(others)] = kind.load(tmp_path / str(len(others)) / "rl_model_24_steps", device="cpu")
    assert vars(saved[0]).keys() == vars(saved[1]).keys()
    before, after = (each.policy.state_dict().values() for each in saved.values())
    assert all(map(torch.equal, before, after))


def test_an_error_in_learn_leaves_the_run(tmp_path):
    """The model has its own methods again, and the journal says what happened; a new start continues."""
    model = ppo()
    callback = Holdfast(tmp_path, every=Every(steps=1))
    model.env.envs[0].unwrapped.step, whole = (lambda action: 1 / 0), model.env.envs[0].unwrapped.step
    del whole
    with pytest.raises(ZeroDivisionError):
        model.learn(64, callback=callback)
    assert not {"collect_rollouts", "train", "dump_logs", "_excluded_save_params"} & vars(model).keys()
    model = ppo()
    model.learn(64, callback=Holdfast(tmp_path))
    assert model.num_timesteps == 64


@pytest.mark.parametrize("copies", [False, True])
def test_a_buffer_of_infos_comes_back(copies, tmp_path):
    """HerReplayBuffer's infos are an array of objects that SB3 makes: a training cut short ends as one that was not."""

    cuts = []

    class Cut(BaseCallback):
        def _on_step(self):
            assert self.num_timesteps not in cuts, "cut"
            return True

    def train(path):
        env = BitFlippingEnv(n_bits=4, continuous=False, max_steps=4)
        options = {"replay_buffer_class": HerReplayBuffer, "replay_buffer_kwargs": {"copy_info_dict": copies}}
        model = DQN("MultiInputPolicy", env, learning_starts=20, buffer_size=300, seed=1, device="cpu", **options)
        model.learn(100, callback=[Holdfast(path, every=Every(steps=1)), Cut()])
        infos = [str({**each, "episode": None}) for each in model.replay_buffer.infos.flat]  # without its time
        return [each.tolist() for each in model.policy.parameters()], infos

    expected = train(tmp_path / "whole")
    assert any("is_success" in each for each in expected[1]) == copies
    cuts.append(60)
    with pytest.raises(AssertionError, match="cut"):
        train(tmp_path / "cut")
    cuts.clear()
    assert train(tmp_path / "cut") == expected


def test_a_large_replay_buffer_is_written_in_part(tmp_path):
    """Of two arrays of 64 MiB less than 1% is written from the third save on; the smaller ones are written whole."""
    size = (64 << 20) // 16
    model = DQN("MlpPolicy", "CartPole-v1", buffer_size=size, learning_starts=20, train_freq=16, seed=1, device="cpu")
    model.replay_buffer.observations[:] = np.arange(size * 4).reshape(model.replay_buffer.observations.shape)
    model.replay_buffer.next_observations[:] = model.replay_buffer.observations
    model.learn(160, callback=Holdfast(tmp_path, every=Every(steps=2), background=False))
    manifest = Store(tmp_path).latest().manifest
    fresh = sum(file.size_bytes for file in manifest.files.values() if not file.origin)
    arrays = [each for each in vars(model.replay_buffer).values() if isinstance(each, np.ndarray)]
    small = sum(each.nbytes for each in arrays if each.nbytes < 64 << 20)
    assert sum(file.size_bytes for file in manifest.files.values()) > sum(each.nbytes for each in arrays)
    assert fresh - small < 0.01 * (2 * 64 << 20)
