"""A training script that kills itself where it is told to, and forgets what it is told to forget.

    python training.py '{"path": "runs/x", "loader": "plain", "kill": {"at": "body", "step": 5}}'

Everything that a resume has to bring back is in it: dropout, batch norm, a tied weight, AdamW, a cosine schedule per
step and a plateau one per epoch, an averaged model, a gradient scaler, augmentation in `__getitem__`, mixup out of
three random generators, an evaluation that draws from them, counters.
"""

from __future__ import annotations

import faulthandler
import gc
import json
import os
import random
import signal
import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.optim import lr_scheduler
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn
from torch.utils.data import DataLoader, Dataset, IterableDataset, Sampler, TensorDataset

import holdfast
from holdfast import Every, Last, Run, disk

SIZE, BATCH = 46, 8  # six batches an epoch, the last one short
PER_EPOCH = -(-SIZE // BATCH)

DEFAULTS = {
    "path": "",
    "threads": 1,
    "workers": 0,
    "persistent": False,
    "evaluation_workers": None,  # as many as `workers`
    "loader": "plain",
    "accumulate": 1,
    "epochs": 3,
    "save_every": 2,
    "background": True,
    "seeded": True,
    "synced": False,
    "forget": [],  # what this attempt does not take over from the one before
    "kill": None,  # {"at": place, "step" | "epoch" | "name": where, "signal": "KILL" | "TERM"}
    "again": False,  # whether there was an attempt before this one
}


class Images(Dataset):
    """Noise with a label, augmented by draws from three generators."""

    def __init__(self):
        made = torch.Generator().manual_seed(7)
        self.x = torch.randn(SIZE, 1, 16, 16, generator=made)
        self.y = (self.x.mean((1, 2, 3)) * 40).long().clamp(-2, 2) + 2

    def __len__(self):
        return SIZE

    def __getitem__(self, index):
        x = self.x[index]
        if random.random() < 0.5:
            x = x.flip(-1)
        x = torch.roll(x, int(torch.randint(-2, 3, ())), -2)
        return x + float(np.random.normal(0, 0.1)), self.y[index]


class Stream(IterableDataset):
    """The same images in one fixed order."""

    def __init__(self, images):
        self.images = images

    def __iter__(self):
        info = torch.utils.data.get_worker_info()
        first, apart = (info.id, info.num_workers) if info else (0, 1)
        return (self.images[holdfast.data.seeded.Index(index, 0)] for index in range(first, SIZE, apart))


class Uneven(Sampler):
    """A batch sampler of the user's: batches of two sizes, drawn from the global generator."""

    def __iter__(self):
        order = torch.randperm(SIZE).tolist()
        while order:
            count = random.choice((5, 9))
            yield order[:count]
            del order[:count]


class Batches:
    """A loader that keeps its own state. Not `fair`: its order comes out of the global generator, the planted fault."""

    def __init__(self, images, *, fair=True):
        self.images, self.fair = images, fair
        self.epoch = self.done = 0

    def __iter__(self):
        made = torch.Generator().manual_seed(self.epoch) if self.fair else torch.default_generator
        order = torch.randperm(SIZE, generator=made).tolist()
        for number in range(self.done, PER_EPOCH):
            self.done = number + 1
            yield batch(self.images, order[number * BATCH : (number + 1) * BATCH], self.epoch)
        self.epoch, self.done = self.epoch + 1, 0

    def state_dict(self):
        return {"epoch": self.epoch, "done": self.done}

    def load_state_dict(self, state):
        self.epoch, self.done = state["epoch"], state["done"]


class Amnesiac:
    """Saves the state of `inner` and takes none back."""

    def __init__(self, inner):
        self.inner = inner

    def __iter__(self):
        return iter(self.inner)

    def state_dict(self):
        return self.inner.state_dict()

    def load_state_dict(self, state):
        pass


class Net(nn.Module):
    """Large enough that two threads share its work."""

    def __init__(self):
        super().__init__()
        self.first = nn.Sequential(nn.Conv2d(1, 24, 3, padding=1), nn.BatchNorm2d(24), nn.ReLU(), nn.Dropout(0.2))
        self.second = nn.Sequential(nn.Conv2d(24, 8, 3, stride=4), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten())
        self.encode = nn.Linear(128, 128)
        self.decode = nn.Linear(128, 128)
        self.decode.weight = self.encode.weight
        self.head = nn.Linear(128, 5)

    def forward(self, x):
        x = self.second(self.first(x))
        x = nn.functional.dropout(self.decode(self.encode(x).relu()), 0.3, self.training)
        return self.head(x)


def batch(images, indices, epoch):
    samples = [images[holdfast.data.seeded.Index(index, epoch)] for index in indices]
    return [torch.stack([x for x, _ in samples]), torch.stack([y for _, y in samples])]


def loader_of(kind, images, workers):
    if kind == "sampler":
        return DataLoader(images, BATCH, sampler=holdfast.data.Sampler(images, seed=11), **workers)
    if kind == "batch_sampler":
        return DataLoader(images, batch_sampler=Uneven(), **workers)
    if kind == "stateful":
        from torchdata.stateful_dataloader import StatefulDataLoader

        return StatefulDataLoader(images, BATCH, shuffle=True, **workers)
    if kind == "iterable":
        return DataLoader(Stream(images), BATCH, **workers)
    if kind == "own_state":
        return Batches(images)
    if kind == "global_order":
        return Batches(images, fair=False)
    return DataLoader(images, BATCH, shuffle=True, **workers)


class Killer:
    """Ends this process at the one place that it was told."""

    def __init__(self, kill):
        wanted = dict(kill or {"at": "nowhere"})
        self.place, self.signal = wanted.pop("at"), signal.Signals[f"SIG{wanted.pop('signal', 'KILL')}"]
        self.where = wanted
        if self.place in ("commit", "committed"):
            disk.rename_new = self._around(disk.rename_new)

    def at(self, place, **where):
        if place == self.place and self.where.items() <= where.items():
            self.place = "nowhere"
            os.kill(os.getpid(), self.signal)

    def _around(self, rename):
        def renamed(source, target):
            committing = Path(target).parent.name == "checkpoints"
            if committing:
                self.at("commit", name=Path(target).name)
            rename(source, target)
            if committing:
                self.at("committed", name=Path(target).name)

        return renamed


class Training:
    """The objects, and what one step and one evaluation do to them."""

    def __init__(self, asked):
        self.asked, self.killer = asked, Killer(asked["kill"])
        self.workers: dict[str, Any] = {"num_workers": asked["workers"]}
        if asked["workers"] and asked["persistent"]:
            self.workers["persistent_workers"] = True
        own = asked["evaluation_workers"]
        self.evaluation = {"num_workers": asked["workers"] if own is None else own}
        images = Images()
        self.images = holdfast.data.Seeded(images, seed=5) if asked["seeded"] else images
        self.fixed = TensorDataset(images.x, images.y)
        self.model = Net()
        self.ema = AveragedModel(self.model, multi_avg_fn=get_ema_multi_avg_fn(0.9))
        self.optimizer = torch.optim.AdamW(self.model.parameters(), 3e-3)
        self.cosine = lr_scheduler.CosineAnnealingLR(self.optimizer, 40)
        self.plateau = lr_scheduler.ReduceLROnPlateau(self.optimizer, patience=0)
        self.scaler = torch.amp.GradScaler("cpu", init_scale=256.0, growth_interval=4)
        self.forgotten = set(asked["forget"]) if asked["again"] else set()

    def state(self):
        names = ("model", "ema", "optimizer", "cosine", "plateau", "scaler")
        return {
            name: Amnesiac(getattr(self, name)) if name in self.asked["forget"] else getattr(self, name)
            for name in names
        }

    def learn(self, run, x, y, *, last=False):
        """One pass of the body; the optimizer steps when a group is whole, or the epoch's `last` batch is in it."""
        self._reseed()
        if random.random() < 0.5:
            share = float(np.random.beta(0.4, 0.4))
            x = share * x + (1 - share) * x[torch.randperm(len(x))]
        with torch.autocast("cpu", torch.bfloat16):
            loss = nn.functional.cross_entropy(self.model(x), y)
        self.scaler.scale(loss / self.asked["accumulate"]).backward()
        self.killer.at("body", step=run.step, passes=run.vars.passes)
        run.vars.passes += 1
        run.vars.total += loss.item()
        if run.vars.passes % self.asked["accumulate"] == 0 or last:
            run.vars.passes = 0
            self.scaler.step(self.optimizer)
            self.scaler.update()
            self.optimizer.zero_grad()
            self.cosine.step()
            self.ema.update_parameters(self.model)
        run.log(loss=loss.item(), lr=self.cosine.get_last_lr()[0], scale=self.scaler.get_scale())

    def evaluate(self, run, epoch):
        """Loss under noise: it draws from all three generators, and making its loader's iterator draws once more."""
        self.model.eval()
        total, averaged = random.random() * float(np.random.rand()), 0.0
        with torch.no_grad():
            for number, (clean, y) in enumerate(DataLoader(self.fixed, 16, **self.evaluation)):
                x = clean + 0.1 * torch.randn_like(clean)
                total += nn.functional.cross_entropy(self.model(x), y).item()
                averaged += nn.functional.cross_entropy(self.ema(x), y).item()
                if number == 1:
                    self.killer.at("evaluate", epoch=epoch)
        self.model.train()
        self.plateau.step(total)
        run.vars.best = min(run.vars.best, total)
        run.log(val_loss=total, averaged=averaged, rounds=self.plateau.last_epoch)

    def _reseed(self):
        """Of the generators that are to be forgotten."""
        for name, seed in (("python", random.seed), ("numpy", np.random.seed), ("torch", torch.manual_seed)):
            if name in self.forgotten:
                self.forgotten.remove(name)
                seed(99)


def train(asked):
    asked = DEFAULTS | asked
    torch.set_num_threads(asked["threads"])
    if not asked["synced"]:
        os.fsync = lambda fd: None  # a process that dies takes nothing out of the page cache with it
    random.seed(1)
    np.random.seed(2)
    torch.manual_seed(3)
    training = Training(asked)
    first = {"passes": 0, "total": 0.0, "best": 1e9}
    every = Every(steps=asked["save_every"])
    options = {"keep": Last(1000), "every": every, "background": asked["background"]}
    with Run(asked["path"], training.state(), vars=first, **options) as run:
        if asked["loader"] == "steps":
            by_steps(training, run)
        else:
            by_epochs(training, run)


def by_steps(training, run):
    for step in run.steps(training.asked["epochs"] * PER_EPOCH):
        training.learn(run, *batch(training.images, torch.randint(SIZE, (BATCH,)).tolist(), 0))
        if (step + 1) % PER_EPOCH == 0:
            training.evaluate(run, step // PER_EPOCH)
            run.save()


def by_epochs(training, run):
    asked = training.asked
    loader = loader_of(asked["loader"], training.images, training.workers)
    if "position" in asked["forget"]:
        loader = Amnesiac(loader)
    for epoch in run.epochs(asked["epochs"]):
        training.killer.at("begin", epoch=epoch)
        if asked["loader"] == "nested":
            for _ in run.steps(PER_EPOCH):
                training.learn(run, *batch(training.images, torch.randint(SIZE, (BATCH,)).tolist(), epoch))
        else:
            for x, y in run.batches(loader, accumulate=asked["accumulate"]):
                training.learn(run, x, y, last=len(x) < BATCH)
        training.evaluate(run, epoch)
        run.save()


HANGS_S = 300  # an attempt that takes so long never ends; the log shows where it stands

if __name__ == "__main__":
    gc.freeze()  # the collector need not touch, and thereby copy, what this process shares with a zygote
    faulthandler.dump_traceback_later(HANGS_S, exit=True)
    train(json.loads(sys.argv[1]))
