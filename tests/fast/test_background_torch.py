"""Background saves of models and optimizers hold the bits of the safe point, whatever writes to their memory later."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from holdfast import Every, Last, Run, Store
from holdfast.store import shards

torch = pytest.importorskip("torch")

from torch import Tensor, nn  # noqa: E402
from torch.nn.utils import parametrizations  # noqa: E402
from torch.optim import Optimizer  # noqa: E402

from holdfast.torch import live  # noqa: E402
from holdfast.torch.items import memory  # noqa: E402

WIDTH = 64
WAIT_S = 30
State = dict[str, Any]
Change = Callable[[nn.Module, Optimizer], object]


def bits(tree: Any) -> Any:
    """A value that is equal exactly when every byte, dtype and shape is."""
    if isinstance(tree, torch.Tensor):
        return str(tree.dtype), tuple(tree.shape), bytes(memory(tree.detach().contiguous()))
    if isinstance(tree, dict):
        return [(key, bits(value)) for key, value in tree.items()]
    return [type(tree).__name__, *map(bits, tree)] if isinstance(tree, list | tuple) else repr(tree)


def state_bits(state: State) -> State:
    return {name: bits(live.capture(target)) for name, target in state.items()}


def tied() -> nn.Module:
    model = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.ReLU(), nn.Linear(WIDTH, WIDTH))
    model[2].weight = model[0].weight
    return model


def net() -> nn.Module:
    return nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.BatchNorm1d(WIDTH), nn.Linear(WIDTH, WIDTH))


OPTIMIZERS: dict[str, Callable[[nn.Module], Optimizer]] = {
    "SGD": lambda model: torch.optim.SGD(model.parameters(), 0.01, momentum=0.9),
    "AdamW, fused": lambda model: torch.optim.AdamW(model.parameters(), 0.01, fused=True),
    "AdamW, one kernel for all": lambda model: torch.optim.AdamW(model.parameters(), 0.01, foreach=True, amsgrad=True),
}
MODELS: dict[str, Callable[[], nn.Module]] = {
    "a net with buffers": net,
    "a tied weight": tied,
    "weight_norm": lambda: nn.Sequential(parametrizations.weight_norm(nn.Linear(WIDTH, WIDTH))),
}


def first(model: nn.Module) -> Tensor:
    return next(model.parameters())


def through_a_view(model: nn.Module, _: object) -> None:
    first(model).detach().numpy()[...] += 1


CHANGES: dict[str, Change] = {  # of memory that is being saved, besides the optimizer's step
    "a step alone": lambda model, optimizer: None,
    "a write through .data": lambda model, optimizer: first(model).data.mul_(1.01),
    "a write through a NumPy view": through_a_view,
    "other memory": lambda model, optimizer: setattr(first(model), "data", first(model).data * 2),
    "weights that are loaded": lambda model, optimizer: model.load_state_dict(
        {name: value * 2 for name, value in model.state_dict().items()}
    ),
    "moments": lambda model, optimizer: [
        value.add_(1)
        for entry in optimizer.state.values()
        for value in entry.values()
        if isinstance(value, torch.Tensor)
    ],
}
CASES = [(model, optimizer, "a step alone") for model in MODELS for optimizer in OPTIMIZERS]
CASES += [("a net with buffers", "SGD", change) for change in CHANGES]


def trained(path: Path, case: tuple[str, str, str], go: threading.Event) -> tuple[dict[int, State], dict[int, State]]:
    """The bits at each safe point, and those of each checkpoint; memory changes before a save may write any of it."""
    model = MODELS[case[0]]()
    optimizer, change = OPTIMIZERS[case[1]](model), CHANGES[case[2]]
    state, expected = {"model": model, "optimizer": optimizer}, {}
    with Run(path, state, every=Every(steps=1), keep=Last(99)) as run:
        for number in run.steps(4):
            optimizer.zero_grad()
            model(torch.randn(5, WIDTH)).square().mean().backward()
            optimizer.step()
            change(model, optimizer)
            go.set()
            run.wait()
            go.clear()
            expected[number + 1] = state_bits(state)
        go.set()
    saved = {each.step: each.load() for each in Store(path).checkpoints()}
    return expected, {step: {name: bits(each[name]) for name in state} for step, each in saved.items()}


def test_a_background_save_holds_the_bits_of_the_safe_point(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    """No convention about who may write: the writer starts only when the next step has changed the memory."""
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)
    go, real, held = threading.Event(), shards.write_shard, []

    def late(*given: Any) -> Any:
        if threading.current_thread().name == "holdfast":
            held.append(go.wait(WAIT_S))
        return real(*given)

    monkeypatch.setattr(shards, "write_shard", late)
    for number, case in enumerate(CASES):
        torch.manual_seed(0)
        held.clear()
        expected, found = trained(tmp_path / str(number), case, go)
        assert expected == found, case
        assert len(held) >= 3, case
        assert all(held), case
