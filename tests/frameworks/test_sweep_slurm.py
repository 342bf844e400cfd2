"""An Optuna sweep as an array of jobs on a real Slurm: all its tasks are preempted, one is killed, one's time is up."""

import json
import os
import signal
import subprocess
import sys

from test_computations import trials

from holdfast import journal
from slurm_digits import metrics_of
from slurm_sites import EXAMPLES, time_is_up
from slurm_stories import call, preempt

PACED = """
import os, sys, time
import torch
sys.path.insert(0, {sweep!r})
import worker
step = torch.optim.SGD.step
torch.optim.SGD.step = lambda self: (time.sleep(0 if os.path.exists("fast") else 1), step(self))
worker.main()
"""
# a trial of the study once more: alone, and to its last step
ALONE = """
import json, sys
import optuna
from worker import train
print(json.dumps([train(optuna.trial.FixedTrial(each[1], each[0]))["reported"] for each in json.load(sys.stdin)]))
"""
TASKS = (1, 2, 3)


def told(place, kind):
    """Lines of a task's supervisor."""
    return [each for each in journal.read(place / "supervisor.jsonl") if each["event"] == kind]


def trained(place, attempt):
    """Which of the first trials have been trained for three steps in this attempt."""
    runs = [place / f"runs/trial-{number}" for number in range(len(TASKS))]
    return [run for run in runs if run.exists() and len(metrics_of(run, attempt)) >= 3]


def logged(run):
    return [(line["step"], line["values"]) for line in journal.metrics(run)]


def test_a_sweep_as_an_array_loses_no_trial_and_doubles_none(slurm, tmp_path):
    """Each trial was begun once, went on from its own checkpoint, and ended as one that was trained alone.

    A killed worker's trial is of no use to Optuna's own sweep: https://github.com/optuna/optuna/issues/1641.
    """
    (tmp_path / "paced.py").write_text(PACED.format(sweep=str(EXAMPLES / "sweep")))
    words = ["--time=30", "--array", "1-3", "-p", "pcancel", "-w", "n20", "-c", "1", "--retries", "2", "--lead", "60"]
    done = call(slurm, tmp_path, "submit", "--json", *words, "--", "python", "paced.py", "9")
    assert done.returncode == 0, done.stderr
    job = json.loads(done.stdout)["job"]
    places = [tmp_path / f".holdfast/paced-1/task-{task}" for task in TASKS]

    slurm.until(lambda: len(trained(tmp_path, 1)) == 3)
    preempt(slurm, "n20", tmp_path)
    slurm.until(lambda: len(trained(tmp_path, 2)) == 3)
    assert all(metrics_of(run, 2)[0]["step"] > 3 for run in trained(tmp_path, 2))
    for place in places:
        assert ["preempted"] == [each["cause"] for each in told(place, "requeued")]
    os.kill(told(places[0], "start")[-1]["pid"], signal.SIGKILL)
    time_is_up(slurm, f"{job}_3", lead_s=60)
    slurm.until(lambda: len(trained(tmp_path, 3)) == 2)
    (tmp_path / "fast").touch()
    slurm.until(lambda: not slurm.ask("squeue", "-h", "-j", job))

    study = trials(tmp_path)
    numbers = [number for number, *_ in study]
    assert numbers == [*range(len(study))]
    assert 9 <= len(study) < 9 + len(TASKS)  # tasks that look at the same time begin one each
    assert len({each["rate"] for _, each, *_ in study}) == len(study)  # also of those that were begun together
    assert {"COMPLETE", "PRUNED"} >= {state for *_, state, _ in study}
    alone = tmp_path / "alone"
    alone.mkdir()
    environment = {**os.environ, "PYTHONPATH": str(EXAMPLES / "sweep")}
    command = [sys.executable, "-c", ALONE]
    found = subprocess.run(
        command, cwd=alone, env=environment, input=json.dumps(study), capture_output=True, text=True, check=True
    )
    whole = json.loads(found.stdout.splitlines()[-1])
    for (number, _, value, state, reports), reported in zip(study, whole, strict=True):
        losses, all_losses = (logged(each / f"runs/trial-{number}") for each in (tmp_path, alone))
        assert losses == all_losses[: len(losses)], number
        assert [*reports.values()] == reported[: len(reports)], number
        assert state == "PRUNED" or (value, len(losses)) == (reported[-1], 30)
