"""A control for the drill: every third index of the epoch makes one more pass through batch norm; `enumerate` begins
anew after a resume. With --repaired, the index is kept in run.vars.
"""

import sys

import torch
from torch import nn

from holdfast import Every, Run

torch.manual_seed(0)
torch.set_num_threads(1)
data = list(torch.randn(18, 8, 4))
model = nn.Sequential(nn.BatchNorm1d(4), nn.Linear(4, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)

with Run("runs/control", {"model": model, "optimizer": optimizer}, every=Every(steps=6), vars={"index": 0}) as run:
    for _ in run.epochs(2):
        for index, batch in enumerate(run.batches(data)):
            seen = run.vars.index % len(data) if "--repaired" in sys.argv else index
            if seen % 3 == 0:
                model(batch)
            loss = model(batch).pow(2).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            run.vars.index += 1
            run.log(loss=loss.item())
