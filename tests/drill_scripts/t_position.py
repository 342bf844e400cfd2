"""The loader is iterated as it is, so its position is lost."""

import torch
from line import FIX
from net import learn, linear, missed, points

from holdfast import Run

torch.manual_seed(0)
loader = points(shuffle=True)
model, optimizer = linear()
with Run("runs/x", {"model": model, "optimizer": optimizer}) as run:
    for _ in run.epochs(3):
        for inputs in run.batches(loader) if FIX else loader:
            run.log(loss=learn(missed(model, inputs), optimizer))
            if not FIX:
                run.safe_point()
