"""Random crops in persistent workers, without Seeded."""

import random

import torch
from line import FIX
from torch import nn

from holdfast import Every, Run, Seeded


class Crops(torch.utils.data.Dataset):
    def __init__(self):
        self.images = torch.randn(24, 8)

    def __len__(self):
        return 24

    def __getitem__(self, index):
        begin = random.randint(0, 4)
        return self.images[index, begin : begin + 4]


torch.manual_seed(0)
random.seed(0)
crops = Seeded(Crops(), seed=0) if FIX else Crops()
loader = torch.utils.data.DataLoader(crops, 4, shuffle=True, num_workers=1, persistent_workers=True)
model = nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
with Run("runs/x", {"model": model, "optimizer": optimizer}, every=Every(steps=3)) as run:
    for _ in run.epochs(2):
        for inputs in run.batches(loader):
            loss = ((model(inputs) - inputs.sum(1, keepdim=True)) ** 2).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            run.log(loss=loss.item())
