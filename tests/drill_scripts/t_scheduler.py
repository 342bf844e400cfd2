"""The learning rate's schedule is not tracked."""

import torch
from line import FIX
from net import learn, linear, missed, points

from holdfast import Run

torch.manual_seed(0)
loader = points(shuffle=True)
model, optimizer = linear()
scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 20)
state = {"model": model, "optimizer": optimizer} | ({"scheduler": scheduler} if FIX else {})
with Run("runs/x", state) as run:
    for _ in run.epochs(3):
        for inputs in run.batches(loader):
            run.log(loss=learn(missed(model, inputs), optimizer))
            scheduler.step()
