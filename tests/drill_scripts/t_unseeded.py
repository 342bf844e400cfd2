"""torch is not seeded."""

import torch
from line import FIX
from torch import nn

from holdfast import Every, Run

if FIX:
    torch.manual_seed(0)
x = torch.randn(24, 4)
loader = torch.utils.data.DataLoader(x, batch_size=4, shuffle=True)
model = nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
with Run("runs/x", {"model": model, "optimizer": optimizer}, every=Every(steps=3)) as run:
    for _ in run.epochs(2):
        for inputs in run.batches(loader):
            loss = ((model(inputs) - inputs.sum(1, keepdim=True)) ** 2).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            run.log(loss=loss.item())
