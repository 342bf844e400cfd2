"""A control for the drill: the learning-rate scheduler is not tracked. With --repaired it is."""

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
scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 24)

state = {"model": model, "optimizer": optimizer}
if "--repaired" in sys.argv:
    state["scheduler"] = scheduler

with Run("runs/control", state, every=Every(steps=4)) as run:
    for _ in run.epochs(3):
        for inputs, targets in run.batches(loader):
            loss = ((model(inputs) - targets) ** 2).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            scheduler.step()
            run.log(loss=loss.item())
            time.sleep(0.01)
