"""torch is not seeded."""

import torch
from line import FIX
from net import learn, missed, points
from torch import nn

from holdfast import Every, Run

if FIX:
    torch.manual_seed(0)
loader = points(shuffle=True)
model = nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
with Run("runs/x", {"model": model, "optimizer": optimizer}, every=Every(steps=3)) as run:
    for _ in run.epochs(2):
        for inputs in run.batches(loader):
            run.log(loss=learn(missed(model, inputs), optimizer))
