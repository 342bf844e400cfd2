"""Overlap: the copy of a periodic save is made while the next forward and backward pass run, and is never of anything but
the safe point.

Every test holds each committed checkpoint against the bits that the state had at its safe point.
"""

from __future__ import annotations

import copy
import io
import math
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from holdfast import Every, Last, Run, Store
from holdfast.errors import StoreError
from holdfast.pages import Data, Wait
from holdfast.run import overlap, saving
from holdfast.run.overlap import Overlap
from holdfast.run.writer import Writer
from holdfast.state import snapshot
from holdfast.state.tree import flatten
from holdfast.store.shards import Abandoned
from holdfast.threads import Latch
from toy import Cut, events

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402
from torch.nn.utils import parametrizations  # noqa: E402

from holdfast.torch import live  # noqa: E402
from holdfast.torch.leaves import memory  # noqa: E402

WIDTH = 64  # of weights that are large enough to be borrowed
LONG_S = 30

State = dict[str, Any]
Made = tuple[State, Callable[[], None]]  # the tracked objects, and one step of their training


@pytest.fixture(autouse=True)
def _unsynced(monkeypatch: pytest.MonkeyPatch) -> None:
    """No power fails here, and synchronising is most of a small save's time."""
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)


@pytest.fixture(autouse=True)
def _seeded() -> None:
    torch.manual_seed(0)


@pytest.fixture
def left(monkeypatch: pytest.MonkeyPatch) -> list[set[str]]:
    """Of each save in the background, the leaves that its writer's thread copied."""
    seen: list[set[str]] = []
    real = Overlap.finish

    def finish(self: Overlap, taken: snapshot.Snapshot) -> None:
        seen.append(set(taken.left))
        real(self, taken)

    monkeypatch.setattr(Overlap, "finish", finish)
    return seen


class Held:
    """Copies by the writer's thread that wait until `free` is set."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.free = threading.Event()
        self.free.set()
        real = snapshot.begin_copy

        def held(target: memoryview, source: Data) -> Wait | None:
            if threading.current_thread().name == "holdfast":
                assert self.free.wait(LONG_S)
            return real(target, source)

        monkeypatch.setattr(snapshot, "begin_copy", held)

    def hold(self, run: Run) -> None:
        """From the next save on."""
        run.wait()
        self.free.clear()


@pytest.fixture
def held(monkeypatch: pytest.MonkeyPatch) -> Iterator[Held]:
    made = Held(monkeypatch)
    yield made
    made.free.set()


def bits(tree: Any) -> Any:
    """A value that is equal exactly when every byte, dtype and shape is."""
    if isinstance(tree, torch.Tensor):
        return str(tree.dtype), tuple(tree.shape), bytes(memory(tree.detach().contiguous()))
    if isinstance(tree, dict):
        return [(key, bits(value)) for key, value in tree.items()]
    if isinstance(tree, list | tuple):
        return [type(tree).__name__, *map(bits, tree)]
    return repr(tree)


def plain(target: Any) -> Any:
    return live.capture(target) if live.handles(target) else target.state_dict()


def state_bits(state: State) -> Any:
    return {name: bits(plain(target)) for name, target in state.items()}


def trained(
    path: Path,
    made: Made,
    steps: int = 6,
    *,
    between: Callable[[Run, int], None] = lambda run, step: None,
    **options: Any,
) -> set[int]:
    """Train with a save at each step, and hold what was committed against what was there; the steps that were saved.

    `between` is called in the loop's body before the step is taken.
    """
    state, step = made
    expected = {}
    with Run(path, state, **{"every": Every(steps=1), "keep": Last(99), **options}) as run:
        for number in run.steps(steps):
            between(run, number)
            step()
            expected[number + 1] = state_bits(state)
    found = Store(path).checkpoints()
    for checkpoint in found:
        saved = checkpoint.load()
        assert expected[checkpoint.step] == {name: bits(saved[name]) for name in state}, checkpoint.step
    return {checkpoint.step for checkpoint in found}


def net() -> nn.Sequential:
    return nn.Sequential(
        nn.Linear(WIDTH, WIDTH), nn.BatchNorm1d(WIDTH), nn.ReLU(), nn.Dropout(0.2), nn.Linear(WIDTH, WIDTH)
    )


def learning(model: Any, optimizer: Any, **others: Any) -> Made:
    def step() -> None:
        optimizer.zero_grad()
        model(torch.randn(5, WIDTH)).square().mean().backward()
        optimizer.step()

    return {"model": model, "optimizer": optimizer, **others}, step


def adam(model: nn.Module, **options: Any) -> Made:
    return learning(model, torch.optim.AdamW(model.parameters(), 0.01, **options))


def sgd(model: nn.Module) -> Made:
    return learning(model, torch.optim.SGD(model.parameters(), 0.01, momentum=0.9))


def two_optimizers() -> Made:
    one, other = net(), net()
    state, step = learning(one, torch.optim.Adam(one.parameters(), 0.01))
    more, another = learning(other, torch.optim.RMSprop(other.parameters(), 0.01, momentum=0.5))

    def both() -> None:
        step()
        another()

    return {**state, "other": more["model"], "its": more["optimizer"]}, both


def scaled() -> Made:
    model = net()
    optimizer, scaler = torch.optim.SGD(model.parameters(), 0.01), torch.amp.GradScaler("cpu", growth_interval=2)

    def step() -> None:
        optimizer.zero_grad()
        with torch.autocast("cpu", torch.bfloat16):
            loss = model(torch.randn(5, WIDTH)).square().mean()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()

    return {"model": model, "optimizer": optimizer, "scaler": scaler}, step


def lbfgs() -> Made:
    model = nn.Linear(WIDTH, WIDTH)
    optimizer = torch.optim.LBFGS(model.parameters(), 0.1, max_iter=3)

    def closure() -> torch.Tensor:
        optimizer.zero_grad()
        loss = model(torch.randn(5, WIDTH)).square().mean()
        loss.backward()
        return loss

    return {"model": model, "optimizer": optimizer}, lambda: optimizer.step(closure) and None


def accumulating() -> Made:
    """A step in every second safe point only."""
    state, _ = adam(net())
    model, optimizer = state["model"], state["optimizer"]
    turn = iter(range(99))

    def step() -> None:
        model(torch.randn(5, WIDTH)).square().mean().backward()
        if next(turn) % 2:
            optimizer.step()
            optimizer.zero_grad()

    return state, step


def tied() -> nn.Module:
    model = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.ReLU(), nn.Linear(WIDTH, WIDTH))
    model[2].weight = model[0].weight
    return model


def adafactor() -> Made:
    model = net()
    return learning(model, torch.optim.Adafactor(model.parameters(), 0.01))


def bf16() -> Made:
    model = nn.Linear(2 * WIDTH, 2 * WIDTH).bfloat16()
    optimizer = torch.optim.AdamW(model.parameters(), 0.01)

    def step() -> None:
        optimizer.zero_grad()
        model(torch.randn(5, 2 * WIDTH, dtype=torch.bfloat16)).square().mean().backward()
        optimizer.step()

    return {"model": model, "optimizer": optimizer}, step


WELL: dict[str, Callable[[], Made]] = {
    "SGD with momentum": lambda: sgd(net()),
    "AdamW": lambda: adam(net()),
    "AdamW, fused": lambda: adam(net(), fused=True),
    "AdamW, one kernel for all": lambda: adam(net(), foreach=True, amsgrad=True),
    "Adafactor": adafactor,
    "LBFGS": lbfgs,
    "two optimizers": two_optimizers,
    "a gradient scaler": scaled,
    "accumulated gradients": accumulating,
    "a tied weight": lambda: adam(tied()),
    "weight_norm": lambda: adam(nn.Sequential(parametrizations.weight_norm(nn.Linear(WIDTH, WIDTH)))),
    "spectral_norm": lambda: adam(nn.Sequential(parametrizations.spectral_norm(nn.Linear(WIDTH, WIDTH)))),
    "bf16": bf16,
}


@pytest.mark.parametrize("kind", WELL)
def test_an_overlapped_save_holds_the_safe_point(kind: str, left: list[set[str]], tmp_path: Path, capsys: Any):
    """After one save whose copy was tried, weights and moments are copied beside the loop; each checkpoint is exact."""
    steps = trained(tmp_path, WELL[kind](), steps=7)
    assert steps == set(range(1, 8))
    assert any(left), "nothing was overlapped"
    assert "overlap is off" not in capsys.readouterr().err


def test_buffers_are_copied_at_once(left: list[set[str]], held: Held, tmp_path: Path):
    """Each copy of the weights is held back until the next forward pass has changed a batch norm's running means."""
    model = nn.Sequential(nn.Linear(WIDTH, 1 << 13), nn.BatchNorm1d(1 << 13), nn.Linear(1 << 13, 1))  # 32 KiB of means
    model[1].register_forward_hook(lambda *_: held.free.set())
    state, step = adam(model)

    def and_hold() -> None:
        step()
        held.free.clear()

    assert trained(tmp_path, (state, and_hold)) == set(range(1, 7))
    assert sum("model/0.weight" in keys for keys in left) > 2
    assert not any("running" in key for keys in left for key in keys)


class Waited(Latch):
    """Tells when somebody begins to wait for it."""

    def __init__(self) -> None:
        super().__init__()
        self.begun = threading.Event()

    def wait(self, timeout_s: float = math.inf) -> bool:
        self.begun.set()
        return super().wait(timeout_s)


def test_a_step_waits_for_the_copy(left: list[set[str]], monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    """Every copy is held back until the loop waits for it; were there a step that does not, its bytes would show."""
    real = Overlap.finish
    waits = []

    def finish(self: Overlap, taken: snapshot.Snapshot) -> None:
        if taken.left:
            waits.append(taken.copied.begun.wait(LONG_S))
        real(self, taken)

    monkeypatch.setattr(Overlap, "finish", finish)
    monkeypatch.setattr(snapshot, "Latch", Waited)
    trained(tmp_path, adam(net()))
    assert len(waits) > 2
    assert all(waits)


# Laid out beside the loop


@pytest.fixture
def staged_by(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The thread that laid each save out."""
    names: list[str] = []
    real = Store.lay_out

    def stage(*given: Any) -> Any:
        names.append(threading.current_thread().name)
        return real(*given)

    monkeypatch.setattr(Store, "lay_out", stage)
    return names


def laid_out(state: State) -> dict[str, tuple[str, tuple[int, ...]]]:
    """Dtype and shape of each leaf as a save that copies at once would have it."""
    leaves = flatten({name: plain(target) for name, target in state.items()}).leaves
    return {key: (block.dtype, tuple(block.shape)) for key, block in leaves.items()}


def test_a_tried_state_is_laid_out_beside_the_loop(staged_by: list[str], tmp_path: Path):
    """The first saves by the loop, one of them tried, and the last, for which it waits; those between by the writer."""
    trained(tmp_path, adam(net()), steps=8)
    *due, last = (name == "holdfast" for name in staged_by)
    assert not last
    assert sorted(due) == due
    assert [False, True, True, True, True] == [due[0], *due[-4:]]


def refit(state: State) -> None:
    """The optimizer steps what the model has now."""
    optimizer, old = state["optimizer"], set(state["optimizer"].param_groups[0]["params"])
    optimizer.param_groups[0]["params"] = list(state["model"].parameters())
    for parameter in old - set(state["model"].parameters()):
        optimizer.state.pop(parameter, None)


def wider(state: State) -> None:
    state["model"][4] = nn.Linear(WIDTH, 2 * WIDTH)
    refit(state)


def another_group(state: State) -> None:
    state["model"].add_module("5", nn.Linear(WIDTH, WIDTH))
    state["optimizer"].add_param_group({"params": list(state["model"][5].parameters())})


def one_group_less(state: State) -> None:
    del state["model"][4]
    refit(state)


def untied(state: State) -> None:
    state["model"][2].weight = nn.Parameter(state["model"][0].weight.detach().clone())
    refit(state)


def made_tied(state: State) -> None:
    state["model"][4].weight = state["model"][0].weight
    refit(state)


def renamed(state: State) -> None:
    last = state["model"][4]
    del state["model"][4]
    state["model"].add_module("last", last)


def transposed(state: State) -> None:
    """The same bytes in the same place, read in another order."""
    weight = state["model"][0].weight
    weight.data = weight.data.t()


def halved(state: State) -> None:
    """A weight of half the rows over the same memory."""
    state["model"][4].weight.data = state["model"][4].weight.data[: WIDTH // 2 + 8]
    state["model"][4].bias.data = state["model"][4].bias.data[: WIDTH // 2 + 8]
    for parameter in state["model"][4].parameters():
        del state["optimizer"].state[parameter]
        parameter.grad = None


def swapped_moments(state: State) -> None:
    one, other = (state["optimizer"].state[state["model"][number].weight] for number in (0, 4))
    one["exp_avg"], other["exp_avg"] = other["exp_avg"], one["exp_avg"]


def another_buffer(state: State) -> None:
    state["model"].register_buffer("extra", torch.arange(7))


def a_view_of_a_weight(state: State) -> None:
    state["model"].register_buffer("extra", state["model"][0].weight.detach()[:2])


def a_buffer_in_two_places(state: State) -> None:
    state["model"].register_buffer("extra", torch.arange(7))
    state["model"][4].register_buffer("extra", state["model"].extra)


CHANGES: dict[str, tuple[Callable[[], Made], Callable[[State], None]]] = {
    "another shape": (lambda: adam(net()), wider),
    "a new parameter group": (lambda: adam(net()), another_group),
    "parameters that are gone": (lambda: adam(net()), one_group_less),
    "a tied weight untied": (lambda: adam(tied()), untied),
    "two weights tied": (lambda: adam(net()), made_tied),
    "other names": (lambda: adam(net()), renamed),
    "another order in memory": (lambda: adam(net()), transposed),
    "less of the same memory": (lambda: adam(net()), halved),
    "moments swapped": (lambda: adam(net()), swapped_moments),
    "a new buffer": (lambda: adam(net()), another_buffer),
    "a buffer over a weight": (lambda: adam(net()), a_view_of_a_weight),
    "a buffer in two places": (lambda: adam(net()), a_buffer_in_two_places),
}


MISSED = ("other names", "moments swapped")  # in places that are all known: seen by the writer, and made again


@pytest.mark.parametrize("kind", CHANGES)
def test_a_save_after_a_change_of_structure_has_the_new_one(kind: str, staged_by: list[str], tmp_path: Path):
    """Nothing of the save before is used that does not hold: names, ties, shapes and bytes are those of the safe point."""
    make, change = CHANGES[kind]
    state, step = make()
    here = threading.current_thread().name
    expected = {}

    def between(run: Run, number: int) -> None:
        expected[number] = laid_out(state)
        if number == 7:
            assert staged_by[-1] == "holdfast"
            run.wait()
            change(state)

    steps = trained(tmp_path, (state, step), steps=14, between=between)
    assert set(range(1, 15)) - ({8} if kind in MISSED else set()) == steps
    for checkpoint in Store(tmp_path).checkpoints()[:-1]:
        leaves = {key: (leaf.dtype, leaf.shape) for key, leaf in checkpoint.manifest.leaves.items()}
        mine = {key: leaf for key, leaf in leaves.items() if not key.startswith("holdfast/")}
        assert expected[checkpoint.step] == mine, checkpoint.step
    assert here in staged_by[6:]


def test_moments_under_other_names_are_saved_again(staged_by: list[str], tmp_path: Path, capsys: Any):
    """All places are known, and what lies in them is another leaf's: that save is not made, the next one is, by the loop."""
    state, step = adam(net())

    def between(run: Run, number: int) -> None:
        if number == 7:
            run.wait()
            swapped_moments(state)

    assert 8 not in trained(tmp_path, (state, step), steps=9, between=between)
    assert "step 8 is not saved, and training goes on: its tensors have other names" in capsys.readouterr().err


def test_moments_that_take_turns_cost_two_saves_and_no_more(tmp_path: Path, capsys: Any):
    """An optimizer with two buffers that swaps them in each step: soon such states are laid out by the loop."""
    state, step = adam(net())
    entries = state["optimizer"].state

    def and_take_turns() -> None:
        step()
        entry = entries[state["model"][0].weight]
        entry.setdefault("spare", torch.zeros(WIDTH, WIDTH))
        entry["exp_avg"], entry["spare"] = entry["spare"].copy_(entry["exp_avg"]), entry["exp_avg"]

    steps = trained(tmp_path, (state, and_take_turns), steps=20)
    assert 18 == len(steps)
    assert 2 == capsys.readouterr().err.count("its tensors have other names")


def test_what_the_loop_changes_meanwhile_is_not_saved(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    """Lists of the user's, buffers and step counts change before the writer's thread has seen them."""
    go, real = threading.Event(), Overlap._laid_out
    held: list[bool] = []

    def laid_out(*given: Any) -> Any:
        held.append(go.wait(LONG_S))
        return real(*given)

    monkeypatch.setattr(Overlap, "_laid_out", laid_out)
    state, step = adam(net())
    steps = state["optimizer"].state
    expected = {}

    def between(run: Run, number: int) -> None:
        if number == 0:
            run.vars.seen = [[]]
        run.vars.seen[0].append(number)
        state["model"][1].running_mean += 1
        for entry in steps.values():
            entry["step"] += 1
        go.set()
        state["model"](torch.randn(5, WIDTH))

    def and_hold() -> None:
        step()
        go.clear()
        expected[len(expected) + 1] = list(range(len(expected) + 1))

    assert trained(tmp_path, (state, and_hold), steps=8, between=between) == set(range(1, 9))
    assert len(held) >= 2
    assert all(held)
    for checkpoint in Store(tmp_path).checkpoints():
        assert [expected[checkpoint.step]] == checkpoint.load()["holdfast"]["vars"]["seen"]


MISUSED: dict[str, Callable[[torch.Tensor], object]] = {
    "turned": lambda weight: weight.t_(),
    "given other memory": lambda weight: weight.set_(torch.zeros(3)),
    "given other data": lambda weight: setattr(weight, "data", torch.zeros(3)),
}


@pytest.mark.parametrize("kind", MISUSED)
def test_a_tensor_of_the_users_over_a_weight_is_saved_as_it_was(
    kind: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
):
    """It is turned, or made another's, right after the safe point: what the writer's thread sees is none of that."""
    go, real = threading.Event(), Overlap._laid_out
    held: list[bool] = []

    def laid_out(*given: Any) -> Any:
        held.append(go.wait(LONG_S))
        return real(*given)

    monkeypatch.setattr(Overlap, "_laid_out", laid_out)
    state, step = adam(net())
    weight = state["model"][0].weight

    def between(run: Run, number: int) -> None:
        if number:
            MISUSED[kind](run.vars.weight)
        go.set()
        run.wait()
        run.vars.weight = weight.data

    def and_hold() -> None:
        step()
        go.clear()

    assert trained(tmp_path, (state, and_hold), steps=8, between=between) == set(range(1, 9))
    assert len(held) >= 2
    for checkpoint in Store(tmp_path).checkpoints():
        saved = checkpoint.load()
        assert bits(saved["model"]["0.weight"]) == bits(saved["holdfast"]["vars"]["weight"])


def test_an_empty_tensor_in_two_places_comes_back_as_one(staged_by: list[str], tmp_path: Path):
    """Whoever lays it out."""

    def between(run: Run, number: int) -> None:
        run.vars.one = run.vars.other = torch.zeros(0)

    trained(tmp_path, adam(net()), steps=8, between=between)
    assert "holdfast" in staged_by
    for checkpoint in Store(tmp_path).checkpoints():
        variables = checkpoint.load()["holdfast"]["vars"]
        assert variables["one"] is variables["other"]


def test_what_cannot_be_kept_is_laid_out_by_the_loop(staged_by: list[str], tmp_path: Path):
    """An array among the variables: nobody knows whose memory it is."""
    numpy = pytest.importorskip("numpy")

    def between(run: Run, number: int) -> None:
        run.vars.seen = numpy.arange(number)

    assert trained(tmp_path, adam(net()), steps=8, between=between) == set(range(1, 9))
    assert "holdfast" not in staged_by


def test_a_lack_of_memory_beside_the_loop_stalls_it_later(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: Any):
    """The state has grown, and the arena cannot: that save is told to be missing, and the next is written at once."""

    def between(run: Run, number: int) -> None:
        if number == 6:
            monkeypatch.setattr(snapshot, "available_bytes", lambda: 0)
            run.vars.grown = bytes(900_000)

    steps = trained(tmp_path, adam(net()), steps=10, between=between)
    assert {1, 2, 3, 4, 5, 6, 8, 9, 10} == steps
    told = capsys.readouterr().err
    assert "step 7 is not saved, and training goes on: a snapshot needs" in told
    assert told.count("saves stall the loop until they are durable") == 1


def test_a_save_that_cannot_be_laid_out_lets_the_step_go_on(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    """What the writer's thread meets surfaces at the next safe point; the hook does not wait for a copy that never comes."""

    def laid_out(*given: Any) -> Any:
        given[-1].lie(None)
        raise StoreError("no")

    monkeypatch.setattr(Overlap, "_laid_out", laid_out)
    with pytest.raises(StoreError, match="no"):
        trained(tmp_path, adam(net()), steps=9)


# What changes elsewhere


def mutated(mutate: Callable[[nn.Linear], object], hook: str = "register_forward_pre_hook") -> Made:
    model = net()

    def called(module: nn.Linear, *_: Any) -> None:
        mutate(module)

    getattr(model[4], hook)(called)
    return adam(model)


def through_numpy(layer: nn.Linear) -> None:
    layer.weight.detach().numpy()[0] *= 0.5


@torch.no_grad()
def in_place(layer: nn.Linear) -> None:
    layer.weight.mul_(0.99)


class Projected(nn.Linear):
    """Keeps its weight normal by writing to it in each forward pass, as weight normalisation was once done."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.weight.data /= self.weight.data.norm()
        return super().forward(x)


def renormalised() -> Made:
    table = nn.Embedding(WIDTH, WIDTH, max_norm=0.1)
    optimizer = torch.optim.SGD(table.parameters(), 0.01)

    def step() -> None:
        optimizer.zero_grad()
        table(torch.randint(WIDTH, (5,))).sum().backward()
        optimizer.step()

    return {"model": table, "optimizer": optimizer}, step


def by_hand_and_fused() -> Made:
    """Another optimizer that nobody tracks, whose kernel writes without being counted, steps first."""
    state, step = adam(net())
    other = torch.optim.SGD(state["model"].parameters(), 0.01, fused=True)

    def both() -> None:
        state["model"](torch.randn(5, WIDTH)).square().mean().backward()
        other.step()
        step()

    return state, both


ILL: dict[str, Callable[[], Made]] = {
    ".data": lambda: mutated(lambda layer: layer.weight.data.clamp_(-0.02, 0.02)),
    ".data after the forward pass": lambda: mutated(lambda layer: layer.weight.data.mul_(0.9), "register_forward_hook"),
    ".data in the backward pass": lambda: mutated(
        lambda layer: layer.weight.data.mul_(0.9), "register_full_backward_hook"
    ),
    "NumPy": lambda: mutated(through_numpy),
    "in place": lambda: mutated(in_place),
    "a weight that is normalised": lambda: adam(nn.Sequential(Projected(WIDTH, WIDTH))),
    "an embedding that is renormalised": renormalised,
    "an optimizer that nobody tracks": by_hand_and_fused,
}


@pytest.mark.parametrize("kind", ILL)
def test_what_changes_elsewhere_is_copied_at_once(kind: str, left: list[set[str]], tmp_path: Path, capsys: Any):
    """The trial finds it: one line names the leaf, no save is ever overlapped, and each checkpoint is exact."""
    assert trained(tmp_path, ILL[kind]()) == set(range(1, 7))
    told = [line for line in capsys.readouterr().err.splitlines() if "overlap is off" in line]
    assert len(told) == 1
    assert "changed between two optimizer steps; saves copy the state at once" in told[0]
    assert [event["leaf"] for event in events(tmp_path, "overlap_off")] == [told[0].split()[5]]
    assert not any(left)


def test_a_step_that_calls_no_hook_lends_nothing(left: list[set[str]], tmp_path: Path, capsys: Any):
    """torch's step without its wrapper comes unannounced. What the other optimizers lend does not suffer from it."""
    state, step = adam(net())
    other, _ = adam(net())
    quiet = other["optimizer"]

    def both() -> None:
        step()
        other["model"](torch.randn(5, WIDTH)).square().mean().backward()
        type(quiet).step.__wrapped__(quiet)

    trained(tmp_path, ({**state, "other": other["model"], "quiet": quiet}, both))
    assert {"model", "optimizer"} == {key.split("/")[0] for keys in left for key in keys}
    assert "overlap" not in capsys.readouterr().err


def test_a_counted_write_under_the_copy_ends_the_save(left: list[set[str]], held: Held, tmp_path: Path, capsys: Any):
    """Weights are loaded while the copy is made: that step is not committed, the next one is, and overlap is off."""
    state, step = adam(net())
    weights = {name: value * 0.5 for name, value in state["model"].state_dict().items()}

    def between(run: Run, number: int) -> None:
        if number == 3:
            held.hold(run)
        if number == 4:
            state["model"].load_state_dict(weights)
            held.free.set()

    steps = trained(tmp_path, (state, step), steps=9, between=between)
    assert 4 not in steps
    assert {3, 9} <= steps
    assert steps & {5, 6}, "the save was not made again"
    told = capsys.readouterr().err
    assert told.count("overlap is off: model/") == 1
    assert "step 4 is not saved, and training goes on: overlap is off" in told
    assert [event["step"] for event in events(tmp_path, "save_failed")] == [4]
    assert not any(left[4:])


def test_an_uncounted_write_now_and_then_ends_the_save(held: Held, tmp_path: Path, capsys: Any):
    """`.data` changes weights in one round of the loop and not in the one that was tried: nothing wrong is committed."""
    state, step = adam(net())

    def between(run: Run, number: int) -> None:
        if number == 3:
            held.hold(run)
        if number == 4:
            state["model"][0].weight.data.mul_(1.01)
            held.free.set()

    steps = trained(tmp_path, (state, step), steps=9, between=between)
    assert 4 not in steps
    assert {3, 9} <= steps
    assert "overlap is off: model/0.weight changed" in capsys.readouterr().err


@pytest.mark.parametrize("going_on", [False, True])
def test_a_few_bytes_that_change_after_the_copy_are_found(going_on: bool):
    """As long as the loop has not come to say that it goes on: from then on it may."""
    tensor = torch.zeros(3_000_000)
    blocks = flatten({"w": tensor}).leaves
    taken = snapshot.Snapshot(snapshot.Arena(), [snapshot.Image(b"", ["w"])], blocks, lambda _: True)
    place = {"address": tensor.data_ptr(), "size_bytes": tensor.nbytes}
    borrowed = SimpleNamespace(written=lambda: False, gone=lambda: False, **place)
    copying = overlap._Copying([borrowed], threading.get_ident())
    live = overlap._Live(dict(taken.left), {"w": borrowed}, taken)
    taken.finish()
    tensor.data[2_345_678] = 1
    if going_on:
        copying.going_on.set()
    copying.compare(live)
    assert (None if going_on else "w") == copying.verdict


def test_a_parameter_that_moves_leaves_its_bytes_behind(left: list[set[str]], held: Held, tmp_path: Path):
    """`p.data = other` while the copy is held back: what is copied is the old memory, which still has the safe point."""
    state, step = adam(net())
    other = torch.randn(WIDTH, WIDTH)

    def between(run: Run, number: int) -> None:
        if number == 3:
            held.hold(run)
        if number == 4:
            state["model"][4].weight.data = other.clone()
            held.free.set()

    steps = trained(tmp_path, (state, step), between=between)
    assert 4 in steps
    assert any(left)


def test_new_leaves_are_tried_first(left: list[set[str]], tmp_path: Path):
    """Parameters that the optimizer gets later are copied at once until a step has shown that they keep still."""
    model = net()
    state, step = learning(model, torch.optim.SGD(model[0].parameters(), 0.01))

    def between(run: Run, number: int) -> None:
        if number == 3:
            state["optimizer"].add_param_group({"params": list(model[4].parameters())})

    trained(tmp_path, (state, step), steps=8, between=between)
    assert left[2] == {"model/0.weight"}
    assert set() in left[3:]
    assert {"model/0.weight", "model/4.weight"} in left


def test_only_periodic_saves_are_overlapped(left: list[set[str]], tmp_path: Path):
    """What somebody asked for is copied at once."""
    trained(tmp_path, adam(net()), between=lambda run, number: run.save())
    assert left
    assert not any(left)


def test_overlap_can_be_switched_off(left: list[set[str]], tmp_path: Path):
    """No hook, and nothing is copied beside the loop."""
    made = adam(net())
    hooks = []
    trained(
        tmp_path,
        made,
        overlap=False,
        between=lambda run, number: hooks.extend(made[0]["optimizer"]._optimizer_step_pre_hooks),
    )
    assert hooks == []
    assert left
    assert not any(left)


# Around it


def test_the_hooks_go_with_the_run(tmp_path: Path):
    """After the end, after an error, and when a run is entered again."""
    state, step = adam(net())
    optimizer = state["optimizer"]
    run = Run(tmp_path, state, every=Every(steps=1))
    for _ in range(2):
        with pytest.raises(Cut), run:
            assert len(optimizer._optimizer_step_pre_hooks) == 1
            for _ in run.steps(9):
                step()
                raise Cut
        assert not optimizer._optimizer_step_pre_hooks
    with run:
        pass
    assert not optimizer._optimizer_step_pre_hooks


def test_an_optimizer_can_be_copied_while_it_is_watched(left: list[set[str]], held: Held, tmp_path: Path):
    """copy.deepcopy and torch.save; the copy's steps are nobody's business, and wait for nothing."""
    state, step = adam(net())
    copies = []

    def between(run: Run, number: int) -> None:
        if number == 3:
            held.hold(run)
        if number == 4:
            torch.save(state["optimizer"], io.BytesIO())
            copies.append(copy.deepcopy(state["optimizer"]))
            copies[0].step()
            held.free.set()

    assert 4 in trained(tmp_path, (state, step), between=between)
    assert not copies[0]._optimizer_step_pre_hooks


def test_a_forked_child_waits_for_nothing(held: Held, tmp_path: Path):
    """The copy is its parent's; in the child nobody makes it."""
    ended = []

    def between(run: Run, number: int) -> None:
        if number == 3:
            held.hold(run)
        if number == 4:
            assert run._session is not None
            assert run._session.overlap._copying is not None
            child = os.fork()
            if not child:
                signal.alarm(5)
                run._session.overlap.before_step()
                os._exit(7)
            ended.append(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
            held.free.set()

    trained(tmp_path, adam(net()), between=between)
    assert ended == [7]


def test_an_error_in_the_body_lands_the_copy(left: list[set[str]], held: Held, tmp_path: Path):
    """The block is left while a copy is held back: it is made, and the checkpoint is as good as any."""
    state, step = adam(net())
    expected = {}
    with pytest.raises(Cut), Run(tmp_path, state, every=Every(steps=1), keep=Last(99)) as run:
        for number in run.steps(9):
            if number == 4:
                threading.Timer(0, held.free.set).start()
                raise Cut
            step()
            expected[number + 1] = state_bits(state)
            if number == 3:
                held.free.clear()
    assert left[-1]
    saved = Store(tmp_path).load()
    assert expected[4] == {name: bits(saved[name]) for name in state}


def test_a_resumed_run_is_bit_exact(left: list[set[str]], tmp_path: Path):
    """Cut after overlapped saves and gone on with in fresh objects: the same bits as in one piece."""
    whole = adam(net())
    trained(tmp_path / "whole", whole, steps=9)
    torch.manual_seed(0)
    numbers = iter(range(1, 99))

    def cut(run: Run, number: int) -> None:
        if next(numbers) == 6:
            raise Cut

    with pytest.raises(Cut):
        trained(tmp_path / "broken", adam(net()), between=cut)
    assert any(left)
    torch.manual_seed(9)
    again = adam(net())
    with Run(tmp_path / "broken", again[0], every=Every(steps=1)) as run:
        for _ in run.steps(9):
            again[1]()
    assert state_bits(whole[0]) == state_bits(again[0])


class Wrapper(torch.optim.Optimizer):
    """An optimizer around another, as recipes have it: it never calls its base's __init__."""

    def __init__(self, inner: Any) -> None:
        self.inner, self.defaults = inner, inner.defaults

    param_groups = property(lambda self: self.inner.param_groups)
    state = property(lambda self: self.inner.state)

    def state_dict(self) -> Any:
        return self.inner.state_dict()

    def load_state_dict(self, state: Any) -> None:
        self.inner.load_state_dict(state)

    def step(self) -> None:  # type: ignore[override]
        self.inner.step()


def test_a_wrapper_without_hooks_is_saved_at_once(left: list[set[str]], tmp_path: Path):
    """It is no reason to refuse a run."""
    model = net()
    optimizer = Wrapper(torch.optim.SGD(model.parameters(), 0.01, momentum=0.9))
    optimizer.zero_grad = optimizer.inner.zero_grad
    assert trained(tmp_path, learning(model, optimizer)) == set(range(1, 7))
    assert not any(left)


# The last look


def test_a_write_under_way_is_waited_for(monkeypatch: pytest.MonkeyPatch):
    """A write is counted when it is done. One that began under the copy and outlasts it still ends the save."""
    size = 1 << 20  # more than a pipe holds
    reading, writing = os.pipe()
    counted, over, looks = threading.Event(), threading.Event(), threading.Semaphore(0)

    def loop() -> None:
        os.write(writing, bytes(size))  # a call that takes its time, and lets other threads run
        over.wait(LONG_S)

    thread = threading.Thread(target=loop)
    thread.start()
    got = len(os.read(reading, 1))  # it is under way
    clock = SimpleNamespace(monotonic=time.monotonic, sleep=lambda _: (looks.release(), time.sleep(0.001)))
    monkeypatch.setattr(overlap, "time", clock)

    checking = Overlap(lambda leaf, line: None, lambda: True)
    taken = snapshot.Snapshot(snapshot.Arena(), [], {})
    borrowed = SimpleNamespace(written=counted.is_set)
    checking._copying = overlap._Copying([], thread.ident)
    checking._copying.lie(overlap._Live({}, {"w": borrowed}, taken))
    outcome: list[BaseException] = []

    def writer() -> None:
        checking.finish(taken)
        try:
            checking.confirm(taken)
        except Abandoned as error:
            outcome.append(error)

    other = threading.Thread(target=writer)
    other.start()
    looked = [looks.acquire(timeout=5) for _ in range(3)]
    counted.set()
    while got < size:
        got += len(os.read(reading, size))
    other.join(LONG_S)
    over.set()
    thread.join(LONG_S)
    assert all(looked)
    assert "overlap is off: w changed" in str(outcome[0])


# Interrupted


def ctrl_c(*_: Any, **__: Any) -> None:
    raise KeyboardInterrupt


BETWEEN: dict[str, tuple[Any, str]] = {
    "laid out, not given to the writer": (saving, "Flight"),
    "given to the writer": (Writer, "submit"),
    "as its thread is started": (threading.Thread, "start"),
}


@pytest.mark.parametrize("kind", BETWEEN)
def test_a_step_inside_the_block_goes_on_after_ctrl_c_in_a_save(
    kind: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
):
    """Nobody makes that copy: neither a step nor the end of the block waits for it, and the next save is made."""
    where, name = BETWEEN[kind]
    state, step = adam(net())
    with Run(tmp_path, state, every=Every(steps=1), keep=Last(99)) as run:
        with pytest.raises(KeyboardInterrupt):
            for number in run.steps(9):
                if number == 6:
                    run.wait()
                    monkeypatch.setattr(where, name, ctrl_c)
                step()
        monkeypatch.undo()
        ended = threading.Thread(target=step, daemon=True)
        ended.start()
        ended.join(5)
        assert not ended.is_alive()
        run.save()
        expected = state_bits(state)
    saved = Store(tmp_path).load()
    assert expected == {name: bits(saved[name]) for name in state}


def test_without_threads_a_tried_state_is_copied_at_once(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    """The system gives none for the writer: each save has returned before the loop goes on, and none waits for itself."""

    def none(*_: Any) -> None:
        raise RuntimeError("can't start new thread")

    def between(run: Run, number: int) -> None:
        if number == 6:
            run.wait()
            monkeypatch.setattr(Writer, "submit", none)
            monkeypatch.setattr(overlap, "_place", lambda thread: "where it waits")
            signal.alarm(20)

    assert trained(tmp_path, adam(net()), steps=9, between=between) == set(range(1, 10))
    signal.alarm(0)
