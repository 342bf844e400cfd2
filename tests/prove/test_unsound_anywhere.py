"""Campaigns with numbers that are not finite: anywhere in the weights, however they are saved; and anywhere else."""

import math
import random

import pytest
import torch
from torch import nn

from holdfast import Every, Last, Run, Store

pytestmark = pytest.mark.usefixtures("no_syncs")

CASES, STEPS = 60, 12
WRONG = (math.nan, math.inf, -math.inf)
DTYPES = (torch.float64, torch.float32, torch.bfloat16, torch.float16)


def nets(dice):
    """A few layers of odd sizes; some are frozen, some big enough to be written by several threads or to be linked."""
    torch.manual_seed(dice.getrandbits(30))
    sizes = [dice.choice([1, 3, 64, 700, 1500]) for _ in range(dice.randint(1, 4))]
    model = nn.ModuleList([nn.Linear(dice.randint(1, 600), size) for size in sizes]).to(dice.choice(DTYPES))
    model.append(nn.BatchNorm1d(3)).register_buffer("mask", torch.full((9,), -math.inf))
    for parameter in model.parameters():
        parameter.requires_grad_(dice.random() < 0.8)
    return model


def spoiled(dice, tensors):
    """The name of one tensor, with one number changed; and how to undo that."""
    name = dice.choice(sorted(tensors))
    flat = tensors[name].detach().view(-1)
    place = dice.randrange(flat.numel())
    before = flat[place].clone()
    flat[place] = dice.choice(WRONG)
    return name, lambda: flat[place : place + 1].copy_(before)


def run_of(path, dice, choose):
    """Train, and spoil a number of what `choose` gives in some steps. Return the names of the spoiled, by step."""
    model = nets(dice)
    optimizer = torch.optim.Adam([each for each in model.parameters() if each.requires_grad] or model.parameters())
    state = {"model": model, "optimizer": optimizer}
    wrong, undone = {}, []
    with Run(path, state, every=Every(steps=1), keep=Last(99), background=dice.random() < 0.5) as run:
        for step in run.steps(STEPS):
            while undone:
                undone.pop()()
            for parameter in model.parameters():
                parameter.grad = torch.ones_like(parameter) if parameter.requires_grad else None
            optimizer.step()
            if step and dice.random() < 0.4:
                wrong[step + 1], undo = spoiled(dice, choose(model, optimizer))
                undone.append(undo)
            run.wait()
            run.save()
    return wrong


def weights(model, optimizer):
    found = {f"model/{name}": tensor for name, tensor in model.named_parameters()}
    for number, entry in optimizer.state_dict()["state"].items():
        found |= {f"optimizer/state/{number}/{name}": each for name, each in entry.items() if each.dim()}
    return found


def others(model, _):
    return {name: each for name, each in model.named_buffers() if each.is_floating_point()}


@pytest.mark.parametrize("seed", range(CASES))
def test_no_number_that_is_not_finite_goes_unnoticed(tmp_path, seed, tally):
    """One number of one parameter or moment, of each precision, in a leaf that is written or was linked: just that
    checkpoint is marked, with just that leaf.
    """
    wrong = run_of(tmp_path, random.Random(seed), weights)
    found = {each.step: each.head.not_finite for each in Store(tmp_path).checkpoints()}
    seen = [step for step in wrong if step in found]
    noticed = sum(found[step] == [wrong[step]] for step in seen)
    assert {step: [wrong[step]] for step in seen} == {step: names for step, names in found.items() if names}
    tally("A weight or a moment becomes infinite or NaN", tried=len(wrong), observed=len(seen), survived=noticed)


@pytest.mark.parametrize("seed", range(CASES // 4))
def test_no_infinity_elsewhere_is_taken_for_a_fault(tmp_path, seed, tally):
    """Buffers may hold what they like."""
    wrong = run_of(tmp_path, random.Random(seed), others)
    found = {each.step: each.head.not_finite for each in Store(tmp_path).checkpoints()}
    seen = [step for step in wrong if step in found]
    assert not any(found.values())
    tally("A buffer is infinite or NaN, which is normal", tried=len(wrong), observed=len(seen))
