"""An averaged copy of the weights is not tracked; only the evaluation sees it."""

import torch
from line import FIX
from net import learn, linear, missed, points
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from holdfast import Run

torch.manual_seed(0)
loader = points(shuffle=True)
model, optimizer = linear()
shadow = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.9))
state = {"model": model, "optimizer": optimizer} | ({"shadow": shadow} if FIX else {})
with Run("runs/x", state) as run:
    for _ in run.epochs(3):
        for inputs in run.batches(loader):
            learn(missed(model, inputs), optimizer)
            shadow.update_parameters(model)
        with torch.no_grad():
            run.log(score=missed(shadow, loader.dataset).item())
