"""A training script that kills itself where it is told to, and forgets what it is told to forget.

    python training.py '{"path": "runs/x", "loader": "plain", "kill": {"at": "body", "step": 5}}'
    python training.py --zygote     imports torch once, and forks one attempt for each line of JSON on stdin

Everything that a resume has to bring back is in it: dropout, batch norm, a tied weight, AdamW, a cosine schedule per
step and a plateau one per epoch, an averaged model, a gradient scaler, augmentation in `__getitem__`, mixup out of
three random generators, an evaluation that draws from them, counters.
"""

from __future__ import annotations

import json
import os
import random
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.optim import lr_scheduler
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn
from torch.utils.data import DataLoader, Dataset, IterableDataset, Sampler

import holdfast
from holdfast import Every, Last, Run, disk

SIZE, BATCH = 46, 8  # six batches an epoch, the last one short
PER_EPOCH = -(-SIZE // BATCH)

DEFAULTS: dict[str, Any] = {
    "path": "",
    "threads": 1,
    "workers": 0,
    "persistent": False,
    "loader": "plain",
    "accumulate": 1,
    "epochs": 3,
    "save_every": 2,
    "seeded": True,
    "forget": [],  # what this attempt does not take over from the one before
    "kill": None,  # {"at": place, "step" | "epoch" | "name": where, "signal": "KILL" | "TERM"}
    "again": False,  # whether there was an attempt before this one
}


class Images(Dataset):
    """Noise with a label, augmented by draws from three generators."""

    def __init__(self) -> None:
        made = torch.Generator().manual_seed(7)
        self.x = torch.randn(SIZE, 1, 16, 16, generator=made)
        self.y = (self.x.mean((1, 2, 3)) * 40).long().clamp(-2, 2) + 2

    def __len__(self) -> int:
        return SIZE

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        x = self.x[index]
        if random.random() < 0.5:
            x = x.flip(-1)
        x = torch.roll(x, int(torch.randint(-2, 3, ())), -2)
        return x + float(np.random.normal(0, 0.1)), self.y[index]


class Stream(IterableDataset):
    """The same images in one fixed order."""

    def __init__(self, images: Any) -> None:
        self.images = images

    def __iter__(self) -> Iterator[Any]:
        info = torch.utils.data.get_worker_info()
        first, apart = (info.id, info.num_workers) if info else (0, 1)
        return (self.images[holdfast.data.seeded.Index(index, 0)] for index in range(first, SIZE, apart))


class Uneven(Sampler):
    """A batch sampler of the user's: batches of two sizes, drawn from the global generator."""

    def __iter__(self) -> Iterator[list[int]]:
        order = torch.randperm(SIZE).tolist()
        while order:
            count = random.choice((5, 9))
            yield order[:count]
            del order[:count]


class GlobalOrder:
    """The planted fault of the fifth row: an epoch's order out of the global generator, drawn as the epoch is opened."""

    def __init__(self, images: Any) -> None:
        self.images, self.done = images, 0

    def __iter__(self) -> Iterator[Any]:
        order = torch.randperm(SIZE).tolist()
        start, self.done = self.done, 0
        for number in range(start, PER_EPOCH):
            self.done = (number + 1) % PER_EPOCH
            yield batch(self.images, order[number * BATCH : (number + 1) * BATCH], 0)

    def state_dict(self) -> dict[str, int]:
        return {"done": self.done}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.done = state["done"]


class Amnesiac:
    """Saves the state of `inner` and takes none back."""

    def __init__(self, inner: Any) -> None:
        self.inner = inner

    def __iter__(self) -> Iterator[Any]:
        return iter(self.inner)

    def state_dict(self) -> Any:
        return self.inner.state_dict()

    def load_state_dict(self, state: Any) -> None:
        pass


class Net(nn.Module):
    """Large enough that two threads share its work."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Sequential(nn.Conv2d(1, 24, 3, padding=1), nn.BatchNorm2d(24), nn.ReLU(), nn.Dropout(0.2))
        self.second = nn.Sequential(nn.Conv2d(24, 8, 3, stride=4), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten())
        self.encode = nn.Linear(128, 128)
        self.decode = nn.Linear(128, 128)
        self.decode.weight = self.encode.weight
        self.head = nn.Linear(128, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.second(self.first(x))
        x = nn.functional.dropout(self.decode(self.encode(x).relu()), 0.3, self.training)
        return self.head(x)


def batch(images: Any, indices: list[int], epoch: int) -> list[torch.Tensor]:
    samples = [images[holdfast.data.seeded.Index(index, epoch)] for index in indices]
    return [torch.stack([x for x, _ in samples]), torch.stack([y for _, y in samples])]


def loader_of(kind: str, images: Any, workers: dict[str, Any]) -> Any:
    if kind == "sampler":
        return DataLoader(images, BATCH, sampler=holdfast.data.Sampler(images, seed=11), **workers)
    if kind == "batch_sampler":
        return DataLoader(images, batch_sampler=Uneven(), **workers)
    if kind == "stateful":
        from torchdata.stateful_dataloader import StatefulDataLoader

        return StatefulDataLoader(images, BATCH, shuffle=True, **workers)
    if kind == "iterable":
        return DataLoader(Stream(images), BATCH, **workers)
    if kind == "global_order":
        return GlobalOrder(images)
    return DataLoader(images, BATCH, shuffle=True, drop_last=kind == "drop_last", **workers)


class Killer:
    """Ends this process at the one place that it was told."""

    def __init__(self, kill: dict[str, Any] | None) -> None:
        self.kill = {"signal": "KILL", **kill} if kill else {"at": None}
        if self.kill["at"] in ("commit", "committed"):
            disk.rename_new = self._around(disk.rename_new)

    def at(self, place: str, **where: Any) -> None:
        if self.kill["at"] == place and all(self.kill[key] == value for key, value in where.items() if key in self.kill):
            self.kill = {**self.kill, "at": None}
            os.kill(os.getpid(), signal.Signals[f"SIG{signal_name}"]) if (signal_name := _name(self)) else None

    def _around(self, rename: Callable[[Path, Path], None]) -> Callable[[Path, Path], None]:
        def renamed(source: Path, target: Path) -> None:
            inside = Path(target).parent.name == "checkpoints"
            if inside:
                self.at("commit", name=Path(target).name)
            rename(source, target)
            if inside:
                self.at("committed", name=Path(target).name)

        return renamed


def _name(killer: Killer) -> str:
    return str(killer.kill["signal"])
