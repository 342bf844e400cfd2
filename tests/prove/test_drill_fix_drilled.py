"""`drill --fix` and `init` whole: planted scripts become identical by their lines, and the user's file is safe."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from causes import OPTIONS, SCRIPTS, TORCH, quiet
from holdfast import cli
from holdfast.drill.fix.changes import apply_fix
from holdfast.drill.fix.repair import ScriptDrills, repair_script
from holdfast.drill.plan import DrillOptions
from holdfast.drill.report import IDENTICAL
from holdfast.errors import UsageError
from samples import sample

TABLE = "table: additions that drills have proven"
MENDED = {  # a planted script -> what is added to it
    "t_scheduler": ["scheduler=scheduler"],
    "t_scaler": ["scaler=scaler"],
    "t_second_optimizer": ["optimizer_d=optimizer_d"],
    "t_ema": ["shadow=shadow"],
    "replay_buffer": ['buffer=Fields(buffer, "observations", "pos", "full")'],
    "quasi_random": ['engine=Fields(engine, "num_generated", "_quasi")'],
    "environment": ["env_np_random=env.np_random", 'env=Fields(env, "state", "elapsed")'],
    "own_generator": ["rng=rng"],
    "t_crops fresh": ["Seeded(dataset, seed=0)"],
    "t_crops persistent": ["Seeded(dataset, seed=0)"],
    "hidden_state": ["run.vars.hidden"],
    "prefetched": ["run.vars.ahead"],
    "accumulator": ["run.vars.total"],
    "learning_rate": ['Fields(globals(), "lr")'],
    "early_stopping": ["run.vars.best", "run.vars.bad"],
    "evaluations": ['Fields(globals(), "evaluations")'],
    "index": ["run.enumerate for i"],
    "own_vars": ['Fields(globals(), "best")'],
    "t_rebound": ['Fields(globals(), "hidden")'],
    "t_module_attribute": ['model_more=Fields(model, "hidden")'],
    "dataset_changes": ['dataset=Fields(dataset, "reads")'],
    "function_attribute": ['noise=Fields(noise, "calls")'],
    "lazy_cache": ['dataset=Fields(dataset, "cache")'],
}
STUCK = {  # what no listed addition mends
    "t_unseeded": "unseeded",
    "one_ahead": "prefetched batch",
    "t_frozen": "frozen parameters",
}


@pytest.fixture
def scripts(tmp_path, monkeypatch):
    """A copy of the planted scripts: the copies that are drilled lie beside them."""
    monkeypatch.setenv("FIX", "")
    return shutil.copytree(SCRIPTS, tmp_path / "scripts")


def command(scripts, zygotes, script):
    """The words that start a planted script in a zygote; its client is no script that can be changed."""
    name, *words = script.split()
    python, alone, client, socket = zygotes(*(TORCH if name.startswith("t_") else ("numpy",)))
    stands_for = str(shutil.copy(client, scripts / "client"))
    return [python, alone, stands_for, socket, str(scripts / f"{name}.py"), *words]


@pytest.mark.parametrize("script", sample(list(MENDED), 7))
def test_a_planted_script_becomes_identical_by_its_line_alone(script, scripts, zygotes, record_property):
    """The additions are those that the drill names, each with a verdict without it; the user's file keeps its bytes."""
    path = scripts / f"{script.split()[0]}.py"
    before = path.read_bytes()
    found = repair_script(command(scripts, zygotes, script), OPTIONS, quiet, lambda *_: None)
    whats = [each.what for each in found.additions]
    record_property(TABLE, f"{script} | {found.first} | {', '.join(whats)} | {found.verdict}")
    assert (found.verdict, whats) == (IDENTICAL, MENDED[script]), found
    assert all("differ" in each.evidence for each in found.additions)
    assert path.read_bytes() == before
    assert not list(scripts.glob(".*.py"))


def test_a_model_that_a_run_cannot_track_is_restored_by_its_attributes(tmp_path):
    """It looks like torch's, by `parameters()` and `zero_grad()`, and has no `state_dict()`."""
    script = tmp_path / "own_model.py"
    script.write_text(OWN_MODEL)
    found = repair_script([sys.executable, str(script)], DrillOptions(kills=2), quiet, lambda *_: None, new=True)
    assert (found.verdict, [each.what for each in found.additions]) == (
        IDENTICAL,
        ['model=Fields(model, "slope", "offset")'],
    ), found


@pytest.mark.parametrize("script", sample(list(STUCK), 1))
def test_what_no_listed_addition_mends_is_stuck_and_nothing_is_added(script, scripts, zygotes):
    """No seed is added, no worker taken away, no output removed."""
    found = repair_script(command(scripts, zygotes, script), OPTIONS, quiet, lambda *_: None, write=True)
    assert found.verdict != IDENTICAL
    assert (found.additions, found.diff, found.written, found.exit_code) == ([], "", False, 1)
    assert found.why.startswith(STUCK[script])


FROM_ZERO = """
# Fits a line to a cosine.
import math
import random

random.seed(3)


def main(steps=20):
    weights = [0.1, 0.0]
    seen = 0.0  # so far
    for step in range(steps):
        x = random.uniform(-1, 1)
        error = weights[0] * x + weights[1] - math.cos(3 * x)
        weights[0] -= 0.05 * error * x
        weights[1] -= 0.05 * error
        seen += abs(x)
        print(f"{step}: {error:.6f} {seen:.6f}")
    print("end", weights)


main()
"""


OWN_MODEL = """
import random

random.seed(3)


class Line:
    def __init__(self):
        self.slope, self.offset = 0.1, 0.0

    def parameters(self):
        return [self.slope, self.offset]

    def zero_grad(self):
        self.grads = [0.0, 0.0]


model = Line()
print(model.parameters())
for step in range(12):
    model.zero_grad()
    x = random.uniform(-1, 1)
    error = model.slope * x + model.offset - x * x
    model.slope -= 0.1 * error * x
    model.offset -= 0.1 * error
    print(f"{step}: {error:.6f}")
"""


EPISODES = """
from itertools import count

import numpy as np


class Environment:
    def __init__(self):
        self.rng = np.random.default_rng(3)

    def reset(self):
        self.state = self.rng.normal()
        return self.state

    def step(self, action):
        self.state = 0.5 * self.state + action
        return self.state


class Wrapper:
    def __init__(self, env):
        self.env = env

    def reset(self):
        return self.env.reset()

    def step(self, action):
        return self.env.step(action)


env, weights = Wrapper(Environment()), np.zeros(2)


def main():
    running = 10.0
    for episode in count(1):
        state, total = env.reset(), 0.0
        for _ in range(1, 10):
            state = env.step(weights[0] * state)
            total -= abs(state)
        running = 0.05 * total + 0.95 * running
        weights[:] += 0.01 * total
        print(f"{episode}: {total:.6f} {running:.6f}")
        if episode == 16:
            break


main()
"""


@pytest.fixture
def from_zero(tmp_path):
    script = tmp_path / "fit.py"
    script.write_text(FROM_ZERO)
    return script


def holdfast(*words, cwd):
    return subprocess.run(
        [sys.executable, "-m", "holdfast", *words], cwd=cwd, capture_output=True, text=True, check=False
    )


def test_a_script_that_knows_nothing_of_holdfast_becomes_identical_by_one_command(from_zero):
    """The diff applies with patch, and the script that it makes prints what it printed."""
    before = subprocess.run([sys.executable, "fit.py"], cwd=from_zero.parent, capture_output=True, check=True).stdout
    done = holdfast("init", "--kills", "2", "--json", "--", sys.executable, "fit.py", cwd=from_zero.parent)
    found = json.loads(done.stdout)
    assert (done.returncode, found["verdict"], found["written"]) == (0, "identical", False)
    assert [each["what"] for each in found["additions"]] == ["weights=weights", "run.vars.seen"]
    assert all("differ" in each["evidence"] for each in found["additions"])
    assert from_zero.read_text() == FROM_ZERO
    subprocess.run(["patch", "-s", "fit.py"], input=found["diff"], cwd=from_zero.parent, text=True, check=True)
    assert "    seen = 0.0  # so far\n    run = Run(" in from_zero.read_text()
    after = subprocess.run([sys.executable, "fit.py"], cwd=from_zero.parent, capture_output=True, check=True).stdout
    assert before == after


def test_episodes_of_a_wrapped_environment_become_identical_by_one_command(tmp_path):
    """actor_critic's shape: endless episodes, a generator inside of a wrapper, a running mean that is a local."""
    (tmp_path / "episodes.py").write_text(EPISODES)
    done = holdfast("init", "--kills", "2", "--json", "--", sys.executable, "episodes.py", cwd=tmp_path)
    found = json.loads(done.stdout)
    whats = {each["what"] for each in found["additions"]}
    assert (done.returncode, found["verdict"]) == (0, "identical"), found
    assert {"env_env_rng=env.env.rng", "weights=weights", "run.vars.running"} <= whats
    assert all("differ" in each["evidence"] for each in found["additions"])


def test_write_writes_it_and_the_last_line_says_so(from_zero):
    done = holdfast("init", "--write", "--kills", "2", "fit.py", cwd=from_zero.parent)
    assert done.returncode == 0, done
    assert done.stdout.splitlines()[-1] == "identical: a Run, and 2 additions, 4 drills; written to fit.py"
    again = holdfast("drill", "--fix", "--kills", "2", "--", sys.executable, "fit.py", cwd=from_zero.parent)
    assert (again.returncode, again.stdout) == (0, "identical: nothing is to be added\n")


def test_write_refuses_a_file_that_changed_meanwhile(from_zero):
    bench = ScriptDrills([sys.executable, str(from_zero)], DrillOptions(), quiet, lambda *_: None)
    from_zero.write_text(FROM_ZERO + "# mine\n")
    with pytest.raises(UsageError, match="changed in the meantime"):
        bench.write("print(1)\n")
    assert from_zero.read_text() == FROM_ZERO + "# mine\n"


def test_the_copy_is_removed_whatever_happens(from_zero, monkeypatch):
    def fails(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr("holdfast.drill.fix.repair.Drill.run", fails)
    with pytest.raises(KeyboardInterrupt):
        repair_script([sys.executable, str(from_zero)], DrillOptions(), quiet, lambda *_: None)
    assert [each.name for each in from_zero.parent.iterdir()] == ["fit.py"]


def test_a_version_that_prints_otherwise_undisturbed_is_taken_back(from_zero, monkeypatch):
    """The oracle can go red: an addition that changed a printed number is refused, and says which line."""

    def spoils(text, fix):
        return apply_fix(text, fix).replace("0.05 * error * x", "0.06 * error * x")

    monkeypatch.setattr("holdfast.drill.fix.repair.apply_fix", spoils)
    found = repair_script(
        [sys.executable, str(from_zero)], DrillOptions(kills=2), quiet, lambda *_: None, new=True, write=True
    )
    assert (found.verdict == IDENTICAL, found.written, found.additions) == (False, False, [])
    assert any("an undisturbed run prints otherwise" in each for each in found.refused)


def test_write_goes_with_fix_and_a_command_names_its_script(from_zero, capsys):
    for words, why in [
        (["drill", "--write", "--", "python", "fit.py"], "--write goes with --fix"),
        (["drill", "--fix", "--", "python", "-m", "fit"], "no word of the command is a script"),
    ]:
        with pytest.raises(SystemExit) as ended:
            cli.commands.main(words)
        assert (ended.value.code, why in capsys.readouterr().err) == (2, True)
    assert Path(from_zero).read_text() == FROM_ZERO
