"""A control for the drill: workers augment at random, and nothing seeds them per sample. With --repaired, Seeded does."""

import random
import sys
import time

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

from holdfast import Every, Run, Seeded


class Noisy(Dataset):
    def __init__(self, inputs):
        self.inputs = inputs

    def __len__(self):
        return len(self.inputs)

    def __getitem__(self, index):
        return self.inputs[index] + random.random() + torch.randn(4)


torch.manual_seed(0)
torch.set_num_threads(1)
dataset = Noisy(torch.randn(64, 4))
if "--repaired" in sys.argv:
    dataset = Seeded(dataset, seed=0)
loader = DataLoader(dataset, batch_size=8, shuffle=True, num_workers=2, persistent_workers=True)
model = nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

with Run("runs/control", {"model": model, "optimizer": optimizer}, every=Every(steps=3)) as run:
    for _ in run.epochs(3):
        for inputs in run.batches(loader):
            loss = ((model(inputs) - inputs.sum(1, keepdim=True)) ** 2).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            run.log(loss=loss.item())
            time.sleep(0.01)
