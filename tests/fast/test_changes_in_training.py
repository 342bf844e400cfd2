"""What training changes of a tracked torch object beside its numbers: it comes back, or the first save refuses it."""

from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.utils import prune
from torch.optim.lr_scheduler import CosineAnnealingLR, ExponentialLR, LRScheduler, ReduceLROnPlateau, SequentialLR

from holdfast import Every, Last, Run, Store
from holdfast.errors import UsageError
from holdfast.torch import optimizers
from toy import Cut, events


def trained(path, make, step_of, cut=None, steps=8, **options):
    """The state after a run of a script: `make()` returns the tracked objects, `step_of(state, step)` trains."""
    torch.manual_seed(0)
    state = make()
    with Run(path, state, every=Every(steps=1), keep=Last(99), **options) as run:
        for step in run.steps(steps):
            step_of(state, step)
            if step == cut:
                raise Cut
    return state


def resumed(path, make, step_of, cut):
    with pytest.raises(Cut):
        trained(path, make, step_of, cut)
    return trained(path, make, step_of)


def numbers(state):
    """All numbers of modules and optimizers, and the rates."""
    modules = [each.state_dict() for each in state.values() if isinstance(each, nn.Module)]
    groups = [g["lr"] for each in state.values() if hasattr(each, "param_groups") for g in each.param_groups]
    return [value.tolist() for each in modules for value in each.values()], groups


def fit(state):
    state["opt"].zero_grad()
    state["model"](torch.randn(3, 4) + 1).square().mean().backward()
    state["opt"].step()


def sgd(model):
    return {"model": model, "opt": torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)}


# Buffers ----------------------------------------------------------------------------------------------------------


class Buffered(nn.Module):
    """A linear layer, and something that it keeps."""

    kept: Any
    mask: Any
    seen: Any
    mean: Any
    queue: Any
    at: Any
    table: Any
    lazy: Any

    def __init__(self):
        super().__init__()
        self.out = nn.Linear(4, 1)

    def forward(self, x):
        return self.out(self.kept(x))


class FromNone(Buffered):
    def __init__(self):
        super().__init__()
        self.register_buffer("mask", None)

    def kept(self, x):
        if self.mask is None:
            self.mask = (torch.rand(4) > 0.3).float()
        return x * self.mask


class Registered(Buffered):
    def kept(self, x):
        if not hasattr(self, "mask"):
            self.register_buffer("mask", torch.rand(4))
        return x * self.mask


class Growing(Buffered):
    def __init__(self):
        super().__init__()
        self.register_buffer("seen", torch.zeros(1, 4))

    def kept(self, x):
        self.seen = torch.cat([self.seen, x])
        return x - self.seen.mean(0)


class Bank(Buffered):
    """Outside of the state_dict(): bound anew, as momentum, and written in place, as a queue."""

    def __init__(self):
        super().__init__()
        self.register_buffer("mean", torch.zeros(4), persistent=False)
        self.register_buffer("queue", torch.zeros(16, 4), persistent=False)
        self.register_buffer("at", torch.zeros((), dtype=torch.long), persistent=False)

    def kept(self, x):
        self.mean = 0.9 * self.mean + 0.1 * x.mean(0)
        at = int(self.at)
        self.queue.data[at : at + 3] = x
        self.at.copy_((at + 3) % 12)
        return x - self.mean - self.queue.mean(0)


class LateBank(Buffered):
    """Outside of the state_dict(), and None until the first batch."""

    def __init__(self):
        super().__init__()
        self.register_buffer("mean", None, persistent=False)

    def kept(self, x):
        self.mean = x.mean(0) if self.mean is None else 0.9 * self.mean + 0.1 * x.mean(0)
        return x - self.mean


class Deep(nn.Module):
    def __init__(self, kind):
        super().__init__()
        self.parts = nn.ModuleList([kind(), kind()])

    def forward(self, x):
        return self.parts[0](x) + self.parts[1](x)


@pytest.mark.parametrize(
    ("kind", "cut"), [(FromNone, 1), (Registered, 5), (Growing, 1), (Bank, 5), (LateBank, 1), (LateBank, 5)]
)
def test_a_buffer_that_training_makes_comes_back(tmp_path, kind, cut):
    """None until the first batch, registered in forward, growing, or outside of the state_dict(): in any module."""
    for number, make in enumerate([lambda: sgd(kind()), lambda: sgd(Deep(kind))]):
        whole = trained(tmp_path / f"{number}-whole", make, lambda state, step: fit(state))
        assert numbers(whole) == numbers(resumed(tmp_path / str(number), make, lambda state, step: fit(state), cut))


class Rotary(Buffered):
    """Tables that are computed once: as the module is made, or with the first batch. A mask, a constant."""

    def __init__(self):
        super().__init__()
        self.register_buffer("table", torch.arange(4.0), persistent=False)
        self.register_buffer("lazy", None, persistent=False)
        self.register_buffer("mask", torch.ones(4, 4).tril() == 0, persistent=False)
        self.register_buffer("anew", torch.ones(4), persistent=False)

    def kept(self, x):
        if self.lazy is None:
            self.lazy = torch.cos(self.table)
        self.anew = torch.ones(4)
        return x * self.lazy * self.anew


def test_a_table_that_is_computed_once_is_not_saved(tmp_path):
    """From the second step on the checkpoints hold the module's state_dict(), and nothing is told."""
    trained(tmp_path, lambda: sgd(Rotary()), lambda state, step: fit(state))
    last = list(Store(tmp_path).checkpoints())[-1]
    assert {"out.weight", "out.bias"} == set(last.load(part="model"))
    assert [] == events(tmp_path, "told")


# Structures -------------------------------------------------------------------------------------------------------


def add_a_group(state):
    state["opt"].add_param_group({"params": [nn.Parameter(torch.zeros(2))]})


def prune_a_layer(state):
    prune.l1_unstructured(state["model"], "weight", 0.5)


def widen(state):
    state["model"].weight = nn.Parameter(torch.zeros(2, 4))


def add_a_layer(state):
    state["model"].add_module("more", nn.Linear(1, 1))


def take_a_bias(state):
    state["model"].bias = None


@pytest.mark.parametrize("change", [add_a_group, prune_a_layer, widen, add_a_layer, take_a_bias])
def test_a_structure_that_no_start_could_restore_is_refused_at_the_save(tmp_path, change):
    """Nothing is saved any more, and the checkpoint of before can be used."""

    def step_of(state, step):
        if step == 4:
            change(state)
        fit(state)

    def make():
        return sgd(nn.Linear(4, 1))

    for _ in range(2):  # the second start comes to the same place
        with pytest.raises(UsageError, match=r"when the run was entered|since the run was entered"):
            trained(tmp_path, make, step_of)
        assert 4 == list(Store(tmp_path).checkpoints())[-1].step
    assert [] == events(tmp_path, "quarantined")
    trained(tmp_path, make, lambda state, step: fit(state))


def test_a_mask_that_is_there_from_the_beginning_is_pruned_exactly(tmp_path):
    """As the message says."""

    def make():
        state = sgd(nn.Linear(4, 1))
        prune.identity(state["model"], "weight")
        return state

    def step_of(state, step):
        if step == 4:
            prune.l1_unstructured(state["model"], "weight", 0.5)
        fit(state)

    whole = numbers(trained(tmp_path / "whole", make, step_of))
    assert whole == numbers(resumed(tmp_path / "cut", make, step_of, 6))


def test_a_structure_may_change_between_two_runs(tmp_path):
    """What a run was entered with counts."""
    state = sgd(nn.Linear(4, 1))
    for number in range(2):
        with Run(tmp_path / str(number), state, every=Every(steps=1)) as run:
            for _ in run.steps(3):
                fit(state)
        widen(state)
        add_a_group(state)


# Optimizers and schedulers ----------------------------------------------------------------------------------------


class Outer(torch.optim.Optimizer):
    """As SAM: it holds another optimizer, whose groups are its own, and saves nothing of it."""

    def __init__(self, params):
        super().__init__(params, {"lr": 0.1})
        self.base = torch.optim.Adam(self.param_groups, 0.1)
        self.param_groups = self.base.param_groups

    def step(self) -> None:  # type: ignore[override]
        self.base.step()


class Sam(Outer):
    """With the load_state_dict() that davda54/sam has."""

    def load_state_dict(self, state_dict):
        super().load_state_dict(state_dict)
        self.base.param_groups = self.param_groups


class Several(torch.optim.Optimizer):
    def __init__(self, params):
        super().__init__(params, {"lr": 0.1})
        parts = [each for group in self.param_groups for each in group["params"]]
        self.inner = [torch.optim.SGD([each], 0.05, momentum=0.9) for each in parts]

    def step(self) -> None:  # type: ignore[override]
        for each in self.inner:
            each.step()


@pytest.mark.parametrize("kind", [Outer, Sam, Several])
def test_an_optimizer_inside_of_an_optimizer_comes_back(tmp_path, kind):
    """Alone, around another one, and where the inner one is tracked as well."""

    def alone():
        model = nn.Linear(4, 1)
        return {"model": model, "opt": kind(model.parameters())}

    def beside():
        state = alone()
        return state | {"inner": getattr(state["opt"], "base", None) or state["opt"].inner}

    for number, make in enumerate([alone, beside]):
        whole = trained(tmp_path / f"{number}-whole", make, lambda state, step: fit(state))
        assert numbers(whole) == numbers(resumed(tmp_path / str(number), make, lambda state, step: fit(state), 4))


class Warmup(LRScheduler):
    """Hands over to another scheduler, which it holds."""

    def __init__(self, optimizer, steps, after):
        self.steps, self.after = steps, after
        super().__init__(optimizer)

    def get_lr(self):
        if self.last_epoch <= self.steps:
            return [base * self.last_epoch / self.steps for base in self.base_lrs]
        after = self.after[-1] if isinstance(self.after, list | tuple) else self.after
        after.step(*([1.0] if isinstance(after, ReduceLROnPlateau) else []))
        return after.get_last_lr()


AFTER = {
    "cosine": lambda opt: CosineAnnealingLR(opt, 20),
    "plateau": lambda opt: ReduceLROnPlateau(opt, patience=0),
    "in a list": lambda opt: [ExponentialLR(opt, 0.9)],
    "in a tuple": lambda opt: (ExponentialLR(opt, 0.9),),
    "torch's sequence": lambda opt: SequentialLR(opt, [ExponentialLR(opt, 0.9), ExponentialLR(opt, 0.5)], [3]),
    "another warm-up": lambda opt: Warmup(opt, 2, ExponentialLR(opt, 0.9)),
}


@pytest.mark.filterwarnings("ignore:.*lr_scheduler.*")
@pytest.mark.parametrize("after", AFTER.values(), ids=AFTER)
def test_a_scheduler_inside_of_a_scheduler_comes_back(tmp_path, after):
    """Whatever it is, also in a list, cut in the warm-up and behind it."""

    def make():
        state = sgd(nn.Linear(4, 1))
        return state | {"sched": Warmup(state["opt"], 2, after(state["opt"]))}

    def step_of(state, step):
        fit(state)
        state["sched"].step()

    whole = numbers(trained(tmp_path / "whole", make, step_of))
    for cut in (1, 6):
        assert whole == numbers(resumed(tmp_path / str(cut), make, step_of, cut))


# Rates ------------------------------------------------------------------------------------------------------------


def annealed(state, step):
    state["opt"].param_groups[0]["lr"] = 0.1 / (step + 1)
    fit(state)


def rates_told(path, capsys):
    said = capsys.readouterr().err
    assert "resumes" in said
    return said.count("lr is")


def test_a_rate_that_the_script_changes_is_no_change_of_the_script(tmp_path, capsys):
    """An annealing of the script's own is silent at each resume. Another first rate is told, as ever."""
    make, other = lambda: sgd(nn.Linear(4, 1)), lambda: sgd(nn.Linear(4, 1))
    for cut in (2, 4, 6):
        with pytest.raises(Cut):
            trained(tmp_path, make, annealed, cut)
    assert 0 == rates_told(tmp_path, capsys)

    def changed():
        state = other()
        state["opt"].param_groups[0]["lr"] = 0.3
        return state

    with pytest.raises(Cut):
        trained(tmp_path, changed, annealed, 7)
    assert 1 == rates_told(tmp_path, capsys)


def test_a_rate_that_only_the_script_had_changed_is_told(tmp_path, capsys):
    """Nobody moved it in training: at each start, as long as the script says another one. An override is told, too."""
    make = lambda: sgd(nn.Linear(4, 1))

    def changed():
        state = make()
        state["opt"].param_groups[0]["lr"] = 0.3
        return state

    with pytest.raises(Cut):
        trained(tmp_path, make, lambda state, step: fit(state), 1)
    capsys.readouterr()
    for cut in (3, 5):
        with pytest.raises(Cut):
            trained(tmp_path, changed, lambda state, step: fit(state), cut)
        assert 1 == rates_told(tmp_path, capsys)
    with pytest.raises(Cut):
        trained(tmp_path, make, lambda state, step: fit(state), 6, overrides={"opt": {"lr": 0.05}})
    assert 0 == rates_told(tmp_path, capsys)
    trained(tmp_path, make, lambda state, step: fit(state))
    assert 1 == rates_told(tmp_path, capsys)


def test_a_rate_that_comes_back_to_its_first_value_has_not_moved():
    """A resumed run saves the same as another one: a warm-up ends at the rate that the script began with."""

    def begun():
        weight = nn.Parameter(torch.zeros(2))
        optimizer = torch.optim.SGD([weight], lr=1.0)
        optimizers.record_baseline(optimizer)
        return optimizer

    whole, resumed = begun(), begun()
    whole.param_groups[0]["lr"] = 0.5
    assert optimizers.capture(whole)[".besides"] == {"moved": [{"lr": 1.0}]}
    optimizers.restore(resumed, optimizers.capture(whole))
    for each in (whole, resumed):
        each.param_groups[0]["lr"] = 1.0
    assert optimizers.capture(resumed) == optimizers.capture(whole)
    for each in (whole, resumed):
        each.param_groups[0]["lr"] = 2.0
    assert optimizers.capture(resumed) == optimizers.capture(whole)
