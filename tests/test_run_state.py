"""State as people have it: containers, arrays, tensors and attributes, restored into the live objects by a run."""

from __future__ import annotations

import copy
import os

import pytest

from holdfast import Every, Run

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
