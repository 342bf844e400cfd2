"""A tracked tensor is given to the run, and the loop binds its name to a new one."""

import torch
from line import FIX
from net import learn, points
from torch import nn

from holdfast import Run

torch.manual_seed(0)
loader = points()
cell = nn.RNNCell(4, 5)
optimizer = torch.optim.SGD(cell.parameters(), lr=0.05)
hidden = torch.zeros(4, 5)
state = {"cell": cell, "optimizer": optimizer} | ({} if FIX else {"hidden": hidden})
with Run("runs/x", state, vars={"hidden": hidden} if FIX else {}) as run:
    for _ in run.epochs(3):
        for inputs in run.batches(loader):
            if FIX:
                run.vars.hidden = hidden = cell(inputs, run.vars.hidden.detach())
            else:
                hidden = cell(inputs, hidden.detach())
            run.log(loss=learn((hidden**2).mean(), optimizer))
            if FIX:
                run.vars.hidden = run.vars.hidden.detach()
