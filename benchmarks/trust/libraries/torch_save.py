"""torch.save into one file, as PyTorch's tutorial has it."""

import torch

NAME = "torch.save"
VERSION = torch.__version__
PRACTICE = "one file, written over at each save"
LINK = "https://docs.pytorch.org/tutorials/beginner/saving_loading_models.html"
PROMISES = {}
FILE = "checkpoint.pt"


def train(folder, first, last, state_of, saved):
    for step in range(first, last + 1):
        state = {name: torch.from_numpy(value) for name, value in state_of(step).items()}
        torch.save({"step": step, "state": state}, folder / FILE)
        saved(step)


def resume(folder, like):
    if not (folder / FILE).exists():
        return None
    kept = torch.load(folder / FILE, weights_only=True)
    return kept["step"], {name: value.numpy() for name, value in kept["state"].items()}
