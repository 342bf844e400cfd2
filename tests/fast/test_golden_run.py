"""The golden runs: directories that earlier versions wrote, from which every later one goes on.

One is of release 0.1.0, in the middle of an epoch. One has all that version 6 of the format has brought. One
is of version 7: two ranks hold the stages of one model.

`PYTHONPATH=tests python tests/fast/test_golden_run.py` writes it anew. Do so only before a release.
"""

import platform
import random
import shutil
import sys
from collections import defaultdict, deque
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from holdfast import Best, Every, Last, Run, owner
from holdfast.store.format import SINCE_6, SINCE_7
from holdfast.store.store import Store
from holdfast.torch import ModelParts
from holdfast.torch.stepping import StepObserver
from run_ranks import among_threads
from stores import done

GOLDEN = Path(__file__).parents[1] / "golden/run"
GOLDEN_6 = GOLDEN.with_name("run-of-version-6")
GOLDEN_7 = GOLDEN.with_name("run-of-version-7")
EPOCHS, STEPS, SAVED = 3, 4, 6  # of an epoch there are four steps; the second one's third was never made


class Enough(Exception):
    pass


def train(path: Path, ends_at: int | None = None) -> tuple[dict[str, Any], Run]:
    """Every number comes from whole ones: all versions of the libraries compute the same."""
    torch.manual_seed(5)
    random.seed(6)
    model = nn.Linear(2, 1)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.fill_(1.0)
    state: dict[str, Any] = {
        "model": model,
        "optimizer": torch.optim.SGD(model.parameters(), lr=0.5, momentum=0.5),
        "table": {"array": np.zeros(3, np.int64), "list": [1, "x", None, 2**70, float("inf")]},
        "dice": random.Random(7),
    }
    loader = DataLoader(TensorDataset(torch.arange(8.0)), batch_size=2, shuffle=True)
    run = Run(
        path,
        state,
        vars={"seen": [], "window": deque([0], maxlen=3)},
        seed=1,
        every=Every(steps=1),
        keep=Last(2) | Best("loss", min),
        background=False,
    )
    with run:
        for epoch in run.epochs(EPOCHS):
            for (batch,) in run.batches(loader):
                state["optimizer"].zero_grad()
                (model(torch.ones(1, 2)).sum()).backward()
                state["optimizer"].step()
                state["table"]["array"] += 1
                run.vars.seen.append([epoch, *map(int, batch)])
                run.vars.window.append(state["dice"].randrange(100))
                run.log(loss=float(run.step))
                if run.step == ends_at:
                    raise Enough
    return state, run


def told(state: dict[str, Any], run: Run) -> dict[str, Any]:
    return {
        "weight": state["model"].weight.detach().tolist(),
        "momentum": state["optimizer"].state_dict()["state"][0]["momentum_buffer"].tolist(),
        "array": state["table"]["array"].tolist(),
        "list": state["table"]["list"],
        "window": [*run.vars.window],
        "seen": run.vars.seen,
        "metrics": [each["values"] for each in run.metrics()],
    }


def test_a_run_of_release_0_1_0_goes_on(tmp_path):
    """From the middle of an epoch, to the end that an undisturbed run reaches; no sample twice, none left out."""
    path = tmp_path / "run"
    shutil.copytree(GOLDEN, path, symlinks=True)
    state, run = train(path)
    found = told(state, run)
    assert found == told(*train(tmp_path / "undisturbed"))
    assert found["array"] == [EPOCHS * STEPS] * 3
    for epoch in range(EPOCHS):
        taken = [number for each, *batch in found["seen"] for number in batch if each == epoch]
        assert sorted(taken) == list(range(8))


def test_the_golden_run_is_as_it_was_committed():
    """It was left in the second epoch, and its checkpoints are whole."""
    found = Store(GOLDEN).checkpoints()
    assert [str(each.name) for each in found] == ["step-000000001", "step-000000005", "step-000000006"]
    assert not [problem for each in found for problem in each.problems()]
    own = found[-1].load(part="holdfast")
    assert len(own["vars"]["seen"]) == SAVED
    assert own["position"]["epoch"] == 1
    assert found[-1].metrics == {"loss": 5.0}


def collided() -> set[int]:
    """A set whose order comes from what was taken out of it."""
    found = {0, 8, 16, 24}
    found.discard(0)
    return found


def count(path: Path, steps: int) -> Run:
    """A run with one of each: packed rows, long text, a set, a factory of the script's, an array bound anew."""
    start = np.zeros(3)
    held: dict[str, Any] = {
        "rows": [(np.zeros(2, np.float32), 0) for _ in range(300)],
        "text": "",
        "set": collided(),
        "counts": defaultdict(lambda: 7),
    }
    with Run(path, {"held": held}, vars={"start": start, "x": start}, background=False) as run:
        for step in run.steps(steps):
            held["rows"] = [(np.full(2, at + step, np.float32), at) for at in range(300)]
            held["text"] = "a sentence \u00e9 " * 400
            held["counts"]["a"] += 1
            run.vars.x = run.vars.x + 1
    return run


def test_a_run_of_version_6_goes_on(tmp_path):
    """Its rows, its text, its set in the same order, its factory and its arrays are those of an undisturbed run."""
    text = (Store(GOLDEN_6).latest().path / "manifest.json").read_bytes()
    assert text.startswith(b'{"holdfast": 6,')
    assert not [mark for mark in SINCE_6 if mark not in text and mark != b'".besides":']
    path = tmp_path / "run"
    shutil.copytree(GOLDEN_6, path, symlinks=True)
    count(path, 5)
    count(tmp_path / "undisturbed", 5)
    found, wanted = (Store(each).latest().load() for each in (path, tmp_path / "undisturbed"))
    assert [*found["held"]["set"]] == [*wanted["held"]["set"]]
    assert repr(found["held"]) == repr(wanted["held"])
    assert found["holdfast"]["vars"]["x"].tolist() == [5.0] * 3
    assert found["holdfast"]["vars"]["start"].tolist() == [0.0] * 3


def staged(patch: pytest.MonkeyPatch, path: Path, cut: list[list[int]], steps: int, first: int = 0) -> dict[str, Any]:
    """The weights and momenta of all layers, by name: each rank has those layers of the cut."""
    patch.setattr(StepObserver, "begin", lambda _: None)  # the threads share torch's one list of hooks

    def work(rank: int) -> dict[str, Any]:
        layers = {f"layers.{number}": nn.Linear(2, 1) for number in cut[rank]}
        for number, layer in zip(cut[rank], layers.values(), strict=True):
            for each in layer.parameters():
                nn.init.constant_(each, first + number)
        parameters = [each for layer in layers.values() for each in layer.parameters()]
        optimizer = torch.optim.SGD(parameters, lr=0.5, momentum=0.5)
        parts = ModelParts({**layers}, optimizer)
        with Run(path, {"net": parts}, seed=1, every=Every(steps=1), keep=Last(1), background=False) as run:
            for _ in run.steps(steps):
                for each in parameters:
                    each.grad = torch.ones_like(each)
                optimizer.step()
        state = optimizer.state_dict()["state"]
        return {
            name: (parameter.tolist(), state[number]["momentum_buffer"].tolist())
            for number, (name, parameter) in enumerate(
                (f"{place}.{own}", each) for place, layer in layers.items() for own, each in layer.named_parameters()
            )
        }

    return {name: each for found in among_threads(patch)(len(cut), work) for name, each in found.items()}


@pytest.mark.parametrize("cut", [[[0], [1, 2]], [[0, 1, 2]]], ids=["same cut", "one process"])
def test_a_run_of_version_7_goes_on(tmp_path, monkeypatch, cut):
    """The command reads it, and on the same cut and on another its layers and momenta end as those undisturbed."""
    assert (Store(GOLDEN_7).latest().path / "manifest.json").read_bytes().startswith(b'{"holdfast": 7,')
    assert SINCE_7 in b"".join(each.read_bytes() for each in Store(GOLDEN_7).latest().path.glob("*.json"))
    path = tmp_path / "run"
    shutil.copytree(GOLDEN_7, path, symlinks=True)
    done("verify", path)
    assert "step-000000003" in done("ls", path)
    found = staged(monkeypatch, path, cut, 5, first=9)  # which what is restored replaces
    assert found == staged(monkeypatch, tmp_path / "undisturbed", cut, 5)
    assert len(found) == 6


def write() -> None:
    neutral = {
        **owner.describe_this_process(),
        "host": "host",
        "machine": "",
        "hardware": "",
        "boot": "",
        "user": "user",
        "job": None,
    }
    with pytest.MonkeyPatch.context() as patch, suppress(Enough):
        patch.setattr(owner, "describe_this_process", lambda: neutral)
        patch.setattr(platform, "node", lambda: "host")
        patch.setattr(sys, "argv", ["train.py"])
        shutil.rmtree(GOLDEN, ignore_errors=True)
        shutil.rmtree(GOLDEN_6, ignore_errors=True)
        shutil.rmtree(GOLDEN_7, ignore_errors=True)
        count(GOLDEN_6, 3)
        staged(patch, GOLDEN_7, [[0], [1, 2]], 3)
        train(GOLDEN, SAVED)
    for log in GOLDEN.rglob("*.jsonl"):  # it says where the script failed
        log.write_text(log.read_text().replace(str(Path(__file__).parent), "/home/user"))


if __name__ == "__main__":
    write()
