"""A dataset that hands out something else each time that it is read."""

from line import DATA, FIX, Line

import holdfast
from holdfast import Run


class Growing:
    def __init__(self):
        self.reads = 0

    def __len__(self):
        return 8

    def __getitem__(self, index):
        self.reads += 1
        return DATA[index] + 0.01 * self.reads


model, dataset = Line(), Growing()
state = {"model": model, "dataset": holdfast.Fields(dataset, "reads")} if FIX else {"model": model}
with Run("runs/x", state) as run:
    for _ in run.epochs(3):
        for x in run.batches(dataset):
            run.log(loss=model.step(x))
