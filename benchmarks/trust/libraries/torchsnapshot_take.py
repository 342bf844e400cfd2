"""torchsnapshot: Snapshot.take into a folder for each step, the newest is restored."""

import torch
import torchsnapshot
from torchsnapshot import Snapshot, StateDict

NAME = "torchsnapshot"
VERSION = torchsnapshot.__version__
PRACTICE = "Snapshot.take into a folder for each step; the newest folder is restored"
LINK = "https://pytorch.org/torchsnapshot/stable/getting_started.html"
PROMISES = {}
ENVIRONMENT = "bench"


def train(folder, first, last, state_of, saved):
    for step in range(first, last + 1):
        state = {name: torch.from_numpy(value) for name, value in state_of(step).items()}
        Snapshot.take(str(folder / f"step-{step}"), {"state": StateDict(**state)})
        saved(step)


def resume(folder, like):
    steps = sorted(int(path.name.split("-")[1]) for path in folder.glob("step-*"))
    if not steps:
        return None
    state = StateDict(**{name: torch.from_numpy(value) for name, value in like.items()})
    Snapshot(str(folder / f"step-{steps[-1]}")).restore({"state": state})
    return steps[-1], {name: value.numpy() for name, value in state.items()}
