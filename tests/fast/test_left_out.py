"""What a tracked object keeps beside its state_dict() is told once if the loop carries it; other attributes are not."""

import random
from collections import deque

import pytest
import torch
from torch import nn

from holdfast import Every, Fields, Last, Run
from toy import Cut, events


def told(path):
    return [(event["kind"], event["name"]) for event in events(path, "told") if "kind" in event]


def sgd(model):
    return torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)


def ran(path, kind, *, optimizer=sgd, cut=None, steps=9, fields=()):
    """The weights after a run. `fields`: attributes that are tracked, of the model or of the optimizer."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 4), kind())
    opt = optimizer(model)
    state = {"model": model, "opt": opt} | {
        name: Fields(opt if name in vars(opt) else model[1], name) for name in fields
    }
    with Run(path, state, every=Every(steps=1), keep=Last(99)) as run:
        for step in run.steps(steps):
            if step == cut:
                raise Cut
            opt.zero_grad()
            model(torch.randn(3, 4) + 1).square().mean().backward()
            opt.step()
    return [each.tolist() for each in model.parameters()]


class Part(nn.Module):
    def __init__(self):
        super().__init__()
        self.out = nn.Linear(4, 1)


class Private(Part):
    def __init__(self):
        super().__init__()
        self._mean = torch.zeros(4)

    def forward(self, x):
        self._mean = 0.9 * self._mean + 0.1 * x.detach().mean(0)
        return self.out(x - self._mean)


class Computed(Part):
    """Its names are computed."""

    def __init__(self):
        super().__init__()
        self.mean = torch.zeros(4)

    def forward(self, x):
        name = "mean"
        setattr(self, name, 0.9 * getattr(self, name) + 0.1 * x.detach().mean(0))
        return self.out(x - getattr(self, name))


class Counting(Part):
    def __init__(self):
        super().__init__()
        self.calls = 0

    def forward(self, x):
        self.calls += 1
        return self.out(x) / self.calls


class Remembering(Part):
    """One method reads what another has set in the step before."""

    def __init__(self):
        super().__init__()
        self.last = torch.zeros(4)

    def forward(self, x):
        y = self.out(x - self.last)
        self.remember(x)
        return y

    def remember(self, x):
        self.last = x.detach().mean(0)


class Queue(Part):
    def __init__(self):
        super().__init__()
        self.queue = deque(maxlen=4)

    def forward(self, x):
        self.queue.append(x.detach().mean(0))
        return self.out(x - sum(self.queue))


class Dice(Part):
    def __init__(self):
        super().__init__()
        self.dice = random.Random(0)

    def forward(self, x):
        return self.out(x) * self.dice.random()


CARRIED = {Private: "_mean", Computed: "mean", Counting: "calls", Remembering: "last", Queue: "queue", Dice: "dice"}


@pytest.mark.parametrize("kind", CARRIED, ids=lambda kind: kind.__name__)
def test_what_a_module_carries_is_told_once_and_the_line_makes_it_exact(tmp_path, kind, capsys):
    """Public or private, under a computed name, a counter, a queue, a generator."""
    name = CARRIED[kind]
    whole = ran(tmp_path / "whole", kind)
    assert [("left_out", "model")] == told(tmp_path / "whole")
    assert f'Fields(model[1], "{name}")' in capsys.readouterr().err
    with pytest.raises(Cut):
        ran(tmp_path / "cut", kind, cut=5, fields=[name])
    assert whole == ran(tmp_path / "cut", kind, fields=[name])
    assert [] == told(tmp_path / "cut")


class Part0(Part):
    def forward(self, x):
        return self.out(x)


class Stepping(torch.optim.SGD):
    """A subclass that counts."""

    def __init__(self, params):
        super().__init__(params, 0.1)
        self.count = 0

    def step(self, closure=None):
        self.count += 1
        self.param_groups[0]["lr"] = 0.1 / self.count
        return super().step(closure)


def test_what_an_optimizer_counts_is_told(tmp_path, capsys):
    def optimizer(model):
        return Stepping(model.parameters())

    whole = ran(tmp_path / "whole", Part0, optimizer=optimizer)
    assert [("left_out", "opt")] == told(tmp_path / "whole")
    assert 'count=Fields(opt, "count")' in capsys.readouterr().err
    with pytest.raises(Cut):
        ran(tmp_path / "cut", Part0, optimizer=optimizer, cut=5, fields=["count"])
    assert whole == ran(tmp_path / "cut", Part0, optimizer=optimizer, fields=["count"])


class Looking(Part):
    """Keeps what somebody may look at: activations, a loss, a list that is cleared; and what stays the same."""

    scale = 2.0

    def __init__(self):
        super().__init__()
        self.activations, self.loss, self.seen, self.rope, self.names = None, 0.0, [], None, ["a"]
        self.hidden = None
        self.attend = nn.MultiheadAttention(4, 2)
        self.cell = nn.LSTM(4, 4)

    def forward(self, x):
        self.activations = x.detach()
        if self.rope is None:
            self.rope = torch.cos(torch.arange(4.0))
        self.seen.clear()
        self.seen.append(x.sum().item())
        self.hidden = None
        self.hidden = self.cell(x)[1]
        y = self.attend(x, x, x)[0]
        self.loss = y.sum().item()
        return self.out(y + self.rope * self.scale)

    @property
    def shown(self):
        return self.activations, self.loss, self.seen


def test_what_each_step_sets_anew_is_not_told(tmp_path):
    ran(tmp_path, Looking)
    assert [] == told(tmp_path)


class Measured(nn.Module):
    """As a metric of torchmetrics: its state_dict() is empty until its states are persistent."""

    def __init__(self):
        super().__init__()
        self.total, self.keeps = torch.zeros(()), False

    def update(self, value):
        self.total = self.total + value

    def persistent(self, mode):
        self.keeps = mode

    def state_dict(self, *args, **kwargs):
        return {"total": self.total} if self.keeps else {}

    def load_state_dict(self, state_dict, strict=True, assign=False):
        self.total = state_dict["total"]


@pytest.mark.parametrize("keeps", [False, True])
def test_a_tracked_metric_that_saves_nothing_is_told(tmp_path, capsys, keeps):
    """And not once its states are persistent, as the line says."""
    metric = Measured()
    metric.persistent(keeps)
    with Run(tmp_path, {"metric": metric}, every=None) as run:
        for step in run.steps(6):
            metric.update(step + 1)
    assert ([] if keeps else [("left_out", "metric")]) == told(tmp_path)
    assert keeps or "metric.persistent(True)" in capsys.readouterr().err
