"""A value that began as another name's object: the restore writes into nothing that the loop has left."""

import gc
import random
from collections import deque
from dataclasses import dataclass
from types import MappingProxyType, SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from holdfast import Every, Fields, Last, Run
from holdfast.state.rebinding import RebindingTracker
from holdfast.store.store import Store
from stores import flip
from toy import Cut, events

TOTAL = 12


class Case:
    """A script's objects; made anew in each process. `first` is what other names hold too."""

    state: Any = MappingProxyType({})
    vars: Any = MappingProxyType({})
    first: Any = None

    def step(self, run: Any, step: int) -> None:
        raise NotImplementedError

    def result(self, run: Any) -> Any:
        raise NotImplementedError


class OfVars(Case):
    """An episode begins with zeros, which another name holds."""

    def __init__(self, first: Any) -> None:
        self.first, self.vars = first, {"h": first}

    def step(self, run: Any, step: int) -> None:
        if step % 5 == 0:
            run.vars.h = self.first
        run.vars.h = run.vars.h * 0.9 + random.random()

    def result(self, run: Any) -> Any:
        return run.vars.h.sum().item()


class OfNames(Case):
    """Fields of a script's variables: a chain that is pulled back to where it began."""

    def __init__(self, first: Any, place: Any = None) -> None:
        self.first, self.names = first, {"x": first if place is None else place}
        self.state = {"mine": Fields(self.names, "x")}

    def step(self, run: Any, step: int) -> None:
        self.names["x"] = self.names["x"] + 0.1 * (self.first - self.names["x"]) + random.random()

    def result(self, run: Any) -> Any:
        return self.names["x"].sum().item()


class OfAnObject(OfNames):
    """An attribute, in whose place the class has a default."""

    def __init__(self, first: Any) -> None:
        class Env:
            x = first

        self.first, env = first, Env()
        self.state, self.names = {"env": Fields(env, "x")}, {}
        self.env = env

    def step(self, run: Any, step: int) -> None:
        self.env.x = self.env.x * 0.9 + 0.1 * self.first + random.random()

    def result(self, run: Any) -> Any:
        return self.env.x.sum().item()


class OfAList(Case):
    """Lists, also as members of a container, and as the attribute that a class has."""

    def __init__(self) -> None:
        class Owner:
            counts: Any = [0, 0, 0]  # noqa: RUF012

        self.first, self.owner = [Owner.counts, [0, 0, 0]], Owner()
        self.table = {"row": self.first[1]}
        self.vars = {"counts": self.first[1], "total": 0}
        self.state = {"table": self.table, "owner": Fields(self.owner, "counts")}

    def step(self, run: Any, step: int) -> None:
        run.vars.counts = [count + random.randrange(5) for count in run.vars.counts]
        self.table["row"] = [count + random.randrange(3) for count in self.table["row"]]
        self.owner.counts = [*self.owner.counts, step]
        if sum(run.vars.counts) > 20:
            run.vars.total += sum(run.vars.counts)
            run.vars.counts = self.table["row"] = self.first[1]

    def result(self, run: Any) -> Any:
        return run.vars.total, run.vars.counts, self.table, self.owner.counts


class OfAWindow(Case):
    """A deque whose members move: at the same index stands another array."""

    def __init__(self, kind: Any) -> None:
        self.first = [np.full(3, float(number)) for number in range(4)]
        self.window = kind(self.first)
        self.state = {"window": self.window}

    def step(self, run: Any, step: int) -> None:
        self.window.append(self.window[0] + self.first[step % 4] + random.random())
        del self.window[0]

    def result(self, run: Any) -> Any:
        return [each.tolist() for each in self.window]


@dataclass
class Record:
    x: Any


class OfARecord(OfNames):
    """A dataclass in a list."""

    def __init__(self) -> None:
        self.first = np.ones(3)
        self.record = Record(self.first)
        self.state = {"records": [self.record]}

    def step(self, run: Any, step: int) -> None:
        self.record.x = self.record.x * 0.5 + self.first + random.random()

    def result(self, run: Any) -> Any:
        return self.record.x.tolist()


class Sphere(nn.Module):
    radius: torch.Tensor

    def __init__(self, inner: bool) -> None:
        super().__init__()
        self.init = torch.tensor([0.4])
        self.inner = Sphere(False) if inner else None
        self.register_buffer("radius", self.init)

    def forward(self, x: float) -> None:
        if self.inner is not None:
            self.inner(x)
        self.radius = self.radius * 0.9 + self.init * 0.1 + x


class OfABuffer(Case):
    """A module's buffer and an attribute of it, in a submodule too; `both`: the attribute is tracked as well."""

    def __init__(self, both: bool) -> None:
        self.module = Sphere(True)
        assert self.module.inner is not None
        self.first = [self.module.init, self.module.inner.init]
        self.state = {"m": self.module}
        if both:
            self.state["more"] = Fields(self.module, "init")

    def step(self, run: Any, step: int) -> None:
        self.module(random.random())

    def result(self, run: Any) -> Any:
        return [each.tolist() for each in self.module.buffers()]


class OfAConstant(OfNames):
    """A module's constant is tracked beside the variable that began with it."""

    def __init__(self, before: bool) -> None:
        super().__init__(np.ones(3))
        more = {"first": self.first}
        self.state = more | self.state if before else self.state | more


def half(array: Any) -> OfNames:
    return OfNames(array[:3], array[:3])


def over(first: Any, view: Any) -> OfNames:
    return OfNames(first, view(first))


CASES = {
    "run.vars, NumPy": lambda: OfVars(np.zeros(3)),
    "run.vars, torch": lambda: OfVars(torch.zeros(3)),
    "names, NumPy": lambda: OfNames(np.ones(3)),
    "names, torch": lambda: OfNames(torch.ones(3)),
    "a view, NumPy": lambda: half(np.arange(5.0)),
    "a view, torch": lambda: half(torch.arange(5.0)),
    "shared without a base": lambda: over(torch.ones(3), lambda it: it.detach()),
    "NumPy over torch": lambda: over(torch.ones(3).numpy(), lambda it: it[:]),
    "a class's default": lambda: OfAnObject(np.ones(3)),
    "lists": OfAList,
    "a list's members": lambda: OfAWindow(list),
    "a deque's members": lambda: OfAWindow(deque),
    "a dataclass": OfARecord,
    "a buffer": lambda: OfABuffer(False),
    "a buffer, both tracked": lambda: OfABuffer(True),
    "a constant, tracked first": lambda: OfAConstant(True),
    "a constant, tracked last": lambda: OfAConstant(False),
}


def attempt(case: Case, path: Any, cut: int | None) -> Any:
    random.seed(0)
    with Run(path, case.state, vars=case.vars, every=Every(steps=1), keep=Last(99), background=False) as run:
        for step in run.steps(TOTAL):
            if step == cut:
                raise Cut
            case.step(run, step)
        return case.result(run), [np.asarray(each).tolist() for each in case.first]


@pytest.mark.parametrize("name", CASES)
def test_what_other_names_hold_is_as_in_an_uninterrupted_run(name, tmp_path):
    """The loop bound the place to another object: a resume sets it, and leaves the first one alone. Two resumes."""
    whole = attempt(CASES[name](), tmp_path / "whole", None)
    for cut in (4, 9):
        with pytest.raises(Cut):
            attempt(CASES[name](), tmp_path / "cut", cut)
    assert whole == attempt(CASES[name](), tmp_path / "cut", None)
    assert len(events(tmp_path / "cut", "restored")) == 3
    newest = (tmp_path / "cut/checkpoints/latest/manifest.json").read_bytes()
    assert newest.startswith(b'{"holdfast": 6,'), "it has what version 1 has not"


@pytest.mark.parametrize("name", ["run.vars, NumPy", "lists", "a buffer", "a view, torch", "NumPy over torch"])
def test_the_law_above_can_fail(name, tmp_path, monkeypatch):
    """If no place counts as bound anew, the resumed run ends with other numbers, as it did."""
    monkeypatch.setattr(RebindingTracker, "rebound_places", lambda _: [])
    whole = attempt(CASES[name](), tmp_path / "whole", None)
    with pytest.raises(Cut):
        attempt(CASES[name](), tmp_path / "cut", 9)
    assert whole != attempt(CASES[name](), tmp_path / "cut", None)


@pytest.mark.parametrize("before", [True, False])
def test_a_constant_beside_a_place_that_can_be_set_is_never_refused(before, tmp_path, monkeypatch):
    """Also from a checkpoint that does not say what was bound anew: the constant is filled, the place is set."""
    with monkeypatch.context() as patch:
        patch.setattr(RebindingTracker, "rebound_places", lambda _: [])
        with pytest.raises(Cut):
            attempt(OfAConstant(before), tmp_path / "cut", 9)
    whole = attempt(OfAConstant(before), tmp_path / "whole", None)
    assert whole == attempt(OfAConstant(before), tmp_path / "cut", None)


def test_a_second_block_counts_from_the_first_one(tmp_path):
    """A fresh process begins with the first objects: what the first block bound anew is noted in the second, too."""

    def train(cut):
        case = OfNames(np.ones(3))
        random.seed(0)
        run = Run(tmp_path, case.state, every=Every(steps=1), background=False)
        for total in (3, 8):
            with run:
                for step in run.steps(total):
                    if step == cut:
                        raise Cut
                    case.step(run, step)
        return case.result(run), case.first.tolist()

    with pytest.raises(Cut):
        train(6)
    assert train(None)[1] == [1.0] * 3


def test_a_place_that_was_never_bound_anew_is_filled(tmp_path):
    """Other code that holds the memory, a view's base too, sees the restored numbers."""

    def objects() -> Any:
        base, rows = np.zeros(6), [0]
        holder = SimpleNamespace(view=base[:3], rows=rows)
        return base, rows, holder, torch.zeros(2)

    def train(cut: int | None) -> Any:
        base, rows, holder, tensor = objects()
        state = {"it": Fields(holder, "view", "rows")}
        with Run(tmp_path, state, vars={"t": tensor}, every=Every(steps=1), background=False) as run:
            for step in run.steps(4):
                if step == cut:
                    raise Cut
                holder.view += 1
                run.vars.t.add_(1)
                rows.append(step)
        assert run.vars.t is tensor
        assert holder.rows is rows
        return base.tolist(), rows, tensor.tolist()

    with pytest.raises(Cut):
        train(3)
    assert ([4.0] * 3 + [0.0] * 3, [0, 0, 1, 2, 3], [4.0] * 2) == train(None)


def test_a_loop_whose_first_values_nobody_else_holds_writes_nothing_more(tmp_path):
    """New lists, arrays and tensors under names of run.vars, Fields and containers, and buffers: no place is noted."""
    norm = nn.BatchNorm1d(3)
    holder = SimpleNamespace(x=np.zeros(3), rows=[0])
    members: Any = [np.zeros(3), [1]]
    with Run(
        tmp_path, {"norm": norm, "it": Fields(holder, "x", "rows"), "members": members},
        vars={"h": torch.zeros(3), "rows": [], "table": {"row": [1]}}, every=Every(steps=1),
    ) as run:  # fmt: skip
        for step in run.steps(6):
            run.vars.h = run.vars.h + 1
            run.vars.rows = [*run.vars.rows, step]
            run.vars.table = {"row": [step]}
            holder.x, holder.rows = holder.x + 1, [step]
            members[:] = [members[0] + 1, [step]]
            norm(torch.randn(4, 3))
            assert run._tracked.rebound_objects() == []
    assert (tmp_path / "checkpoints/latest/manifest.json").read_bytes().startswith(b'{"holdfast": 1,')


def test_a_damaged_checkpoint_leaves_no_hold_on_what_it_was_read_into(tmp_path):
    """An error's frames held the arrays until the garbage collector came: the drill called such a run different."""

    def train(steps):
        state = {"model": {"w": np.zeros(500)}}
        with Run(tmp_path / "run", state, every=Every(steps=1), keep=Last(2)) as run:
            for step in run.steps(steps):
                state["model"]["w"] = state["model"]["w"] + step

    train(4)
    flip(tmp_path / "run/checkpoints/step-000000004/model.safetensors")
    gc.disable()
    try:
        train(6)
    finally:
        gc.enable()
    assert {"step-000000004"} == {each["name"] for each in events(tmp_path / "run", "quarantined")}
    assert "bound_anew" not in Store(tmp_path / "run").latest().load()["holdfast"]
