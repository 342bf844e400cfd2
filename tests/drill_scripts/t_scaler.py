"""The gradient scaler is not tracked."""

import torch
from line import FIX
from net import linear, missed, points

from holdfast import Run

torch.manual_seed(0)
loader = points(shuffle=True)
model, optimizer = linear(lr=0.05)
scaler = torch.amp.GradScaler("cpu", init_scale=2.0**125, growth_interval=2)
state = {"model": model, "optimizer": optimizer} | ({"scaler": scaler} if FIX else {})
with Run("runs/x", state) as run:
    for _ in run.epochs(3):
        for inputs in run.batches(loader):
            loss = missed(model, inputs)
            optimizer.zero_grad()
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
            run.log(loss=loss.item())
