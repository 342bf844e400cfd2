"""Random crops in workers, without Seeded: `persistent` ones, or `fresh` ones in a run that saves at its epochs' ends
only.
"""

import random
import sys

import torch
from line import FIX
from net import learn, linear, missed

from holdfast import Every, Run, Seeded


class Crops(torch.utils.data.Dataset):
    def __init__(self):
        self.images = torch.randn(24, 8)

    def __len__(self):
        return 24

    def __getitem__(self, index):
        begin = random.randint(0, 4)
        return self.images[index, begin : begin + 4]


persistent = sys.argv[1] == "persistent"
torch.manual_seed(0)
random.seed(0)
crops = Seeded(Crops(), seed=0) if FIX else Crops()
loader = torch.utils.data.DataLoader(crops, 4, shuffle=True, num_workers=1, persistent_workers=persistent)
model, optimizer = linear(lr=0.05)
every = Every(steps=3) if persistent else Every(epochs=1)
with Run("runs/x", {"model": model, "optimizer": optimizer}, every=every) as run:
    for _ in run.epochs(2):
        for inputs in run.batches(loader):
            run.log(loss=learn(missed(model, inputs), optimizer))
