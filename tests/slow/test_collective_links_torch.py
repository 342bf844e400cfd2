"""Real processes train adapters on a frozen model, by DDP and FSDP2: what is frozen is written twice, and then
shared.
"""

import os
from functools import partial
from typing import Any

import pytest
import torch
from torch import distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

from holdfast import Every, Last, Run, Store
from rank_processes import everywhere
from rank_training import differing, whole

WIDTH, STEPS = 1200, 5


class Adapted(nn.Module):
    """Frozen layers, an adapter beside each."""

    def __init__(self):
        super().__init__()
        self.frozen = nn.ModuleList(nn.Linear(WIDTH, WIDTH).requires_grad_(requires_grad=False) for _ in range(4))
        self.adapters = nn.ModuleList(nn.Linear(WIDTH, 3) for _ in range(4))

    def forward(self, x):
        for frozen, adapter in zip(self.frozen, self.adapters, strict=True):
            x = frozen(x).tanh() + adapter(x).sum(1, keepdim=True)
        return x.mean()


def train(rank, kind, path, steps):
    """This rank's state when so many steps are done, whichever attempt it was that did them."""
    torch.set_num_threads(1)
    os.fsync = lambda fd: None  # no power is lost here
    torch.manual_seed(1)
    model: Any = Adapted()
    if kind == "ddp":
        model = DistributedDataParallel(model)
    else:
        for part in (*model.frozen, *model.adapters):
            fully_shard(part)
        fully_shard(model)
    optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=0.01, momentum=0.9)
    with Run(path, {"model": model, "optimizer": optimizer}, every=Every(steps=1), keep=Last(9), seed=1) as run:
        for _ in run.steps(steps):
            optimizer.zero_grad()
            model(torch.randn(4, WIDTH)).backward()
            optimizer.step()
            run.wait()
    dist.barrier()
    return whole(getattr(model, "module", model).state_dict())


def each(rank, kind, cases):
    return [train(rank, kind, path, steps) for path, steps in cases]


@pytest.mark.parametrize("kind", ["ddp", "fsdp"])
def test_a_frozen_model_is_written_twice_and_then_shared_by_each_rank(tmp_path, kind):
    """From the third save on at most 1.5% of the bytes; also by a run that goes on with it, to the same bits."""
    cases = [(tmp_path / "full", STEPS), (tmp_path / "cut", STEPS - 1), (tmp_path / "cut", STEPS)]
    outcomes = everywhere(2, partial(each, kind=kind, cases=cases), method="forkserver", timeout_s=60)
    assert [outcome.error for outcome in outcomes] == [""] * 2
    for full, _, rest in (outcome.value for outcome in outcomes):
        assert differing(full, rest) == []
    for run in ("full", "cut"):
        store = Store(tmp_path / run)
        for step in range(3, STEPS + 1):
            files = store[step].manifest.files
            written = sum(file.size_bytes for file in files.values() if not file.links)
            assert written <= 0.015 * store[step].size_bytes
            assert {0, 1} == {int(name.split("-")[1]) for name, file in files.items() if file.links}
            assert not list(store[step].problems(cold=True))
