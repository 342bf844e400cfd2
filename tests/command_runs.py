"""A run to look at with the commands."""

import shutil
from pathlib import Path

import torch

from holdfast.rules import Best, Last
from holdfast.store.store import ManifestFields, Store


def state(step):
    weight = torch.full((2, 3), float(step))
    return {
        "model": {"fc.weight": weight, "head.weight": weight, "half": torch.full((2,), step, dtype=torch.bfloat16)},
        "optimizer": {"state": {0: {"exp_avg": torch.full((2, 3), step / 10)}}, "param_groups": [{"lr": 0.1}]},
        "holdfast": {
            "position": {"step": step, "epoch": step // 10, "loaders": {"train": {"consumed": 3}}},
            "vars": {"patience": 2},
            "rng": {"python": (3, tuple(range(step, step + 9)), None)},
        },
    }


def save(store, step, **facts):
    metrics = {"val_acc": 0.9 if step == 20 else 0.5}
    return store.save(state(step), step=step, facts=ManifestFields(**{"epoch": step // 10, "metrics": metrics} | facts))


def finished(tmp_path, factory):
    """A copy of a run of three checkpoints, of which each test session makes one."""
    made = factory.getbasetemp() / "finished"
    if not made.exists():
        store = Store(made, keep=Best("val_acc", max) | Last(9))
        for step in (10, 20, 30):
            save(store, step, document={"hyperparameters": {"lr": 0.1}, "git": {"commit": "abc", "dirty": True}})
        store.attempt.record("metrics", step=10, phase="step", epoch=1, values={"loss": 0.5})
        store.close()
    return Path(shutil.copytree(made, tmp_path / "run", symlinks=True))


def flip(path, place):
    data = bytearray(path.read_bytes())
    data[place] ^= 1
    path.write_bytes(data)
