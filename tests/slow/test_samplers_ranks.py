"""Samplers under a run of several real processes, and metrics over them: saved on some ranks, gone on with on
others.
"""

import os
from itertools import chain

import pytest
import torch
from torch.utils.data import DataLoader, DistributedSampler

from holdfast import Every, Last, Run
from holdfast.torch.metrics import MetricsTracker
from holdfast.torch.samplers import InterruptibleDistributedSampler
from rank_processes import everywhere
from toy import Cut

LENGTH, EPOCHS = 42, 2
DATA = torch.arange(LENGTH)


def ours(size):
    return {"batch_size": size, "sampler": InterruptibleDistributedSampler(DATA, seed=3)}


def torchs(size):
    return {"batch_size": size, "sampler": DistributedSampler(DATA, seed=3)}


def train(path, make, size, steps):
    """What this rank sees in one attempt: so many steps, and then the process is gone. And what the run has logged."""
    loader, metrics, seen = DataLoader(DATA, **make(size)), MetricsTracker(), []
    state = {"metrics": metrics, **({"sampler": loader.sampler} if make is ours else {})}
    options = {"every": Every(steps=1), "keep": Last(2), "background": False, "seed": 1, "take_over": True}
    try:
        with Run(path, state, **options) as run:
            for epoch in run.epochs(EPOCHS):
                for batch in run.batches(loader):
                    if len(seen) == steps:
                        raise Cut
                    seen.append((epoch, batch.tolist()))
                    metrics.update({"seen": len(set(batch.tolist()))}).update(
                        {"mean": batch.double().mean()}, weight=len(batch)
                    )
                    run.log(**metrics.reduce().local)
                    metrics.reset_local()
                metrics.end_epoch()
    except Cut:
        pass
    return seen, metrics.epoch_reports


def attempt(path, make, world, size, steps=None):
    """Step by step what all ranks see: the epoch, and the samples of each rank. And the reports, alike on each."""
    outcomes = everywhere(world, lambda rank: train(path, make, size, steps))
    assert [""] * world == [outcome.error for outcome in outcomes]
    seen, reports = zip(*(outcome.value for outcome in outcomes), strict=True)
    assert all(each == reports[0] for each in reports)
    return [(step[0][0], [batch for _, batch in step]) for step in zip(*seen, strict=True)], reports[0]


@pytest.mark.parametrize("make", [ours, torchs])
def test_every_sample_comes_once_on_four_then_two_then_three_ranks(make, tmp_path):
    """The same batch size on each, cut in the middle of epochs, the sampler tracked as well; its metrics add up."""
    steps = []
    for world, count in ((4, 2), (2, 1), (3, None)):
        found, reports = attempt(tmp_path / "run", make, world, 3, count)
        steps += found
    for epoch in range(EPOCHS):
        once = [set(chain.from_iterable(batches)) for at, batches in steps if at == epoch]
        assert sorted(chain.from_iterable(once)) == list(range(LENGTH))
    if make is torchs:
        assert [round(report["seen"]) for report in reports] == [
            sum(len(batch) for at, batches in steps if at == epoch for batch in batches) for epoch in range(EPOCHS)
        ]
    lines = Run(tmp_path / "run", {}).metrics()
    assert [line["step"] for line in lines] == list(range(1, len(steps) + 1))
    assert [line["values"]["seen"] for line in lines] == [
        sum(len(set(batch)) for batch in batches) for _, batches in steps
    ]


def test_real_ranks_have_the_same_numbers():
    """Names in any order, metrics that only one rank has, weighted means, an error that all ranks see."""
    size = 3

    def work(rank):
        said, metrics = [], MetricsTracker()
        for step in range(size):
            for name in ("a", "b") if rank == 0 else ("b", "a"):
                metrics.update({name: 10 * (rank + 1) + (name == "b")})
            metrics.update({"loss": torch.tensor(float(rank))}, weight=1 + 3 * rank)
            if rank == step:
                metrics.update({f"only on {rank}": 1})
            said.append(dict(metrics.reduce().local))
            metrics.reset_local()
        said.append(metrics.end_epoch().epoch_reports[0])
        try:
            metrics.update({"odd": 1}, weight=1 if rank else None).reduce()
        except Exception as error:
            said.append(f"{type(error).__name__}: {error}")
        return said, os.environ["WORLD_SIZE"], list(map(int, InterruptibleDistributedSampler(range(5), shuffle=False)))

    sums = {"a": 60.0, "b": 63.0, "loss": (0 * 1 + 1 * 4 + 2 * 7) / 12}
    only = [{f"only on {step}": 1.0} for step in range(size)]
    steps = [sums | each for each in only]
    report = {"a": 180.0, "b": 189.0, "loss": 1.5} | only[0] | only[1] | only[2]
    error = "UsageError: metric 'odd' is a sum on one rank and a mean on another: weight= belongs to all"
    for rank, outcome in enumerate(everywhere(size, work)):
        assert outcome.error == ""
        assert outcome.value == ([*steps, report, error], "3", [rank, (rank + 3) % 5])
