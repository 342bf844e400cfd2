"""What a reducer has seen, told and shown to another: in one process, which is a group of its own."""

from types import SimpleNamespace as Some

import pytest
import torch
from torch import distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from holdfast.torch import reducer
from holdfast.torch.reducer import ReducerLayouts


class Net(nn.Module):
    """Declared in another order than it is used in; one layer is not used, unless it is told to be."""

    def __init__(self, width=40, *, idle=False):
        super().__init__()
        self.last, self.first = nn.Linear(width, 3), nn.Linear(5, width)
        self.idle = nn.Linear(2, 2) if idle else None

    def forward(self, x):
        return self.last(self.first(x).relu())


@pytest.fixture(autouse=True)
def _group(monkeypatch):
    """Of one process, of which there are taken to be three."""
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "lo")
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yes = lambda: True
    monkeypatch.setattr(reducer, "distributed", Some(is_available=yes, is_initialized=yes, get_world_size=lambda: 3))
    yield
    dist.destroy_process_group()


def wrapped(net=None, **options):
    return DistributedDataParallel(net or Net(), bucket_cap_mb=0.0005, **options)


def trained(model, steps):
    for _ in range(steps):
        model(torch.randn(2, 5)).sum().backward()
    return model


def buckets(model):
    """The parameters' numbers, bucket by bucket; None: as declared."""
    model.logger.set_runtime_stats_and_log()
    return model._get_ddp_logging_data().get("rebuilt_per_bucket_param_indices")


@pytest.mark.parametrize("static", [False, True])
@pytest.mark.parametrize("steps", [2, 3, 5])
def test_a_warmed_reducer_has_the_same_buckets_a_step_earlier(steps, static):
    """It tells what it was shown, and its next forward pass puts the buckets together as the first process did."""
    options = {"static_graph": static}
    old = trained(wrapped(**options), steps)
    seen = ReducerLayouts({"model": old}).capture()
    assert seen == {"model/first.bias": [[1, 0, 3, 2], 2 if static else 1]}
    new = wrapped(**options)
    assert ReducerLayouts({"model": new}).restore_layouts(seen) == ["model/first.bias"]
    assert ReducerLayouts({"model": new}).capture() == seen
    trained(new, 2)
    assert buckets(new) == buckets(trained(old, 2)) == "1 0 3, 2"


def test_gradients_are_as_they_were():
    """None where there was none, and the same numbers in the same memory where there were some."""
    seen = ReducerLayouts({"model": trained(wrapped(), 1)}).capture()
    model = wrapped()
    kept = model.module.first.weight.grad = torch.ones(40, 5)
    ReducerLayouts({"model": model}).restore_layouts(seen)
    assert model.module.first.weight.grad is kept
    assert (kept == 1).all()
    assert model.module.last.weight.grad is None


def test_a_static_graphs_idle_parameters_stay_idle():
    """What no backward pass reaches is not waited for after a warm start."""
    seen = ReducerLayouts({"model": trained(wrapped(Net(idle=True), static_graph=True), 3)}).capture()
    model = wrapped(Net(idle=True), static_graph=True)
    ReducerLayouts({"model": model}).restore_layouts(seen)
    trained(model, 2)
    assert model.module.idle.weight.grad is None


def test_nothing_is_told_and_nothing_shown_where_no_bucket_is_rebuilt():
    """Before the first step, with find_unused_parameters, and for a model of another kind, everything is left alone."""
    assert ReducerLayouts({"model": wrapped()}).capture() == {}
    unused = trained(wrapped(Net(idle=True), find_unused_parameters=True), 2)
    assert ReducerLayouts({"model": unused}).capture() == {}
    assert ReducerLayouts({"model": Net(), "other": [1]}).capture() == {}
    seen = {"model/first.bias": [[9, 8], 1]}
    assert ReducerLayouts({"model": wrapped()}).restore_layouts(seen) == []
    used = trained(wrapped(), 1)
    assert ReducerLayouts({"model": used}).restore_layouts(ReducerLayouts({"model": used}).capture()) == []


def test_a_wrapper_is_found_when_only_the_model_inside_is_tracked():
    """Under the same name as otherwise."""
    model = trained(wrapped(), 1)
    assert ReducerLayouts({"model": model.module}).capture() == ReducerLayouts({"model": model}).capture() != {}
