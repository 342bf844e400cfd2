"""A run to look at with the commands."""

import torch

from holdfast.store.store import Facts


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
    return store.save(state(step), step=step, facts=Facts(**{"epoch": step // 10, "metrics": metrics} | facts))


def flip(path, place):
    data = bytearray(path.read_bytes())
    data[place] ^= 1
    path.write_bytes(data)
