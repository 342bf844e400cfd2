"""A loader of the script's own shuffles with a generator that nobody tracks."""

import random

from line import DATA, FIX, Line

from holdfast import Every, Run
from holdfast.data import Shuffle


class Shuffled:
    def __init__(self, generator):
        self.generator = generator

    def __iter__(self):
        order = list(range(8))
        self.generator.shuffle(order)
        return (DATA[index] for index in order)


generator = random.Random(5)
model, loader = Line(), Shuffled(generator)
with Run("runs/x", {"model": model}, every=Every(steps=3)) as run:
    for _ in run.epochs(3):
        if FIX:
            order = Shuffle(8, 5, run.epoch)
        for x in run.batches([DATA[index] for index in order] if FIX else loader):
            run.log(loss=model.step(x))
