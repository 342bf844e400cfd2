"""A tracked tensor is given to the run, and the loop binds its name to a new one."""

import torch
from line import FIX
from torch import nn

from holdfast import Every, Run

torch.manual_seed(0)
x = torch.randn(24, 3)
loader = torch.utils.data.DataLoader(x, batch_size=4)
cell = nn.RNNCell(3, 5)
optimizer = torch.optim.SGD(cell.parameters(), lr=0.05)
hidden = torch.zeros(4, 5)
state = {"cell": cell, "optimizer": optimizer} | ({} if FIX else {"hidden": hidden})
with Run("runs/x", state, every=Every(steps=3), vars={"hidden": hidden} if FIX else {}) as run:
    for _ in run.epochs(3):
        for inputs in run.batches(loader):
            if FIX:
                run.vars.hidden = hidden = cell(inputs, run.vars.hidden.detach())
            else:
                hidden = cell(inputs, hidden.detach())
            loss = (hidden**2).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            if FIX:
                run.vars.hidden = run.vars.hidden.detach()
            run.log(loss=loss.item())
