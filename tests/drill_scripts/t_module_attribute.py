"""A model keeps its hidden state in an attribute that is no buffer."""

import torch
from line import FIX
from net import learn, points
from torch import nn

import holdfast
from holdfast import Run


class Recurrent(nn.Module):
    def __init__(self):
        super().__init__()
        self.cell, self.hidden = nn.RNNCell(4, 5), torch.zeros(4, 5)

    def forward(self, inputs):
        self.hidden = self.cell(inputs, self.hidden.detach())
        return self.hidden


torch.manual_seed(0)
loader = points()
model = Recurrent()
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
state = {"model": model, "optimizer": optimizer}
if FIX:
    state["model_more"] = holdfast.Fields(model, "hidden")
with Run("runs/x", state) as run:
    for _ in run.epochs(3):
        for inputs in run.batches(loader):
            run.log(loss=learn((model(inputs) ** 2).mean(), optimizer))
            model.hidden = model.hidden.detach()
