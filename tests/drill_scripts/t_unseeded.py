"""torch is not seeded."""

import torch
from line import FIX
from net import learn, linear, missed, points

from holdfast import Run

if FIX:
    torch.manual_seed(0)
loader = points(shuffle=True)
model, optimizer = linear()
with Run("runs/x", {"model": model, "optimizer": optimizer}) as run:
    for _ in run.epochs(2):
        for inputs in run.batches(loader):
            run.log(loss=learn(missed(model, inputs), optimizer))
