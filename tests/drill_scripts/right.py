"""Right scripts of many shapes, one of which is asked for by its name: `python right.py NAME`."""

import copy
import sys
import time
from collections import deque

import numpy as np
from line import DATA, Line

import holdfast
from holdfast import Run


def epochs():
    """The plain loop, with what it measures and a clock that decides nothing."""
    model, began = Line(), time.time()
    with Run("runs/x", {"model": model}) as run:
        for _ in run.epochs(3):
            for x in run.batches(DATA):
                loss = model.step(x)
                run.log(loss=loss)
            print("seconds", time.time() - began)
            run.log(score=model.loss())


def buffer():
    """A deque that is tracked, and filled in place."""
    model, seen, rng = Line(), deque(maxlen=5), np.random.default_rng(1)
    with Run("runs/x", {"model": model, "seen": seen, "rng": rng}) as run:
        for step in run.steps(20):
            seen.append(DATA[step % 8] + step)
            run.log(loss=model.step(float(rng.choice(list(seen))), 0.001))


class Trainer:
    """It owns the loop."""

    def __init__(self):
        self.model, self.best, self.history = Line(), 9.0, []

    def train(self):
        state = {"model": self.model, "trainer": holdfast.Fields(self, "best", "history")}
        with Run("runs/x", state) as run:
            for _ in run.epochs(3):
                self.epoch(run)

    def epoch(self, run):
        for x in run.batches(DATA):
            loss = self.model.step(x, noise=self.best)
            self.best = min(self.best, loss)
            self.history.append(loss)
            run.log(loss=loss, mean=sum(self.history) / len(self.history))


def trainer():
    Trainer().train()


def between():
    """Code between epochs and batches draws from a tracked generator, for each epoch."""
    model, rng = Line(), np.random.default_rng(4)
    with Run("runs/x", {"model": model, "rng": rng}) as run:
        for _ in run.epochs(3):
            shift = rng.random()
            for x in run.batches(DATA):
                run.log(loss=model.step(x + shift, noise=rng.random()))


def accumulated():
    model = Line()
    with Run("runs/x", {"model": model}) as run:
        for _ in run.epochs(3):
            for x in run.batches(DATA):
                run.log(loss=model.step(x))
            run.log(mean=run.mean("loss"))


def best_weights():
    model = Line()
    with Run("runs/x", {"model": model}, vars={"best": None, "score": 9.0}) as run:
        for _ in run.epochs(4):
            for x in run.batches(DATA):
                run.log(loss=model.step(x))
            if model.loss() < run.vars.score:
                run.vars.best, run.vars.score = copy.deepcopy(model.state_dict()), model.loss()
        model.load_state_dict(run.vars.best)


def monte_carlo():
    """NumPy, in place."""
    rng, total = np.random.default_rng(0), np.zeros(2)
    with Run("runs/x", {"rng": rng, "total": total}) as run:
        for step in run.steps(20):
            total += rng.normal(size=2)
            run.log(estimate=float(total[0] / (step + 1)))


def counted_from_one():
    model = Line()
    with Run("runs/x", {"model": model}) as run:
        for epoch in run.epochs(range(1, 4)):
            lr = 0.1 * 0.5**epoch
            for x in run.batches(DATA):
                run.log(loss=model.step(x, lr))
            print(f"epoch {epoch}: {model.loss()}")


globals()[sys.argv[1]]()
