"""torch.save into another name, which then replaces the file: what many projects write by hand."""

import os

import torch
from torch_save import FILE, VERSION, resume  # noqa: F401  the same file is read

NAME = "torch.save, renamed"
PRACTICE = "written beside, then os.replace"
LINK = "https://docs.mila.quebec/examples/good_practices/checkpointing/"
PROMISES = {"killed in a save": LINK}


def train(folder, first, last, state_of, saved):
    for step in range(first, last + 1):
        state = {name: torch.from_numpy(value) for name, value in state_of(step).items()}
        torch.save({"step": step, "state": state}, folder / f"{FILE}.temp")
        os.replace(folder / f"{FILE}.temp", folder / FILE)
        saved(step)
