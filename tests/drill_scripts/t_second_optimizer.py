"""Of the two optimizers of a GAN one is tracked."""

import torch
from line import FIX
from net import learn, points
from torch import nn

from holdfast import Run

torch.manual_seed(0)
real = points(shuffle=True)
generator, judge = nn.Linear(3, 4), nn.Linear(4, 1)
optimizer_g = torch.optim.Adam(generator.parameters(), lr=0.01)
optimizer_d = torch.optim.Adam(judge.parameters(), lr=0.01)
state = {"generator": generator, "judge": judge, "optimizer_g": optimizer_g}
if FIX:
    state["optimizer_d"] = optimizer_d
with Run("runs/x", state) as run:
    for _ in run.epochs(3):
        for batch in run.batches(real):
            fake = generator(torch.randn(4, 3))
            learn(judge(fake.detach()).mean() - judge(batch).mean(), optimizer_d)
            learn(-judge(fake).mean(), optimizer_g)
