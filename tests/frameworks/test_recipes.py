"""The code of docs/recipes.md: stopped in the middle, and started again."""

import os
import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

PAGE = (Path(__file__).parents[2] / "docs" / "recipes.md").read_text(encoding="utf-8")
SETTING = """
import os, signal, torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from holdfast import Run
torch.manual_seed(0)
loader = DataLoader(TensorDataset(torch.randn(64, 4), torch.randn(64, 1)), batch_size=16, shuffle=True)
model = nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
taken = 0

def train_step(x, y):
    global taken
    taken += 1
    if str(taken) == os.environ.get("STOP"):
        signal.raise_signal(signal.SIGTERM)
    optimizer.zero_grad()
    loss = nn.functional.mse_loss(model(x), y)
    loss.backward()
    optimizer.step()
    return loss

def train(run, model, optimizer):
    for epoch in run.epochs(2):
        for x, y in run.batches(loader):
            train_step(x, y)

def made(lr):
    global model, optimizer
    model = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=lr)
    return model, optimizer

def evaluate(model):
    return model.weight.sum().item()

"""
ENDS = {
    "wandb": "print(run.vars.tracked)",
    "mlflow": "print(run.vars.tracked)",
    "hydra": "main()",
    "optuna": "print(len(study.trials), study.trials[0].state.name)",
}
HERE = ["wandb", "optuna", "mlflow", *(name for name in ("hydra",) if find_spec(name))]  # the last is in no lock


@pytest.mark.parametrize("library", HERE)
def test_a_recipe_goes_on_where_it_was_stopped(library, tmp_path):
    """The first start is stopped in its sixth step, and the second one takes the two that are left."""
    [block] = re.findall(
        rf"^```python no-run\n((?:(?!```).)*?^import {library}\n.*?)^```", PAGE, re.DOTALL | re.MULTILINE
    )
    script = tmp_path / "train.py"
    script.write_text(
        SETTING
        + block.replace("epochs(10)", "epochs(2)").replace("20 -", "2 -")
        + ENDS[library]
        + "\nprint('taken', taken)\n"
    )
    (tmp_path / "config.yaml").write_text("name: run\n")
    env = {
        **os.environ,
        "WANDB_MODE": "offline",
        "MLFLOW_TRACKING_URI": "file:./mlruns",
        "MLFLOW_ALLOW_FILE_STORE": "true",
    }
    first = subprocess.run(
        [sys.executable, script], check=False, cwd=tmp_path, env={**env, "STOP": "6"}, capture_output=True, text=True
    )
    assert 75 == first.returncode, first.stderr
    again = subprocess.run([sys.executable, script], check=False, cwd=tmp_path, env=env, capture_output=True, text=True)
    assert 0 == again.returncode, again.stderr
    assert {"optuna": "2 COMPLETE\ntaken 10\n"}.get(library, "taken 2\n") in again.stdout
