"""Programs without a network: each example is killed and compared, and a sweep's study ends as without the kills."""

import json
import random
import signal
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[2] / "examples"
SCRIPTS = sorted(path.name for path in (EXAMPLES / "computations").glob("*.py"))
STUDY = """
import json, optuna
from optuna.storages import JournalStorage
from optuna.storages.journal import JournalFileBackend
study = optuna.load_study(study_name="sweep", storage=JournalStorage(JournalFileBackend("sweep.log")))
print(json.dumps([[t.number, t.params, t.value, t.state.name, t.intermediate_values] for t in study.get_trials()]))
"""


def test_there_are_examples():
    """And the page names each."""
    page = (EXAMPLES.parent / "docs/computations.md").read_text(encoding="utf-8")
    assert len(SCRIPTS) == 6
    assert [name for name in SCRIPTS if f"`{name}`" not in page] == []


@pytest.mark.parametrize("name", SCRIPTS)
def test_an_example_is_identical(tmp_path, name):
    """Its drill kills it twice."""
    command = [sys.executable, "-m", "holdfast", "drill", "--kills", "2", "--seed", "3", "--"]
    command += [sys.executable, str(EXAMPLES / "computations" / name)]
    found = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert found.returncode == 0, found.stdout + found.stderr
    assert "\nidentical\n" in found.stdout
    assert "kills proven: 2 of 2" in found.stdout


def trials(place):
    found = subprocess.run([sys.executable, "-c", STUDY], cwd=place, capture_output=True, text=True, check=True)
    return json.loads(found.stdout.splitlines()[-1])


def _killed(command, place, when):
    """Whether the worker was killed, when it began so many trials. Its last line ends the loop."""
    with subprocess.Popen(command, cwd=place, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True) as worker:
        begun = 0
        for line in worker.stderr:
            begun += "starts fresh" in line or "resumes" in line
            if begun == when:
                worker.send_signal(signal.SIGKILL)
    return worker.returncode != 0


def test_a_killed_sweep_has_the_same_study(tmp_path):
    """Parameters, values, reports, and which trials were pruned. Killed whenever one more trial has begun."""
    command = [sys.executable, str(EXAMPLES / "sweep/worker.py"), "8"]
    for name in ("full", "killed"):
        (tmp_path / name).mkdir()
    subprocess.run(command, cwd=tmp_path / "full", check=True, capture_output=True)
    dice, kills = random.Random(5), 0
    while kills < 4 and _killed(command, tmp_path / "killed", dice.randint(2, 3)):
        kills += 1
    assert kills >= 2
    subprocess.run(command, cwd=tmp_path / "killed", check=True, capture_output=True)
    assert trials(tmp_path / "killed") == trials(tmp_path / "full")
    assert "PRUNED" in {state for _, _, _, state, _ in trials(tmp_path / "full")}


BEGINS = """
import os, signal, sys
sys.path.insert(0, {sweep!r})
import worker
begin = worker.STORAGE.create_new_trial
worker.STORAGE.create_new_trial = lambda *words: (begin(*words), os.kill(os.getpid(), signal.SIGKILL))
worker.main()
"""


def test_a_trial_whose_worker_is_killed_as_it_begins_is_found_again(tmp_path, monkeypatch):
    """By the name of a task, which stands in the trial from its first moment: https://github.com/optuna/optuna/issues/1641."""
    monkeypatch.setenv("SLURM_ARRAY_TASK_ID", "1")
    begins = [sys.executable, "-c", BEGINS.format(sweep=str(EXAMPLES / "sweep")), "1"]
    assert subprocess.run(begins, cwd=tmp_path, check=False, capture_output=True).returncode == -signal.SIGKILL
    assert ["RUNNING"] == [state for _, _, _, state, _ in trials(tmp_path)]
    subprocess.run(
        [sys.executable, str(EXAMPLES / "sweep/worker.py"), "1"], cwd=tmp_path, check=True, capture_output=True
    )
    assert ["COMPLETE"] == [state for _, _, _, state, _ in trials(tmp_path)]
