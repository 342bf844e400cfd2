"""A control for the drill: the averaged copy of the weights is not tracked. With --repaired it is."""

import sys
import time

import torch
from torch import nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn
from torch.utils.data import DataLoader, TensorDataset

from holdfast import Every, Run

torch.manual_seed(0)
torch.set_num_threads(1)
x = torch.randn(64, 4)
y = x.sum(1, keepdim=True)
loader = DataLoader(TensorDataset(x, y), batch_size=8, shuffle=True)
model = nn.Linear(4, 1)
ema = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.9))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

state = {"model": model, "optimizer": optimizer}
if "--repaired" in sys.argv:
    state["ema"] = ema

with Run("runs/control", state, every=Every(steps=3)) as run:
    for _ in run.epochs(3):
        for inputs, targets in run.batches(loader):
            loss = ((model(inputs) - targets) ** 2).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            ema.update_parameters(model)
            run.log(loss=loss.item())
            time.sleep(0.01)
        with torch.no_grad():
            run.log(ema_loss=((ema(x) - y) ** 2).mean().item())
