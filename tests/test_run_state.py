"""State as people have it: containers, arrays, tensors and attributes, restored into the live objects by a run."""

from __future__ import annotations

import copy
import os
import random
from collections import deque

import pytest

from holdfast import Every, Run
from holdfast.errors import UsageError
from toy import events

torch = pytest.importorskip("torch")
np = pytest.importorskip("numpy")

from torch import nn  # noqa: E402


@pytest.fixture(autouse=True)
def _unsynced(monkeypatch):
    """No power fails here, and synchronising is most of a small save's time."""
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)


class Cut(BaseException):
    """The process is gone, as far as a run can tell within one process."""


def run_to(path, state, total, body, *, cut=None, **options):
    """Train to `total`; `cut`: the step whose body never ends."""
    try:
        with Run(path, state, every=Every(steps=1), background=False, **options) as run:
            for step in run.steps(total):
                body(run, step)
                if step == cut:
                    raise Cut
    except Cut:
        assert cut is not None


# A module's state_dict() inside other state -----------------------------------------------------------------------


class Average:
    """An average of a model, whose state_dict() nests the module's own."""

    def __init__(self, model):
        self.module = copy.deepcopy(model)

    def state_dict(self):
        return {"module": self.module.state_dict()}

    def load_state_dict(self, state):
        self.module.load_state_dict(state["module"])


def test_a_copy_of_a_modules_state_dict_in_run_vars_is_restored(tmp_path):
    """Best weights: `run.vars.best = copy.deepcopy(model.state_dict())` holds real tensors after a restart."""

    def body(run, step):
        model.weight.data += 1
        run.vars.best = copy.deepcopy(model.state_dict())

    model = nn.Linear(2, 2)
    run_to(tmp_path, {"model": model}, 4, body, cut=2)
    model = nn.Linear(2, 2)
    with Run(tmp_path, {"model": model}) as run:
        assert torch.equal(model.weight, run.vars.best["weight"])
        model.load_state_dict(run.vars.best)


def test_a_stateful_object_may_nest_a_modules_state_dict(tmp_path):
    """An average keeps `{"module": module.state_dict()}`; it gets tensors, not handles of them."""
    average = Average(nn.Linear(2, 2))
    run_to(tmp_path, {"average": average}, 2, lambda run, step: average.module.weight.data.add_(1))
    fresh = Average(nn.Linear(2, 2))
    with Run(tmp_path, {"average": fresh}):
        assert torch.equal(average.module.weight, fresh.module.weight)


# What cannot be saved ----------------------------------------------------------------------------------------------


def test_what_cannot_be_saved_is_refused_at_the_first_safe_point(tmp_path):
    """Not by the first save, hours later: the state and run.vars are taken apart after the first step."""

    class Growing:
        def __init__(self):
            self.state = {}

        def state_dict(self):
            return self.state

        def load_state_dict(self, state):
            self.state = state

    growing, steps = Growing(), []

    def body(run, step):
        steps.append(step)
        growing.state["odd"] = lambda: None

    with (
        pytest.raises(UsageError, match=r'state\["growing"\]\["odd"\]'),
        Run(tmp_path, {"growing": growing}, every=None) as run,
    ):
        for step in run.steps(5):
            body(run, step)
    assert [0] == steps


def test_a_variable_that_comes_later_is_looked_at_when_it_is_new(tmp_path):
    """At the next safe point; the message names it."""
    steps = []
    with pytest.raises(UsageError, match=r'\["vars"\]\["odd"\]'), Run(tmp_path, {}, every=None) as run:
        for step in run.steps(5):
            steps.append(step)
            if step == 2:
                run.vars.odd = lambda: None
    assert [0, 1, 2] == steps


# What is told once ----------------------------------------------------------------------------------------------


def told(path):
    return [(event["kind"], event["name"]) for event in events(path, "told") if "kind" in event]


def walk(path, state, body, total=6, **options):
    """A run of `total` steps; what it told."""
    with Run(path, state, every=Every(steps=1), **options) as run:
        for step in run.steps(total):
            body(run, step)
    return told(path)


def test_a_rebound_tensor_is_told_once(tmp_path, capsys):
    """`hidden = rnn(x, hidden)`: the run holds the old one, and the line to write is said."""
    cell = nn.RNNCell(2, 2)
    hidden = torch.zeros(1, 2)
    with Run(tmp_path, {"cell": cell, "hidden": hidden}, every=Every(steps=1)) as run:
        for _ in run.steps(8):
            hidden = cell(torch.randn(1, 2), hidden.detach())
            hidden.sum().backward()
    assert [("rebound", "hidden")] == told(tmp_path)
    assert (
        "Write run.vars.hidden = hidden in the loop, or change it in place: hidden.copy_(...)"
        in capsys.readouterr().err
    )


@pytest.mark.parametrize("kind", ["list", "dict", "array", "deque", "tensor"])
def test_a_rebound_value_is_told_in_state_and_in_vars(tmp_path, kind):
    """Whatever its type. What the loop goes on using stays silent."""
    make = {
        "list": lambda: [1],
        "dict": lambda: {"a": 1},
        "array": lambda: np.zeros(2),
        "deque": lambda: deque([1]),
        "tensor": lambda: torch.zeros(2),
    }[kind]
    value, other, constant = make(), make(), make()
    with Run(tmp_path, {"value": value, "constant": constant}, vars={"other": other}) as run:
        for _ in run.steps(6):
            value, other = make(), make()
    assert {("rebound", "value"), ("rebound", "other")} == set(told(tmp_path))
    assert 2 == len(told(tmp_path))
    assert constant is not None


def test_an_attribute_that_is_bound_anew_is_told(tmp_path):
    """`self.hidden = ...` in a class of the loop's."""

    class Loop:
        hidden = torch.zeros(2)

        def __init__(self):
            self.hidden = torch.zeros(2)

    loop = Loop()

    def body(run, step):
        loop.hidden = loop.hidden + 1

    assert [("rebound", "hidden")] == walk(tmp_path, {"hidden": loop.hidden}, body)


def test_values_in_use_and_values_given_inline_are_silent(tmp_path):
    """In-place changes, constants, views, members, what is read from run.vars, and what nobody but the run ever held."""
    array, weights, buffer = np.zeros(4), torch.ones(3), torch.zeros(4)
    rows, items, queue = [np.zeros(2), np.zeros(2)], [1], deque()
    row, part, view = rows[0], buffer[:2], array[:2]
    state = {"array": array, "weights": weights, "buffer": buffer, "rows": rows, "inline": [1], "loss": torch.zeros(1)}
    first = {"items": items, "queue": queue, "best": {}}
    del array, buffer, rows, items

    def body(run, step):
        row[:] += 1
        part.add_(1)
        view[:] += 1
        run.vars.items.append(step)
        queue.append(float(weights.sum()))

    assert [] == walk(tmp_path, state, body, vars=first)


def test_a_function_that_made_the_objects_and_returned_rebinds_nothing(tmp_path):
    """Its names are gone; that is no mistake."""

    def entered():
        stats = [1]
        run = Run(tmp_path, {"stats": stats}, vars={"more": stats})
        run.__enter__()
        return run

    run = entered()
    for _ in run.steps(4):
        pass
    run.__exit__(None, None, None)
    assert [] == told(tmp_path)


def test_a_generator_that_the_loop_no_longer_uses_is_told(tmp_path):
    """`env.reset(seed=)` makes a new one; the old one is tracked."""

    class Env:
        def reset(self, seed):
            self.np_random = np.random.default_rng(seed)

    for number, (make, draws) in enumerate(
        [
            (np.random.default_rng, True),
            (np.random.RandomState, True),
            (random.Random, True),
            (lambda seed: torch.Generator().manual_seed(seed), True),
            (np.random.default_rng, False),
        ]
    ):
        env = Env()
        env.np_random = make(0)

        def body(run, step, env=env, make=make, draws=draws):
            if step == 1 and draws:
                env.np_random = make(1)

        expected = [("generator_replaced", "rng")] if draws else []
        assert expected == walk(tmp_path / str(number), {"rng": env.np_random}, body)


def test_a_generator_whose_bits_are_still_drawn_from_is_silent(tmp_path):
    """Somebody may hold the bit generator alone."""
    rng = np.random.default_rng(0)
    bits = rng.bit_generator

    def body(run, step):
        bits.random_raw()

    state = {"rng": rng}
    del rng
    assert [] == walk(tmp_path, state, body)


def learn(model, optimizer):
    optimizer.zero_grad()
    model(torch.ones(1, 2)).sum().backward()
    optimizer.step()


def sgd(model):
    return torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)


def test_an_optimizer_of_another_model_is_told(tmp_path):
    """The model was copied, or made anew, after the run got the first one."""
    tracked = nn.Linear(2, 2)
    model = copy.deepcopy(tracked)
    optimizer = sgd(model)
    state = {"model": tracked, "optimizer": optimizer}
    assert [("untracked_parameters", "optimizer")] == walk(tmp_path, state, lambda run, step: learn(model, optimizer))


def ema():
    model = nn.Linear(2, 2)
    return {"model": model, "ema": copy.deepcopy(model), "optimizer": sgd(model)}, model


def target():
    model = nn.Linear(2, 2)
    nets = {"q": model, "target": copy.deepcopy(model).requires_grad_(False)}
    return {"nets": nets, "optimizer": sgd(model)}, model


def frozen():
    backbone, head = nn.Linear(2, 2).requires_grad_(False), nn.Linear(2, 2)
    model = nn.Sequential(backbone, head)
    return {"backbone": backbone, "head": head, "optimizer": sgd(head)}, model


def gan():
    one, other = nn.Linear(2, 2), nn.Linear(2, 2)
    return {"g": one, "d": other, "optimizer": sgd(one), "other": sgd(other)}, one


def wrapped():
    model = nn.Linear(2, 2)

    class Trainer:
        def state_dict(self):
            return {"model": model.state_dict()}

        def load_state_dict(self, state):
            model.load_state_dict(state["model"])

    return {"trainer": Trainer(), "teacher": copy.deepcopy(model), "optimizer": sgd(model)}, model


def moved():
    model = nn.Linear(2, 2)
    optimizer = sgd(model)
    return {"model": nn.DataParallel(model.to("cpu")), "optimizer": optimizer}, model


@pytest.mark.parametrize("make", [ema, target, frozen, gan, wrapped, moved])
def test_models_that_no_optimizer_steps_are_silent(tmp_path, make):
    """An average, a target network, a frozen backbone, two of each, a model inside another object, a wrapper."""
    state, model = make()
    assert [] == walk(tmp_path, state, lambda run, step: learn(model, state["optimizer"]))
