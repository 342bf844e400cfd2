"""A dataset that keeps what it has drawn for an index."""

import random

from line import DATA, FIX, Line

import holdfast
from holdfast import Run


class Cached:
    def __init__(self):
        self.cache = {}

    def __len__(self):
        return 8

    def __getitem__(self, index):
        if index not in self.cache:
            self.cache[index] = DATA[index] + 0.1 * random.random()
        return self.cache[index]


random.seed(0)
model, dataset = Line(), Cached()
state = {"model": model, "dataset": holdfast.Fields(dataset, "cache")} if FIX else {"model": model}
with Run("runs/x", state) as run:
    for _ in run.epochs(3):
        for x in run.batches(dataset):
            run.log(loss=model.step(x))
