"""A framework's function with another body than our tests ran with: told in each start, and saved where it is safe."""

import inspect
import shutil
import subprocess
import sys
from importlib import import_module

import pytest

from framework_runs import SCRIPTS
from holdfast.run.deferred_saves import read_proven
from holdfast.trainers.known import NAMES
from holdfast.trainers.names import lookup, require
from toy import names

WITH_SOURCES = {
    f"{framework}-{name.path}": (framework, name)
    for framework, known in NAMES.items()
    for name in known
    if name.sources
}
AT_ENDS = ["step-000000004-end", "step-000000008-end"]
EPOCHS = "this run is saved at the ends of its epochs"
FRAMEWORKS = {  # -> what a line says of the change that scripts/untried.py plants, where it is saved, what to import
    "keras": ("EpochIterator._enumerate_iterator", EPOCHS, "keras", "holdfast.keras"),
    "lightning": ("Trainer._run", EPOCHS, "torch", "lightning.pytorch", "holdfast.lightning"),
    "pytorch_lightning": ("Trainer._run", EPOCHS, "torch", "pytorch_lightning", "holdfast.lightning"),
    "transformers": ("Trainer._run_epoch", EPOCHS, "torch", "transformers.trainer", "holdfast.transformers"),
    "accelerate": ("DataLoaderShard.__iter__", EPOCHS, "torch", "accelerate", "holdfast.accelerate.loader"),
    "stable_baselines3": (
        *("OnPolicyAlgorithm.learn", "a resume may end otherwise"),
        *("torch", "gymnasium.envs.classic_control", "stable_baselines3", "holdfast.stable_baselines3"),
    ),
}


@pytest.mark.parametrize("case", WITH_SOURCES)
def test_another_body_of_a_name_is_told(case, monkeypatch):
    """Of each function whose source an adapter knows: with its name, and the version of its package."""
    framework, name = WITH_SOURCES[case]
    for each in NAMES[framework]:
        import_module(each.path.partition(":")[0])
    assert require(framework, NAMES[framework]) is None
    changed, source_of = inspect.unwrap(lookup(name.path)), inspect.getsource
    more = lambda each: source_of(each).rstrip() + ("; pass" if each is changed else "")
    monkeypatch.setattr(inspect, "getsource", more)
    found = require(framework, NAMES[framework])
    package = name.path.partition(":")[0].partition(".")[0]
    assert found.kind == f"{package} {sys.modules[package].__version__}"
    assert name.path.partition(":")[2] in found.changed


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_a_training_of_another_body_is_told_until_a_drill_has_proven_it(framework, zygotes, tmp_path):
    """It is saved at its epochs' ends till then. Stable-Baselines3 has none: it is saved between its rollouts."""

    name, where, *modules = FRAMEWORKS[framework]
    path, python = tmp_path / "run", zygotes(*modules)

    def run(*words):
        command = [*words, *python, str(SCRIPTS / "untried.py"), framework]
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=300, check=False)
        assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
        return done.stdout + done.stderr

    line = f"was not tried with this Holdfast ({name} has changed): {where}. Prove it once: holdfast drill -- python"
    assert run().count(line) == 1
    ends = where == EPOCHS
    assert names(path) == AT_ENDS if ends else len(names(path)) == 6
    if framework != "accelerate":
        assert line in run()
    shutil.rmtree(path)
    assert " resumed exactly: " in run(sys.executable, "-m", "holdfast", "drill", "--kills", "1", "--no-flip", "--")
    (kind,) = read_proven(path).values()
    assert kind.startswith(f"{framework} ")
    assert "was not tried" not in run()
    assert len(names(path)) >= 6
