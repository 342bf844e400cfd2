"""The loader is iterated as it is, so its position is lost."""

import torch
from line import FIX
from net import learn, missed, points
from torch import nn

from holdfast import Every, Run

torch.manual_seed(0)
loader = points(shuffle=True)
model = nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
with Run("runs/x", {"model": model, "optimizer": optimizer}, every=Every(steps=4)) as run:
    for _ in run.epochs(3):
        for inputs in run.batches(loader) if FIX else loader:
            run.log(loss=learn(missed(model, inputs), optimizer))
            if not FIX:
                run.safe_point()
