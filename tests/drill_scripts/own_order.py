"""A loader of the script's own shuffles with the generator that the loop draws from, and nobody tracks it."""

import random

from line import DATA, FIX, Line

from holdfast import Run
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
state = {"model": model, "generator": generator} if FIX else {"model": model}
with Run("runs/x", state) as run:
    for _ in run.epochs(3):
        for x in run.batches([DATA[index] for index in Shuffle(8, 5, run.epoch)] if FIX else loader):
            run.log(loss=model.step(x, noise=generator.random()))
