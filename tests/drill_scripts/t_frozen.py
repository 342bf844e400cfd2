"""A layer is frozen at first, and trained from the second epoch on."""

import torch
from line import FIX
from torch import nn

from holdfast import Every, Run

torch.manual_seed(0)
loader = torch.utils.data.DataLoader(torch.randn(24, 3), batch_size=4)
model = nn.Sequential(nn.Linear(3, 5), nn.Tanh(), nn.Linear(5, 2))
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
model[0].requires_grad_(False)
with Run("runs/x", {"model": model, "optimizer": optimizer}, every=Every(steps=3)) as run:
    for epoch in run.epochs(4):
        if FIX or epoch == 1:
            model[0].requires_grad_(epoch >= 1)
        for inputs in run.batches(loader):
            optimizer.zero_grad()
            loss = (model(inputs) ** 2).mean()
            loss.backward()
            optimizer.step()
            run.log(loss=loss.item())
