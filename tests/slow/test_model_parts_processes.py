"""Real processes hold a model that is cut over them: pipelines of torch's schedules, stages whose parameters FSDP2
divides, experts.
"""

import os
from functools import partial
from typing import Any

import pytest
import torch
from torch import distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleInterleaved1F1B
from torch.distributed.tensor import DTensor

from holdfast import Every, Last, Run, Store
from holdfast.torch import ModelParts
from rank_processes import everywhere

WIDTH, LAYERS = 8, 4


def layer(number):
    torch.manual_seed(number)
    return nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh())


def held(parts):
    """Parameters and moments by name, whole."""

    def whole(value):
        return value.full_tensor() if isinstance(value, DTensor) else torch.as_tensor(value).clone()

    found = {f"{place}.{name}": whole(each) for place, part in parts.parts for name, each in part.state_dict().items()}
    for optimizer, names in zip(parts.optimizers, parts.parameter_names(), strict=True):
        for number, entry in optimizer.state_dict()["state"].items():
            found |= {f"{names[number]} {key}": whole(value) for key, value in entry.items()}
    return {name: value.detach().numpy().copy() for name, value in found.items()}


def sharded(rank, world, stages, path, steps):
    """Stages in a row, each divided by FSDP2 over the ranks that have it; one stage on one rank is plain."""
    torch.set_num_threads(1)
    os.fsync = lambda fd: None  # no power is lost here
    replicas = world // stages
    stage = rank // replicas
    each = LAYERS // stages
    layers: dict[str, Any] = {f"layers.{n}": layer(n) for n in range(stage * each, (stage + 1) * each)}
    if replicas > 1:
        mesh = init_device_mesh("cpu", (stages, replicas), mesh_dim_names=("pp", "dp"))["dp"]
        for held_layer in layers.values():
            fully_shard(held_layer, mesh=mesh)
    optimizer = torch.optim.AdamW([p for part in layers.values() for p in part.parameters()], lr=0.1)
    parts = ModelParts(layers, optimizer)
    with Run(path, {"net": parts}, every=Every(steps=1), keep=Last(9), seed=1) as run:
        began = held(parts)
        for _ in run.steps(steps):
            optimizer.zero_grad()
            for part in layers.values():
                part(torch.linspace(0, 1, 4 * WIDTH).view(4, WIDTH)).square().sum().backward()
            optimizer.step()
    if dist.is_initialized():
        dist.barrier()
    return began, held(parts)


def values_of(outcomes, which):
    assert [outcome.error for outcome in outcomes] == [""] * len(outcomes)
    found = {}
    for outcome in outcomes:
        for name, value in outcome.value[which].items():
            assert name not in found or (found[name] == value).all()
            found[name] = value
    return found


def differing(one, two):
    assert one.keys() == two.keys()
    return [name for name in one if not (one[name] == two[name]).all()]


def test_stages_that_fsdp_divides_go_to_other_stages_and_to_one_process(tmp_path):
    """Eight ranks: four stages of two. Then two stages of two, and four that nothing divides."""
    full = everywhere(8, partial(sharded, world=8, stages=4, path=tmp_path / "run", steps=3), method="forkserver")
    saved = values_of(full, 1)
    newest = Store(tmp_path / "run").latest()
    assert list(newest.problems()) == []
    assert any("of" in leaf.attrs for leaf in newest.manifest.leaves.values())
    for world, stages in ((4, 2), (4, 4), (8, 4)):
        again = everywhere(
            world, partial(sharded, world=world, stages=stages, path=tmp_path / "run", steps=3), method="forkserver"
        )
        assert differing(saved, values_of(again, 0)) == [], (world, stages)


def pipelined(rank, world, here, path, steps, stop=None):
    """A pipeline by torch's own schedule; every rank has `here` stages."""
    torch.set_num_threads(1)
    os.fsync = lambda fd: None
    count = world * here
    each = LAYERS // count
    numbers = [rank + world * turn for turn in range(here)]
    layers = {n: layer(n) for stage in numbers for n in range(stage * each, (stage + 1) * each)}
    cpu = torch.device("cpu")
    stages = [
        PipelineStage(nn.Sequential(*(layers[n] for n in range(s * each, (s + 1) * each))), s, count, cpu)
        for s in numbers
    ]
    schedule: Any = (
        ScheduleInterleaved1F1B(stages, 2 * world, loss_fn=nn.MSELoss())
        if here > 1
        else Schedule1F1B(stages[0], 2 * world, loss_fn=nn.MSELoss())
    )
    optimizer = torch.optim.AdamW([p for part in layers.values() for p in part.parameters()], lr=0.1)
    parts = ModelParts({f"layers.{n}": part for n, part in layers.items()}, optimizer)
    with Run(path, {"net": parts}, every=Every(steps=1), keep=Last(9), seed=1) as run:
        began = held(parts)
        for number in run.steps(steps):
            optimizer.zero_grad()
            x = torch.full((4 * world, WIDTH), 0.1 * number)
            if rank == 0:
                schedule.step(x)
            elif rank == world - 1:
                schedule.step(target=x.flip(0))
            else:
                schedule.step()
            optimizer.step()
            if number == stop:
                run.wait()
                os.kill(os.getpid(), 9)
    dist.barrier()
    return began, held(parts)


@pytest.mark.parametrize(("world", "here"), [(4, 1), (2, 2)])
def test_a_killed_pipeline_resumes_to_the_same_bits(tmp_path, world, here):
    """1F1B, and interleaved with two stages a rank: killed on all ranks, resumed, and resumed on the other layout."""
    work = partial(pipelined, world=world, here=here)
    full = values_of(everywhere(world, partial(work, path=tmp_path / "full", steps=5), method="forkserver"), 1)
    killed = everywhere(world, partial(work, path=tmp_path / "cut", steps=5, stop=2), method="forkserver")
    assert {outcome.error.split(":")[0] for outcome in killed} == {"Gone"}
    rest = everywhere(world, partial(work, path=tmp_path / "cut", steps=5), method="forkserver")
    assert differing(full, values_of(rest, 1)) == []
    other, more = (2, 1) if world == 4 else (4, 1)
    moved = partial(pipelined, world=other, here=more, path=tmp_path / "cut", steps=5)
    assert differing(full, values_of(everywhere(other, moved, method="forkserver"), 0)) == []
