"""One training for any number of ranks, by DDP or FSDP2, whose parameters are declared out of the order of their
use.
"""

import os
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import Replicate
from torch.distributed.tensor.parallel import ColwiseParallel, parallelize_module
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, default_collate

from holdfast import Every, Last, Run
from holdfast.data import Stream
from holdfast.torch.reducer import ReducerLayouts
from rank_processes import everywhere
from toy import Cut

EPOCHS, LENGTH = 2, 48
WARM = ReducerLayouts.restore_layouts
DDP = {
    "ddp": {},
    "static": {"static_graph": True},
    "views": {"gradient_as_bucket_view": True},
    "inside": {},
    "late": {},
}


class Net(nn.Module):
    """Several buckets, batch norm and dropout; rows that no number of ranks here divides."""

    def __init__(self):
        super().__init__()
        self.last = nn.Linear(31, 3)
        self.middle = nn.Linear(31, 31)
        self.norm = nn.BatchNorm1d(31)
        self.first = nn.Linear(5, 31)

    def forward(self, x):
        x = self.middle(self.norm(self.first(x).relu())).relu()
        return self.last(nn.functional.dropout(x, 0.1, self.training))


class Numbered:
    """Samples that know which ones they are."""

    def __len__(self):
        return LENGTH

    def __getitem__(self, index):
        noise = torch.Generator().manual_seed(int(index))
        return int(index), torch.randn(5, generator=noise), int(index) % 3


def wrapped(kind, model):
    if kind == "plain":
        return model
    if kind in DDP:
        return DistributedDataParallel(model, bucket_cap_mb=0.002, **DDP[kind])
    options: dict[str, Any] = {}
    if kind == "replicas":  # two of two pieces each
        options["mesh"] = init_device_mesh("cpu", (dist.get_world_size() // 2, 2), mesh_dim_names=("dp", "shard"))
    if kind == "tensors":  # each layer's rows are divided, and each part of these once more
        mesh = init_device_mesh("cpu", (dist.get_world_size() // 2, 2), mesh_dim_names=("dp", "tp"))
        by_rows = {name: ColwiseParallel(output_layouts=Replicate()) for name in ("first", "middle")}
        parallelize_module(model, mesh["tp"], by_rows)
        options["mesh"] = mesh["dp"]
    if kind == "mixed":
        options["mp_policy"] = MixedPrecisionPolicy(reduce_dtype=torch.float64)
    for part in (model.first, model.middle, model.last):
        fully_shard(part, **options)
    return fully_shard(model, **options)


def whole(tree):
    """Every DTensor gathered; a collective."""
    if isinstance(tree, dict):
        return {key: whole(value) for key, value in tree.items()}
    if isinstance(tree, list):
        return [whole(value) for value in tree]
    tree = tree.full_tensor() if hasattr(tree, "full_tensor") else tree
    return tree.detach().clone().numpy() if isinstance(tree, torch.Tensor) else tree


def train(rank, kind, path, *, steps=None, batch=None, warm=True, seed=1, background=False, streamed=False):
    """Which samples this rank saw in which epoch, and its state at the end; `steps`: the process is gone after so
    many. `streamed`: its batches come from a Stream.
    """
    torch.set_num_threads(1)
    ReducerLayouts.restore_layouts = WARM if warm else lambda *_: []
    os.fsync = lambda fd: None  # no power is lost here
    world = dist.get_world_size()
    shares = (world // 2, rank // 2) if kind == "tensors" else (world, rank)  # two ranks work on one batch
    torch.manual_seed(seed)  # what the restore replaces
    model = Net() if kind == "late" else wrapped(kind, Net())
    torch.manual_seed(100 + shares[1])
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    loader = DataLoader(Numbered(), batch or 12 // shares[0], sampler=DistributedSampler(Numbered(), *shares, seed=3))
    if streamed:
        stream = Stream(Numbered(), global_batch_size=12, seed=3, collate=default_collate)
        loader = DataLoader(stream, batch_size=None, num_workers=1)
    seen, done = [], 0
    options = {"every": Every(steps=1), "keep": Last(2), "background": background, "seed": 1}
    try:
        tracked = model.module if kind == "inside" else model
        with Run(path, {"model": tracked, "optimizer": optimizer}, **options) as run:
            began, restored = run.step, state(model, optimizer)
            if kind == "late":
                model = wrapped(kind, model)
            for epoch in run.epochs(EPOCHS):
                for numbers, x, y in run.batches(loader):
                    done += 1
                    if steps is not None and done > steps:
                        raise Cut
                    optimizer.zero_grad()
                    nn.functional.cross_entropy(model(x), y).backward()
                    optimizer.step()
                    seen.append((epoch, numbers.tolist()))
    except Cut:
        pass
    return {
        "seen": seen,
        "began": began,
        "restored": restored,
        "state": state(model, optimizer),
    }


def state(model, optimizer):
    """All of it, on every rank, by plain names."""
    return {"model": whole(getattr(model, "module", model).state_dict()), "optimizer": whole(optimizer.state_dict())}


def each(rank, cases):
    return [train(rank, **case) for case in cases]


def trained(world, *cases):
    """What `train` gives in each case, by rank: one after the other, in one launch of so many processes."""
    outcomes = everywhere(world, partial(each, cases=cases), method="forkserver", timeout_s=60)
    assert [outcome.error for outcome in outcomes] == [""] * world
    return [list(ranks) for ranks in zip(*(outcome.value for outcome in outcomes), strict=True)]


def flat(tree, name=""):
    if isinstance(tree, dict | list):
        pairs = tree.items() if isinstance(tree, dict) else enumerate(tree)
        return [pair for key, value in pairs for pair in flat(value, f"{name}/{key}")]
    return [(name, tree.tobytes() if isinstance(tree, np.ndarray) else tree)]


def differing(one, other):
    """Names of what is not the same bits in both."""
    return sorted(x[0] for x, y in zip(flat(one), flat(other), strict=True) if x != y)
