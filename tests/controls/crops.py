"""A control for the drill: random crops in 2 workers, two epochs of 10 steps. With --repaired, in Seeded."""

import sys

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

from holdfast import Every, Run, Seeded

torch.manual_seed(0)
torch.set_num_threads(1)


class Crops(Dataset):
    def __init__(self):
        self.images = torch.randn(80, 12)

    def __len__(self):
        return 80

    def __getitem__(self, index):
        left = int(torch.randint(5, ()))
        return self.images[index, left : left + 8]


data = Crops()
loader = DataLoader(Seeded(data, seed=0) if "--repaired" in sys.argv else data, 8, shuffle=True, num_workers=2)
model = nn.Linear(8, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)

with Run("runs/control", {"model": model, "optimizer": optimizer}, every=Every(epochs=1)) as run:
    for _ in run.epochs(2):
        for crops in run.batches(loader):
            loss = (model(crops) - crops.sum(1, keepdim=True)).pow(2).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            run.log(loss=loss.item())
