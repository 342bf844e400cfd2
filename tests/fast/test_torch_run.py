"""Run with real torch objects: every kind of them goes on after a resume as if there had been none."""

from __future__ import annotations

import copy
import itertools
import json
import os
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from holdfast import Run, StartFrom, Stopped, Store, journal, load_into
from holdfast.errors import Mismatch

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402
from torch.nn.utils import parametrizations  # noqa: E402
from torch.optim import swa_utils  # noqa: E402
from torch.utils.data import DataLoader, TensorDataset  # noqa: E402

from holdfast.torch import live  # noqa: E402
from holdfast.torch.leaves import memory  # noqa: E402

SCRIPT = Path(__file__).parents[1] / "training.py"


@pytest.fixture(autouse=True)
def _unsynced(monkeypatch: pytest.MonkeyPatch) -> None:
    """No power fails here, and synchronising is most of a small save's time."""
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)


State = dict[str, Any]
Made = tuple[State, Callable[[], None]]  # the tracked objects, and one step of their training


def bits(tree: Any) -> Any:
    """A value that is equal exactly when every byte, dtype, shape and device is."""
    if isinstance(tree, torch.Tensor):
        plain = tree.detach().cpu().contiguous()
        return str(tree.dtype), tuple(tree.shape), tree.device.type, bytes(memory(plain))
    if isinstance(tree, dict):
        return [(key, bits(value)) for key, value in tree.items()]
    if isinstance(tree, list | tuple):
        return [type(tree).__name__, *map(bits, tree)]
    return repr(tree)


def state_bits(state: State) -> Any:
    plain = lambda target: live.capture(target) if live.handles(target) else target.state_dict()
    return {name: bits(plain(target)) for name, target in state.items()}


def net(device: str = "cpu", dtype: Any = None) -> nn.Sequential:
    return nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Dropout(0.3), nn.Linear(8, 3)).to(device, dtype)


def learning(model: Any, optimizer: Any, **others: Any) -> Made:
    """A step on random numbers; the random numbers are part of what has to come back."""
    parameter = next(model.parameters())

    def step() -> None:
        optimizer.zero_grad()
        x = torch.randn(5, 6).to(parameter)
        model(x).float().square().mean().backward()
        optimizer.step()

    return {"model": model, "optimizer": optimizer, **others}, step


def ended(path: Path, made: Made, total: int, **options: Any) -> State:
    state, step = made
    with Run(path, state, every=None, **options) as run:
        for _ in run.steps(total):
            step()
    return state


def stopped(path: Path, made: Made, passes: int, total: int) -> None:
    """Train until SIGTERM in the given pass of this attempt, as a machine that is taken away sends it."""
    state, step = made
    numbers = itertools.count(1)

    def last() -> None:
        step()
        if next(numbers) == passes:
            signal.raise_signal(signal.SIGTERM)

    with pytest.raises(Stopped):
        ended(path, (state, last), total)


def told(path: Path) -> list[str]:
    return [event["what"] for log in journal.logs(path) for event in log.events if event["event"] == "told"]


class Fp32Momentum(torch.optim.Optimizer):
    """Keeps moments in fp32 whatever its parameters are, as mixed-precision recipes do."""

    def __init__(self, parameters: Any) -> None:
        super().__init__(parameters, {"lr": 0.05})

    def step(self) -> None:  # type: ignore[override]
        for group in self.param_groups:
            for parameter in group["params"]:
                state = self.state[parameter]
                state.setdefault("moment", torch.zeros_like(parameter, dtype=torch.float32))
                state["moment"].mul_(0.9).add_(parameter.grad.float())
                parameter.data.copy_(parameter.data.float() - group["lr"] * state["moment"])


class Counting(nn.Linear):
    """Extra state, as the documentation shows it."""

    seen = 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.seen += 1
        return super().forward(x) / self.seen

    def get_extra_state(self) -> Any:
        return {"seen": self.seen}

    def set_extra_state(self, state: Any) -> None:
        self.seen = state["seen"]


def hooked() -> nn.Module:
    """Saves its weight under another name, by torch's own hooks."""
    model = nn.Linear(6, 3)

    def renamed(module: nn.Module, state: State, prefix: str, local: Any) -> None:
        state[f"{prefix}kernel"] = state.pop(f"{prefix}weight")

    def back(module: nn.Module, state: State, prefix: str, *_: Any) -> None:
        state[f"{prefix}weight"] = state.pop(f"{prefix}kernel")

    model.register_state_dict_post_hook(renamed)
    model.register_load_state_dict_pre_hook(back)
    return model


def tied() -> nn.Module:
    model = nn.Sequential(nn.Linear(6, 6), nn.ReLU(), nn.Linear(6, 6))
    model[2].weight = model[0].weight
    return model


def averaged() -> Made:
    model = net()
    average = swa_utils.AveragedModel(model, multi_avg_fn=swa_utils.get_ema_multi_avg_fn(0.8), use_buffers=True)
    state, step = learning(model, torch.optim.AdamW(model.parameters(), 0.1), average=average)

    def both() -> None:
        step()
        average.update_parameters(model)

    return state, both


def scaled() -> Made:
    model = net()
    optimizer, scaler = torch.optim.SGD(model.parameters(), 0.1), torch.amp.GradScaler("cpu", growth_interval=2)

    def step() -> None:
        optimizer.zero_grad()
        with torch.autocast("cpu", torch.bfloat16):
            loss = model(torch.randn(5, 6)).square().mean()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()

    return {"model": model, "optimizer": optimizer, "scaler": scaler}, step


def two_optimizers() -> Made:
    one, other = net(), net()
    state, step = learning(one, torch.optim.Adam(one.parameters(), 0.1))
    more, another = learning(other, torch.optim.RMSprop(other.parameters(), 0.01, momentum=0.5))

    def both() -> None:
        step()
        another()

    return {**state, "other": more["model"], "its": more["optimizer"]}, both


def adam(model: nn.Module, **options: Any) -> Made:
    return learning(model, torch.optim.AdamW(model.parameters(), 0.1, **options))


def bf16() -> Made:
    model = net(dtype=torch.bfloat16)
    return learning(model, Fp32Momentum(model.parameters()))


KINDS: dict[str, Callable[[], Made]] = {
    "bf16 parameters with fp32 moments": bf16,
    "a fused optimizer": lambda: adam(net(), fused=True),
    "an optimizer of one kernel for all": lambda: adam(net(), foreach=True, amsgrad=True),
    "a tied weight": lambda: adam(tied()),
    "extra state": lambda: adam(Counting(6, 3)),
    "hooks": lambda: adam(hooked()),
    "weight_norm": lambda: adam(nn.Sequential(parametrizations.weight_norm(nn.Linear(6, 8)), nn.Linear(8, 2))),
    "spectral_norm": lambda: adam(nn.Sequential(parametrizations.spectral_norm(nn.Linear(6, 8)), nn.Linear(8, 2))),
    "an orthogonal weight": lambda: adam(parametrizations.orthogonal(nn.Linear(6, 6))),
    "an averaged model": averaged,
    "a gradient scaler": scaled,
    "two models, two optimizers": two_optimizers,
    "channels_last": lambda: _images(nn.Conv2d(3, 4, 3)),
}


def _images(layer: nn.Module) -> Made:
    model = nn.Sequential(layer, nn.BatchNorm2d(4)).to(memory_format=torch.channels_last)
    optimizer = torch.optim.Adam(model.parameters(), 0.1)

    def step() -> None:
        optimizer.zero_grad()
        model(torch.randn(2, 3, 8, 8)).square().mean().backward()
        optimizer.step()

    return {"model": model, "optimizer": optimizer}, step


if torch.cuda.is_available():  # steps of these kinds can be taken there only
    for options in ({"capturable": True}, {"fused": True}, {"capturable": True, "foreach": True}):
        KINDS[f"on an accelerator: {options}"] = lambda options=options: adam(net("cuda"), **options)


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_of_object_goes_on_as_if_uninterrupted(kind: str, tmp_path: Path):
    """Stopped after three steps of seven, restored into fresh objects: the same bytes, dtypes and devices at the end."""
    torch.manual_seed(0)
    expected = state_bits(ended(tmp_path / "whole", KINDS[kind](), 7))
    torch.manual_seed(0)
    stopped(tmp_path / "broken", KINDS[kind](), 3, 7)
    torch.manual_seed(99)  # another initialisation, another stream: all of it has to be replaced
    assert expected == state_bits(ended(tmp_path / "broken", KINDS[kind](), 7))


def test_moments_stay_fp32_where_torch_alone_would_cast_them(tmp_path: Path):
    """After a resume the fp32 moments of bf16 parameters are fp32; load_state_dict by itself makes them bf16."""
    stopped(tmp_path, bf16(), 2, 4)
    state = ended(tmp_path, bf16(), 4)
    moments = [entry["moment"] for entry in state["optimizer"].state.values()]
    assert {torch.float32} == {moment.dtype for moment in moments}
    by_hand = bf16()[0]["optimizer"]
    by_hand.load_state_dict(copy.deepcopy(state["optimizer"].state_dict()))
    assert {torch.bfloat16} == {entry["moment"].dtype for entry in by_hand.state.values()}


def test_a_capturable_optimizer_comes_back_capturable(tmp_path: Path):
    """Its options and its step counters, tensors both, are restored where no step of it can be taken."""
    model = net()
    state, _ = adam(model, capturable=True, fused=False)
    for parameter in model.parameters():
        state["optimizer"].state[parameter] = {"step": torch.tensor(3.0), "exp_avg": torch.rand_like(parameter)}
    with Run(tmp_path, state, every=None) as run:
        run.save()
    again, _ = adam(net(), capturable=True, fused=False)
    with Run(tmp_path, again, every=None):
        assert state_bits(state) == state_bits(again)


def compiled(model: nn.Module) -> Any:
    return torch.compile(model, backend="eager")


WRAPPERS: dict[str, Callable[[nn.Module], Any]] = {
    "plain": lambda model: model,
    "compiled": compiled,
    "parallel": nn.DataParallel,
    "compiled parallel": lambda model: compiled(nn.DataParallel(model)),
    "parallel compiled": lambda model: nn.DataParallel(compiled(model)),
}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("compiled", "plain"),
        ("plain", "compiled"),
        ("parallel", "plain"),
        ("plain", "parallel"),
        ("compiled parallel", "parallel compiled"),
        ("parallel compiled", "compiled"),
    ],
)
def test_a_wrapped_model_goes_on_under_another_wrapper(before: str, after: str, tmp_path: Path):
    """Saved compiled, restored plain, and back: the same bytes as when trained in one piece, and no name has changed."""
    torch.manual_seed(0)
    expected = state_bits(ended(tmp_path / "whole", adam(net()), 6))
    torch.manual_seed(0)
    stopped(tmp_path / "broken", adam(WRAPPERS[before](net())), 2, 6)
    stopped(tmp_path / "broken", adam(WRAPPERS[after](net())), 2, 6)
    assert expected == state_bits(ended(tmp_path / "broken", adam(WRAPPERS[before](net())), 6))


# What does not fit


def other_nets() -> Iterator[tuple[str, Callable[[], State], list[str]]]:
    wide = lambda: nn.Sequential(nn.Linear(6, 9), nn.BatchNorm1d(9), nn.Dropout(0.3), nn.Linear(9, 3))
    deep = lambda: nn.Sequential(*net(), nn.Linear(3, 3))
    yield "shapes", lambda: adam(wide())[0], ["0.weight: shape (8, 6) in the checkpoint, (9, 6) here"]
    yield "keys", lambda: adam(deep())[0], ["4.weight: missing in the checkpoint"]
    yield "fewer keys", lambda: adam(net()[:3])[0], ["3.weight: only in the checkpoint"]
    yield "dtypes", lambda: adam(net().double())[0], ["0.weight: dtype float32 in the checkpoint, float64 here"]
    yield "kinds", lambda: {**adam(net())[0], "optimizer": torch.optim.SGD(net().parameters(), 0.1)}, ["momentum"]
    yield "names", lambda: {"net": net(), "optimizer": adam(net())[0]["optimizer"]}, ["net: not in the checkpoint"]


@pytest.mark.parametrize(("make", "lines"), [case[1:] for case in other_nets()], ids=[case[0] for case in other_nets()])
def test_what_does_not_fit_is_named_before_anything_is_overwritten(make: Any, lines: list[str], tmp_path: Path):
    """Mismatch says which keys, shapes, dtypes differ; every live object and every generator is as it was."""
    stopped(tmp_path, adam(net()), 2, 4)
    state = make()
    before, drawn = state_bits(state), torch.get_rng_state()
    with pytest.raises(Mismatch) as caught, Run(tmp_path, state, every=None):
        pass
    assert [line for line in lines if line not in str(caught.value)] == []
    assert before == state_bits(state)
    assert torch.equal(drawn, torch.get_rng_state())


def test_a_refused_checkpoint_still_serves_the_objects_that_it_fits(tmp_path: Path):
    """A Mismatch quarantines nothing: the right model resumes from the same checkpoint afterwards."""
    stopped(tmp_path, adam(net()), 2, 4)
    with pytest.raises(Mismatch), Run(tmp_path, adam(net().double())[0], every=None):
        pass
    with Run(tmp_path, adam(net())[0], every=None) as run:
        assert run.step == 2


# Memory

PEAK = """
    import os, re, sys, torch
    from holdfast import Run
    os.fsync = lambda descriptor: None

    def peak_mib():
        return int(re.search(r"VmHWM:\\s+(\\d+)", open("/proc/self/status").read())[1]) >> 10

    torch.manual_seed(int(sys.argv[2]))
    model = torch.nn.Sequential(*(torch.nn.Linear(2048, 2048, bias=False) for _ in range(16)))
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    with Run(sys.argv[1] + "-warm", dict(model=torch.nn.Linear(2, 2)), every=None):
        pass
    open("/proc/self/clear_refs", "w").write("5")
    before = peak_mib()
    with Run(sys.argv[1], dict(model=model, optimizer=optimizer), every=None) as run:
        for step in run.steps(1 + int(sys.argv[2])):
            pass
    restored = peak_mib()
    copies = [parameter.detach().clone() for parameter in model.parameters()]
    print(restored - before, peak_mib() - restored, run.step, float(model[15].weight.double().sum()))
"""


@pytest.mark.slow
def test_a_resume_needs_no_second_copy_of_the_model(tmp_path: Path):
    """256 MiB are saved by one process and restored by another: the peak rises by less than a quarter of that."""
    lines = []
    for attempt in ("0", "1"):
        command = [sys.executable, "-c", textwrap.dedent(PEAK), str(tmp_path / "run"), attempt]
        lines.append(subprocess.run(command, capture_output=True, text=True, check=True).stdout.split())
    (_, _, _, saved), (peak_mib, copy_mib, step, restored) = lines
    assert (saved, "2") == (restored, step)
    assert int(peak_mib) < 64
    assert int(copy_mib) > 200, "the measure sees a copy when there is one"


# What is told, and what is checked


def test_another_number_of_threads_is_told(tmp_path: Path):
    """The bits may depend on it, so that a resume under another number says so, and goes on."""
    threads = torch.get_num_threads()
    stopped(tmp_path, adam(net()), 2, 4)
    torch.set_num_threads(threads + 1)
    try:
        ended(tmp_path, adam(net()), 4)
    finally:
        torch.set_num_threads(threads)
    assert [f"threads: {threads}, now {threads + 1}"] == told(tmp_path)


def test_a_probe_is_asked_in_evaluation_mode_and_changes_nothing(tmp_path: Path):
    """probe=lambda: model(x): the run ends in the bytes of one without, dropout, batch norm and all."""
    x = torch.randn(4, 6, generator=torch.Generator().manual_seed(1))
    torch.manual_seed(0)
    expected = state_bits(ended(tmp_path / "plain", adam(net()), 6))
    torch.manual_seed(0)
    for total in (3, 6):
        made = adam(net())
        model = made[0]["model"]
        ended(tmp_path / "probed", made, total, probe=lambda model=model: model(x))
        assert model.training
    assert expected == state_bits(made[0])


def test_a_probe_that_answers_otherwise_after_the_restore_is_a_mismatch(tmp_path: Path):
    """Whatever the state does not cover, and the prediction depends on, is found before a step is taken."""
    x = torch.ones(4, 6)

    def probed(factor: float, total: int) -> None:
        made = adam(net())
        ended(tmp_path, made, total, probe=lambda: made[0]["model"](x) * factor)

    probed(1.0, 2)
    with pytest.raises(Mismatch, match="probe"):
        probed(1.0000001, 4)
    probed(1.0, 4)


# Weights of another run


@pytest.fixture
def trained(tmp_path: Path) -> tuple[Path, nn.Module]:
    state = ended(tmp_path / "trained", adam(net()), 2)
    return tmp_path / "trained", state["model"]


def test_a_new_run_starts_from_the_weights_of_another(trained: tuple[Path, nn.Module], tmp_path: Path):
    """The model's weights are taken over, the optimizer is fresh, and step 0 is step 0."""
    state, _ = adam(net())
    with Run(tmp_path / "new", state, every=None, start_from=trained[0]) as run:
        assert (0, {}) == (run.step, dict(state["optimizer"].state))
        assert bits(dict(trained[1].state_dict())) == bits(dict(state["model"].state_dict()))
    with Run(tmp_path / "new", adam(net())[0], every=None, start_from=trained[0]) as run:
        next(iter(run.steps(1)))  # the new run's own checkpoint wins over start_from on a resume


def test_a_part_of_a_model_is_taken_under_another_name(trained: tuple[Path, nn.Module], tmp_path: Path):
    """rename= moves a prefix, strict=False leaves and reports what does not match; strict refuses it untouched."""

    class Bigger(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body = net()[:2]
            self.head = nn.Linear(8, 100)

    rename = {"0": "body.0", "1": "body.1", "3": "head"}
    model = Bigger()
    before = bits(dict(model.state_dict()))
    with pytest.raises(Mismatch, match=r"head\.weight"):
        load_into(model, trained[0], rename=rename)
    assert before == bits(dict(model.state_dict()))
    report = load_into(model, trained[0], rename=rename, strict=False)
    assert bits(dict(trained[1][:2].state_dict())) == bits(dict(model.body.state_dict()))
    assert ["head.weight", "head.bias"] == report.mismatched
    again = Bigger()
    source = StartFrom(trained[0], rename=rename, strict=False)
    with Run(tmp_path / "new", {"model": again}, every=None, start_from=source):
        assert bits(model.body[0].weight) == bits(again.body[0].weight)


def test_only_the_named_models_start_from_another_run(tmp_path: Path):
    """StartFrom(names=...) takes these and leaves the others fresh."""
    old = ended(tmp_path / "old", two_optimizers(), 2)
    new, _ = two_optimizers()
    fresh = bits(dict(new["model"].state_dict()))
    with Run(tmp_path / "new", new, every=None, start_from=StartFrom(tmp_path / "old", names=("other",))):
        assert bits(dict(old["other"].state_dict())) == bits(dict(new["other"].state_dict()))
        assert fresh == bits(dict(new["model"].state_dict()))


# Loops over real loaders


def rows(count: int = 24) -> TensorDataset:
    return TensorDataset(torch.arange(count * 6.0).reshape(count, 6) / 100)


def train(path: Path, loop: Callable[[Run, Callable[[Any], None]], None], stop_at: int | None = None) -> Any:
    """Seed, build, run `loop`; its `learn` sends SIGTERM in the pass `stop_at` of this attempt."""
    torch.manual_seed(0)
    state, _ = made = adam(net())
    passes = 0

    def learn(x: torch.Tensor) -> None:
        nonlocal passes
        passes += 1
        state["optimizer"].zero_grad()
        state["model"](x).square().mean().backward()
        state["optimizer"].step()
        if passes == stop_at:
            signal.raise_signal(signal.SIGTERM)

    with Run(path, made[0], every=None) as run:
        loop(run, learn)
    return state_bits(state)


def two_loaders(run: Run, learn: Callable[[Any], None]) -> None:
    dirty = DataLoader(rows(), 5, shuffle=True)
    clean = DataLoader(rows(12), 4, shuffle=True)
    for _ in run.epochs(2):
        for (x,) in run.batches(dirty, name="dirty"):
            learn(x)
        for (x,) in run.batches(clean, name="clean"):
            learn(-x)


def noisy_evaluation(run: Run, learn: Callable[[Any], None]) -> None:
    loader = DataLoader(rows(), 5, shuffle=True)
    for _ in run.epochs(3):
        for (x,) in run.batches(loader):
            learn(x)
        for (x,) in DataLoader(rows(), 6, shuffle=True):  # draws from the global generator, more than once
            learn(x + torch.randn_like(x))


def side_by_side(run: Run, learn: Callable[[Any], None]) -> None:
    a, b = DataLoader(rows(), 5, shuffle=True), DataLoader(rows(), 5, shuffle=True)
    for _ in run.epochs(3):
        for (x,), (y,) in run.batches(zip(a, b, strict=True)):
            learn(x - y)


@pytest.mark.parametrize("loop", [two_loaders, noisy_evaluation, side_by_side])
@pytest.mark.parametrize("stop_at", [1, 4, 5, 6, 7, 8, 9])
def test_loops_over_real_loaders_go_on_where_they_were(loop: Any, stop_at: int, tmp_path: Path):
    """Two loaders in one epoch, an evaluation that draws and even learns, two loaders side by side: the same bytes."""
    expected = train(tmp_path / "whole", loop)
    with pytest.raises(Stopped):
        train(tmp_path / "broken", loop, stop_at)
    with pytest.raises(Stopped):
        train(tmp_path / "broken", loop, 2)
    assert expected == train(tmp_path / "broken", loop)


def test_side_by_side_is_told_to_be_read_again(tmp_path: Path, capfd: pytest.CaptureFixture[str]):
    """run.batches(zip(a, b)) cannot be positioned, and the resume says what that costs."""
    with pytest.raises(Stopped):
        train(tmp_path, side_by_side, 3)
    train(tmp_path, side_by_side)
    assert "3 batches of it are read again" in capfd.readouterr().err


# Workers and signals


def wait(log: Path, until: Callable[[], bool], limit_s: float = 60) -> None:
    end = time.monotonic() + limit_s
    while not until():
        assert time.monotonic() < end, log.read_text()
        time.sleep(0.02)


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGUSR1])
def test_a_signal_to_the_whole_group_saves_and_exits_75(number: int, tmp_path: Path):
    """Slurm and Ctrl-C signal the workers too: they go on, the run saves and ends, and nothing else is printed."""
    log, run = tmp_path / "log", tmp_path / "run"
    asked = {"path": str(run), "workers": 2, "persistent": True, "evaluation_workers": 0, "epochs": 1000}
    with log.open("w") as output:
        command = [sys.executable, str(SCRIPT), json.dumps(asked)]
        process = subprocess.Popen(command, stdout=output, stderr=output, start_new_session=True)
        try:
            wait(log, lambda: len(list(run.glob("checkpoints/step-*"))) >= 3)
            os.killpg(process.pid, number)
            assert process.wait(60) == 75, log.read_text()
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
    endings = ("starts fresh (attempt 1)", "saved, run me again")
    lines = log.read_text().splitlines()
    assert [True, True] == [line.endswith(text) for line, text in zip(lines, endings, strict=True)], lines


CHILD = """
    import multiprocessing, os, signal, sys, torch
    from torch.utils.data import DataLoader, TensorDataset
    from holdfast import Run

    def train(path):
        model = torch.nn.Linear(2, 2)
        loader = DataLoader(TensorDataset(torch.zeros(40, 2)), 4, num_workers=2, persistent_workers=True)
        with Run(path, dict(model=model), every=None) as run:
            for epoch in run.epochs(3):
                for number, (x,) in enumerate(run.batches(loader)):
                    if epoch == 1 and number == 3:
                        os.kill(os.getpid(), signal.SIGTERM)

    if __name__ == "__main__":
        import holdfast.torch.loader
        child = multiprocessing.get_context(sys.argv[2]).Process(target=train, args=(sys.argv[1],))
        child.start()
        child.join(60)
        print(child.exitcode)
        if child.is_alive():
            child.kill()
        os._exit(0)
"""


@pytest.mark.slow
@pytest.mark.parametrize("start", ["fork", "spawn"])
def test_a_run_inside_a_child_process_ends_with_its_workers(start: str, tmp_path: Path):
    """Launchers start training through multiprocessing, whose children run no atexit functions: they end all the same."""
    script = tmp_path / "launch.py"
    script.write_text(textwrap.dedent(CHILD))
    command = [sys.executable, str(script), str(tmp_path / "run"), start]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout == "75\n", done.stderr


GROUP = """
import sys, time, torch
from torch.utils.data import DataLoader, TensorDataset
from holdfast import Run
data = TensorDataset(torch.arange(64.0).unsqueeze(1))
evaluation = DataLoader(data, batch_size=1, num_workers=2)
model = torch.nn.Linear(1, 1)
with Run(sys.argv[1], dict(model=model)) as run:
    for epoch in run.epochs(1000):
        for (x,) in run.batches(DataLoader(data, batch_size=32, num_workers=2)):
            model(x)
        for number, (x,) in enumerate(evaluation):
            if number == 1:
                print("evaluating", flush=True)
            time.sleep(0.01)
"""


@pytest.mark.slow
def test_a_signal_to_the_whole_group_in_the_middle_of_an_evaluation_is_a_stop_like_any_other(tmp_path):
    """Slurm and `timeout` signal every process: workers of a loader outside run.batches live on, and the run is saved."""
    command = [sys.executable, "-c", GROUP, tmp_path / "run"]
    with subprocess.Popen(
        command, start_new_session=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as child:
        assert child.stdout.readline() == "evaluating\n"
        os.killpg(child.pid, signal.SIGTERM)
        told = child.communicate(timeout=60)[1]
    assert (75, False) == (child.returncode, "Traceback" in told), told
    assert Store(tmp_path / "run").latest().phase == "end"
