"""A sampler of the script's own shuffles with a random.Random."""

import random

import torch
from line import FIX
from torch import nn

import holdfast
from holdfast import Every, Run


class Shuffling(torch.utils.data.Sampler):
    def __init__(self, length, generator):
        self.length, self.generator = length, generator

    def __len__(self):
        return self.length

    def __iter__(self):
        order = list(range(self.length))
        self.generator.shuffle(order)
        return iter(order)


torch.manual_seed(0)
x = torch.randn(24, 4)
sampler = holdfast.data.Sampler(x, seed=0) if FIX else Shuffling(24, random.Random(1))
loader = torch.utils.data.DataLoader(x, batch_size=4, sampler=sampler)
model = nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
with Run("runs/x", {"model": model, "optimizer": optimizer}, every=Every(steps=3)) as run:
    for _ in run.epochs(3):
        for inputs in run.batches(loader):
            loss = ((model(inputs) - inputs.sum(1, keepdim=True)) ** 2).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            run.log(loss=loss.item())
