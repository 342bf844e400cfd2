"""An averaged copy of the weights is not tracked; only the evaluation sees it."""

import torch
from line import FIX
from net import learn, missed, points
from torch import nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from holdfast import Every, Run

torch.manual_seed(0)
loader = points(shuffle=True)
model = nn.Linear(4, 1)
shadow = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.9))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
state = {"model": model, "optimizer": optimizer} | ({"shadow": shadow} if FIX else {})
with Run("runs/x", state, every=Every(steps=3)) as run:
    for _ in run.epochs(3):
        for inputs in run.batches(loader):
            learn(missed(model, inputs), optimizer)
            shadow.update_parameters(model)
        with torch.no_grad():
            run.log(score=missed(shadow, loader.dataset).item())
