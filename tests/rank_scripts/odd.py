"""Ranks that do not fit together: one case after the other, each to end with one error on every rank."""

import os
import time

import torch
from torch import distributed, nn

from holdfast import Every, Last, Run
from holdfast.store import attempt


def train(path, model, name="model", **options):
    with Run(path, {name: model}, **{"every": Every(steps=4), **options}) as run:
        for _ in run.steps(8):
            pass


def cases(rank, place):
    """Name -> what each rank does: rank 1 is the odd one."""
    odd, path = rank == 1, str(place / "run")
    line = nn.Linear(2, 2 + odd)
    return {
        "path": lambda: train(f"{path}-{rank}", nn.Linear(2, 2)),
        "keep": lambda: train(path, nn.Linear(2, 2), keep=Last(3 + odd)),
        "every": lambda: train(path, nn.Linear(2, 2), every=Every(steps=5) if odd else Every(minutes=5)),
        "model": lambda: train(path, line),
        "more in the model": lambda: train(path, nn.Sequential(nn.Linear(2, 2), *[nn.ReLU(), nn.Linear(2, 2)] * odd)),
        "names": lambda: train(path, nn.Linear(2, 2), name="net" if odd else "model"),
        "deadline": lambda: train(path, nn.Linear(2, 2), deadline=time.time() + (-9 if odd else 9999)),
        "type": lambda: train(path, nn.Linear(2, 2) if odd else nn.Bilinear(2, 2, 2)),
        # The same words, and another directory for each process.
        "file system": lambda: train("/proc/self/cwd/run", nn.Linear(2, 2)),
    }


def errors(rank, place):
    """Of each case its error, as this rank has it."""
    torch.set_num_threads(1)
    os.fsync = lambda fd: None
    attempt.JOIN_S = 0.5
    own = place / f"of-{rank}"
    own.mkdir()
    os.chdir(own)
    found = {}
    for name, case in cases(rank, place).items():
        try:
            case()
        except Exception as error:
            found[name] = str(error)
        distributed.barrier()
    return found
