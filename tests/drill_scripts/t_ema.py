"""An averaged copy of the weights is not tracked; only the evaluation sees it."""

import torch
from line import FIX
from torch import nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from holdfast import Every, Run

torch.manual_seed(0)
x = torch.randn(24, 4)
loader = torch.utils.data.DataLoader(x, batch_size=4, shuffle=True)
model = nn.Linear(4, 1)
shadow = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.9))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
state = {"model": model, "optimizer": optimizer} | ({"shadow": shadow} if FIX else {})
with Run("runs/x", state, every=Every(steps=3)) as run:
    for _ in run.epochs(3):
        for inputs in run.batches(loader):
            loss = ((model(inputs) - inputs.sum(1, keepdim=True)) ** 2).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            shadow.update_parameters(model)
        with torch.no_grad():
            run.log(score=((shadow(x) - x.sum(1, keepdim=True)) ** 2).mean().item())
