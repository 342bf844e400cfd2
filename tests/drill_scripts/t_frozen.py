"""A layer is frozen at first, and trained from the second epoch on."""

import torch
from line import FIX
from net import learn, points
from torch import nn

from holdfast import Run

torch.manual_seed(0)
loader = points()
model = nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 2))
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
model[0].requires_grad_(False)
with Run("runs/x", {"model": model, "optimizer": optimizer}) as run:
    for epoch in run.epochs(4):
        if FIX or epoch == 1:
            model[0].requires_grad_(epoch >= 1)
        for inputs in run.batches(loader):
            run.log(loss=learn((model(inputs) ** 2).mean(), optimizer))
