"""Runs over the samplers of many ranks, of which one process plays each in turn."""

import shutil
from itertools import chain

import torch
from torch.utils.data import DataLoader, DistributedSampler

from holdfast import Every, Last, Run
from holdfast.torch.samplers import InterruptibleDistributedGroupedBatchSampler, InterruptibleDistributedSampler
from toy import Cut

LENGTH, EPOCHS = 26, 2
DATA = torch.arange(LENGTH)


def ours(world, rank, size):
    return {"batch_size": size, "sampler": InterruptibleDistributedSampler(DATA, world, rank, seed=3)}


def torchs(world, rank, size):
    return {"batch_size": size, "sampler": DistributedSampler(DATA, world, rank, seed=3)}


def groups(world, rank, size):
    ids = [index % 3 for index in range(LENGTH)]
    return {"batch_sampler": InterruptibleDistributedGroupedBatchSampler(DATA, ids, size, world, rank, seed=3)}


KINDS = [ours, torchs, groups]


def sampler_of(loader):
    return loader.sampler if isinstance(loader.sampler, InterruptibleDistributedSampler) else loader.batch_sampler


def train(path, loader, steps=None, *, accumulate=1, each=lambda: None, **options):
    """The batches that one rank sees, until the process is gone after so many steps."""
    seen = []
    options = {"every": Every(steps=1), "keep": Last(1), "background": False, **options}
    try:
        with Run(path, options.pop("state", {}), seed=1, **options) as run:
            for epoch in run.epochs(EPOCHS):
                for batch in run.batches(loader, accumulate=accumulate):
                    seen.append((epoch, batch.tolist()))
                    run.log(batches=len(seen))
                    each()
                    if steps is not None and len(seen) > steps:
                        raise Cut
    except Cut:
        seen.pop()
    return seen


def ranks(tmp_path, make, world, size, *, steps=None, start=None, **options):
    """What each of `world` ranks sees, each in a copy of the run at `start`; the last argument that `make` gets is
    `size`.
    """
    seen = []
    for rank in range(world):
        path = tmp_path / f"{make.__name__}-{world}-{size}-{steps}-{rank}"
        if start is not None:
            shutil.copytree(start, path, symlinks=True)
        seen.append(train(path, DataLoader(DATA, **make(world, rank, size)), steps, take_over=True, **options))
    return seen, path


def together(seen):
    """Step by step, the samples that all ranks take, with the epoch."""
    return [(step[0][0], sorted(chain.from_iterable(batch for _, batch in step))) for step in zip(*seen, strict=True)]
