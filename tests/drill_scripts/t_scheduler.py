"""The learning rate's schedule is not tracked."""

import torch
from line import FIX
from torch import nn

from holdfast import Every, Run

torch.manual_seed(0)
x = torch.randn(24, 4)
loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(x, x.sum(1, keepdim=True)), 4, shuffle=True)
model = nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 20)
state = {"model": model, "optimizer": optimizer} | ({"scheduler": scheduler} if FIX else {})
with Run("runs/x", state, every=Every(steps=3)) as run:
    for _ in run.epochs(3):
        for inputs, targets in run.batches(loader):
            loss = nn.functional.mse_loss(model(inputs), targets)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            scheduler.step()
            run.log(loss=loss.item())
