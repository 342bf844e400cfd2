"""What a hook of a tracked module or optimizer carries is told once, and the line makes the resume exact."""

import functools
import random

import pytest
import torch
from torch import nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from holdfast import Every, Fields, Last, Run
from toy import Cut, events

total = 0.0  # of a hook that is written at module level


def told(path):
    return [(event["kind"], event["name"]) for event in events(path, "told") if "kind" in event]


def ran(path, add, *, cut=None, steps=9, fixed=False):
    """The weights after a run. `add`: registers a hook, and returns what tracks it, if `fixed`."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 1))
    opt = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
    track = add(model, opt)
    state = {"model": model, "opt": opt} | (track if fixed else {})
    with Run(path, state, every=Every(steps=1), keep=Last(99)) as run:
        for step in run.steps(steps):
            if step == cut:
                raise Cut
            opt.zero_grad()
            model(torch.randn(3, 4) + 1).square().mean().backward()
            opt.step()
    return [each.tolist() for each in model.parameters()]


def rebound(model, _opt):
    mean = torch.zeros(4)

    class Kept:
        def state_dict(self):
            return {"mean": mean}

        def load_state_dict(self, state):
            nonlocal mean
            mean = state["mean"]

    def hook(_module, inputs):
        nonlocal mean
        mean = 0.9 * mean + 0.1 * inputs[0].detach().mean(0)
        return (inputs[0] - mean,)

    model[1].register_forward_pre_hook(hook)
    return {"mean": Kept()}


def in_a_dict(model, _opt):
    seen = {"n": 0}

    def hook(_module, _inputs, output):
        seen["n"] += 1
        return output / seen["n"]

    model[1].register_forward_hook(hook)
    return {"seen": seen}


def in_a_default(model, _opt):
    kept = []

    def hook(_module, _inputs, output, last=kept):
        last.append(float(output.detach().mean()))
        return output - sum(last[-3:])

    model[1].register_forward_hook(hook)
    return {"last": kept}


def generator(model, _opt):
    dice = random.Random(3)
    model[1].register_full_backward_hook(lambda _module, grads, _: (grads[0] * dice.random(),))
    return {"dice": dice}


class Scaler:
    def __init__(self):
        self.scale, self.shown = 1.0, None

    def __call__(self, _module, _inputs, output):
        self.scale *= 0.9
        self.shown = output.detach()
        return output * self.scale

    def shrink(self, output):
        self.scale *= 0.9
        return output * self.scale

    def step(self, optimizer, _args, _kwargs):
        self.scale *= 0.8
        optimizer.param_groups[0]["weight_decay"] = self.scale


def called_object(model, _opt):
    scaler = Scaler()
    model[1].register_forward_hook(scaler)
    return {"scaler": Fields(scaler, "scale")}


def bound_method(_model, opt):
    scaler = Scaler()
    opt.register_step_pre_hook(scaler.step)
    return {"scaler": Fields(scaler, "scale")}


def of_a_partial(_model, opt):
    counts = [0]

    def hook(counts, optimizer, _args, _kwargs):
        counts[0] += 1
        optimizer.param_groups[0]["weight_decay"] = 0.1 / counts[0]

    opt.register_step_post_hook(functools.partial(hook, counts))
    return {"counts": counts}


def of_a_parameter(model, _opt):
    norms = [1.0]

    def hook(grad):
        norms.append(float(grad.norm()))
        return grad / (1 + sum(norms) / len(norms))

    model[1].weight.register_hook(hook)
    return {"norms": norms}


def average(model, opt):
    ema = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.9))

    def update(_optimizer, _args, _kwargs):
        ema.update_parameters(model)

    def pull(_module, inputs):
        return (inputs[0] + ema.get_parameter("module.0.bias").detach(),)

    opt.register_step_post_hook(update)
    model[1].register_forward_pre_hook(pull)
    return {"ema": ema}


def through_a_helper(model, _opt):
    scaler = Scaler()
    model[1].register_forward_hook(lambda module, inputs, output: scaler(module, inputs, 2 * output))
    model[1].register_forward_hook(lambda _module, _inputs, output: scaler.shrink(output))
    return {"scaler": Fields(scaler, "scale")}


def of_the_module(model, _opt):
    globals()["total"] = 0.0

    def hook(_module, _inputs, output):
        global total  # noqa: PLW0603  as scripts do
        total = 0.5 * total + float(output.detach().mean())
        return output - total

    model[1].register_forward_hook(hook)
    return {"total": Fields(globals(), "total")}


CARRIED = {
    rebound: ("model", "mean"),
    in_a_dict: ("model", "seen"),
    in_a_default: ("model", "last"),
    generator: ("dice", "dice"),
    called_object: ("model", "scale"),
    bound_method: ("opt", "scale"),
    of_a_partial: ("opt", "counts"),
    of_a_parameter: ("model", "norms"),
    average: ("ema", "ema"),
    through_a_helper: ("model", "scale"),
    of_the_module: ("model", "total"),
}


@pytest.mark.parametrize("add", CARRIED, ids=lambda add: add.__name__)
def test_what_a_hook_carries_is_told_once_and_tracking_it_makes_the_resume_exact(tmp_path, capsys, add):
    """In its closure, its defaults, its object, its arguments or its module's names."""
    owner, name = CARRIED[add]
    whole = ran(tmp_path / "whole", add)
    assert [("forgotten" if owner == name else "left_out", owner)] == told(tmp_path / "whole")
    said = capsys.readouterr().err
    assert 1 == said.count("a resume begins it anew")
    assert name in said
    with pytest.raises(Cut):
        ran(tmp_path / "cut", add, cut=5, fixed=True)
    assert whole == ran(tmp_path / "cut", add, fixed=True)
    assert [] == told(tmp_path / "cut")


def looking(model, opt):
    """What a hook stores for the loop to look at, and what it reads but nothing changes."""
    shown, rows, losses, scale, names = {}, [], {"all": []}, 0.5, ["a"]
    tracked = model
    last = None

    class Recorder:
        def __init__(self):
            self.output, self.seen = None, []

        def record(self, _module, _inputs, output):
            self.output = output.detach()
            self.seen.clear()
            self.seen.append(self.output)
            return self.output.sum() and None

    def hook(module, inputs, output):
        nonlocal last
        last = output.detach()
        shown["out"] = output.detach()
        rows.append(float(last.sum()))
        losses["all"].append(last.sum())
        assert tracked[1] is module
        assert names
        return output * scale

    model[1].register_forward_hook(hook)
    model[0].register_forward_hook(Recorder().record)
    model[0].weight.register_hook(lambda grad: grad.clamp(-scale, scale))
    opt.register_step_post_hook(lambda *_: shown.update(rate=opt.param_groups[0]["lr"]))
    nn.utils.parametrizations.spectral_norm(model[0])
    return {}


def test_what_a_hook_only_stores_or_never_changes_is_not_told(tmp_path):
    ran(tmp_path, looking)
    assert [] == told(tmp_path)


def test_what_a_tracked_object_saves_is_not_told_of_its_hook(tmp_path):
    """The trainer whose method is the hook saves itself."""

    class Trainer(Scaler):
        def state_dict(self):
            return {"scale": self.scale}

        def load_state_dict(self, state):
            self.scale = state["scale"]

    def add(model, _opt):
        trainer = Trainer()
        model[1].register_forward_hook(trainer)
        return {"trainer": trainer}

    ran(tmp_path, add, fixed=True)
    assert [] == told(tmp_path)
