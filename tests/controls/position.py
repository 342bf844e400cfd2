"""A control for the drill: the loader is iterated as it is, so its position is lost. With --repaired, by run.batches."""

import sys
import time

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from holdfast import Every, Run

torch.manual_seed(0)
torch.set_num_threads(1)
x = torch.randn(64, 4)
loader = DataLoader(TensorDataset(x, x.sum(1, keepdim=True)), batch_size=8, shuffle=True)
model = nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)


def step(run, inputs, targets):
    loss = ((model(inputs) - targets) ** 2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    run.log(loss=loss.item())
    time.sleep(0.01)


with Run("runs/control", {"model": model, "optimizer": optimizer}, every=Every(steps=4)) as run:
    for _ in run.epochs(3):
        if "--repaired" in sys.argv:
            for inputs, targets in run.batches(loader):
                step(run, inputs, targets)
        else:
            for inputs, targets in loader:
                step(run, inputs, targets)
                run.safe_point()
