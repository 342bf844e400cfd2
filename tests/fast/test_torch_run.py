"""Run with real torch objects: every kind of them goes on after a resume as if there had been none."""

import itertools
import signal
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim import swa_utils
from torch.utils.data import DataLoader, TensorDataset

from holdfast import Run, Stopped
from holdfast.errors import Mismatch
from holdfast.torch import live
from kept import bits
from subjects import asked_of
from torch_objects import MODULES, OPTIMIZERS, Fp32Moments, batch, learn, net
from toy import events


def bits_of(state):
    return {name: bits(live.capture(target)) for name, target in state.items()}


def adam(model, kind=torch.optim.AdamW, **options):
    """A model with its optimizer, and one step on random numbers, which are part of what has to come back."""
    optimizer = kind(model.parameters(), 0.1, **options)
    return {"model": model, "optimizer": optimizer}, lambda: learn(model, optimizer, batch(model))


def dropping():
    return nn.Sequential(net(), nn.Dropout(0.3))


def averaged():
    state, step = adam(net())
    average = swa_utils.AveragedModel(
        state["model"], multi_avg_fn=swa_utils.get_ema_multi_avg_fn(0.8), use_buffers=True
    )
    return {**state, "average": average}, lambda: (step(), average.update_parameters(state["model"]))


def scaled():
    model, scaler = net(), torch.amp.GradScaler("cpu", growth_interval=2)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)

    def step():
        optimizer.zero_grad()
        with torch.autocast("cpu", torch.bfloat16):
            loss = model(torch.randn(5, 6)).square().mean()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()

    return {"model": model, "optimizer": optimizer, "scaler": scaler}, step


KINDS: dict[str, Any] = {
    **{
        kind: lambda kind=kind: adam(MODULES[kind]())
        for kind in ("channels_last", "tied", "extra state", "hooks", "weight_norm", "spectral_norm", "orthogonal")
    },
    "dropout, fused": lambda: adam(dropping(), fused=True),
    "one kernel for all": lambda: adam(net(), foreach=True, amsgrad=True),
    "bf16 parameters with fp32 moments": lambda: adam(MODULES["bfloat16"](), Fp32Moments),
    "an averaged model": averaged,
    "a gradient scaler": scaled,
}
if torch.cuda.is_available():  # steps of these kinds can be taken there only
    for options in ({"capturable": True}, {"fused": True}, {"capturable": True, "foreach": True}):
        KINDS[f"on an accelerator: {options}"] = lambda options=options: adam(net().to("cuda"), **options)


def all_kinds():
    """One state of all of them, and one step of each."""
    made = {kind: make() for kind, make in KINDS.items()}
    state = {f"{kind}, {name}": each for kind, (objects, _) in made.items() for name, each in objects.items()}
    return state, lambda: [step() for _, step in made.values()]


def ended(path, made, total, **options):
    state, step = made
    with Run(path, state, every=None, **options) as run:
        for _ in run.steps(total):
            step()
    return state


def stopped(path, made, passes, total):
    """Train until SIGTERM in the given pass of this attempt, as a machine that is taken away sends it."""
    state, step = made
    numbers = itertools.count(1)

    def last():
        step()
        if next(numbers) == passes:
            signal.raise_signal(signal.SIGTERM)

    with pytest.raises(Stopped):
        ended(path, (state, last), total)


def test_every_kind_of_object_goes_on_as_if_uninterrupted(tmp_path):
    """Stopped after three steps of seven, restored into fresh objects: the same bytes, dtypes and devices at the
    end.
    """
    torch.manual_seed(0)
    expected = bits_of(ended(tmp_path / "whole", all_kinds(), 7))
    torch.manual_seed(0)
    stopped(tmp_path / "broken", all_kinds(), 3, 7)
    torch.manual_seed(99)  # another initialisation, another stream: all of it has to be replaced
    found = bits_of(ended(tmp_path / "broken", all_kinds(), 7))
    assert len(found) >= 2 * len(KINDS)
    assert [] == [name for name in expected if expected[name] != found[name]]


def test_what_does_not_fit_is_named_before_anything_is_overwritten(tmp_path):
    """Mismatch says which keys, shapes, dtypes differ; every live object and every generator is as it was.

    It quarantines nothing: the right model resumes from the same checkpoint afterwards.
    """
    stopped(tmp_path, adam(net()), 2, 4)
    of_another_kind = {**adam(net())[0], "optimizer": OPTIMIZERS["SGD"](net().parameters())}
    renamed = {"net": net(), "optimizer": adam(net())[0]["optimizer"]}
    for state, line in [
        (adam(net(9))[0], "0.weight: shape (8, 6) in the checkpoint, (9, 6) here"),
        (adam(nn.Sequential(*net(), nn.Linear(3, 3)))[0], "4.weight: missing in the checkpoint"),
        (adam(net()[:3])[0], "3.weight: only in the checkpoint"),
        (adam(net().double())[0], "0.weight: dtype float32 in the checkpoint, float64 here"),
        (of_another_kind, "momentum"),
        (renamed, "net: not in the checkpoint"),
    ]:
        with asked_of(line):
            before, drawn = bits_of(state), torch.get_rng_state()
            with pytest.raises(Mismatch) as caught, Run(tmp_path, state, every=None):
                pass
            assert line in str(caught.value)
            assert before == bits_of(state)
            assert torch.equal(drawn, torch.get_rng_state())
    with Run(tmp_path, adam(net())[0], every=None) as run:
        assert run.step == 2


def test_another_number_of_threads_is_told(tmp_path):
    """The bits may depend on it, so that a resume under another number says so, and goes on."""
    threads = torch.get_num_threads()
    stopped(tmp_path, adam(net()), 2, 4)
    torch.set_num_threads(threads + 1)
    try:
        ended(tmp_path, adam(net()), 4)
    finally:
        torch.set_num_threads(threads)
    assert [f"threads: {threads}, now {threads + 1}"] == [event["what"] for event in events(tmp_path, "told")]


# Loops over real loaders


def rows(count=24):
    return TensorDataset(torch.arange(count * 6.0).reshape(count, 6) / 100)


def train(path, loop, stop_at=None):
    """Seed, build, run `loop`; its `learn` sends SIGTERM in the pass `stop_at` of this attempt."""
    torch.manual_seed(0)
    state, _ = adam(dropping())
    passes = itertools.count(1)

    def learned(x):
        learn(state["model"], state["optimizer"], x)
        if next(passes) == stop_at:
            signal.raise_signal(signal.SIGTERM)

    with Run(path, state, every=None) as run:
        loop(run, learned)
    return bits_of(state)


def two_loaders(run, learned):
    dirty, clean = DataLoader(rows(), 5, shuffle=True), DataLoader(rows(12), 4, shuffle=True)
    for _ in run.epochs(2):
        for (x,) in run.batches(dirty, name="dirty"):
            learned(x)
        for (x,) in run.batches(clean, name="clean"):
            learned(-x)


def noisy_evaluation(run, learned):
    loader = DataLoader(rows(), 5, shuffle=True)
    for _ in run.epochs(3):
        for (x,) in run.batches(loader):
            learned(x)
        for (x,) in DataLoader(rows(), 6, shuffle=True):  # draws from the global generator, more than once
            learned(x + torch.randn_like(x))


def side_by_side(run, learned):
    a, b = DataLoader(rows(), 5, shuffle=True), DataLoader(rows(), 5, shuffle=True)
    for _ in run.epochs(3):
        for (x,), (y,) in run.batches(zip(a, b, strict=True)):
            learned(x - y)


def test_loops_over_real_loaders_go_on_where_they_were(tmp_path, capfd):
    """Two loaders in one epoch, an evaluation that draws and even learns, two loaders side by side: the same bytes.

    run.batches(zip(a, b)) cannot be positioned, and the resume says what that costs.
    """
    for loop, stop_at in itertools.product((two_loaders, noisy_evaluation, side_by_side), (1, 5)):
        with asked_of(loop.__name__, stop_at):
            path = tmp_path / f"{loop.__name__}-{stop_at}"
            expected = train(path / "whole", loop)
            for stop in (stop_at, 2):
                with pytest.raises(Stopped):
                    train(path / "broken", loop, stop)
            assert expected == train(path / "broken", loop)
    with pytest.raises(Stopped):
        train(tmp_path / "told", side_by_side, 3)
    train(tmp_path / "told", side_by_side)
    assert "3 batches of it are read again" in capfd.readouterr().err
