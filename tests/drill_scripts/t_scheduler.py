"""The learning rate's schedule is not tracked."""

import torch
from line import FIX
from net import learn, missed, points
from torch import nn

from holdfast import Every, Run

torch.manual_seed(0)
loader = points(shuffle=True)
model = nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 20)
state = {"model": model, "optimizer": optimizer} | ({"scheduler": scheduler} if FIX else {})
with Run("runs/x", state, every=Every(steps=3)) as run:
    for _ in run.epochs(3):
        for inputs in run.batches(loader):
            run.log(loss=learn(missed(model, inputs), optimizer))
            scheduler.step()
