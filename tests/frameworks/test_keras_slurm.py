"""The Northeastern University's example of TensorFlow, submitted as it is to a real Slurm, and interrupted."""

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

from holdfast import Store, journal
from slurm_sites import identical, sbatch, site, text, time_is_up

EPOCHS = "100"


def processes(job):
    """Of this job, as their environment says."""
    mark = f"SLURM_JOB_ID={job}\0".encode()
    found = []
    for each in Path("/proc").glob("[0-9]*"):
        try:
            if mark in (each / "environ").read_bytes():
                found.append(int(each.name))
        except OSError:  # it has ended, or is not ours
            continue
    return found


def trained(run):
    """How far a run has come that lies in its newest checkpoint."""
    return max((each.step for each in Store(run).checkpoints()), default=0) if run.exists() else 0


def log(run):
    """What was logged, but for its times."""
    return [(line["step"], line["epoch"], line["values"]) for line in journal.metrics(run)]


def test_northeasterns_array_of_tensorflow_ends_as_one_training(slurm, tmp_path):
    """One task's time is up, one is killed, one is requeued; what is done then is what one task would have done."""
    environment = site(slurm, tmp_path, "northeastern/tensorflow")
    place = tmp_path / "alone"
    place.mkdir()
    alone = subprocess.Popen(
        [sys.executable, tmp_path / "train_with_checkpoints.py", EPOCHS],
        cwd=place,
        env={name: value for name, value in environment.items() if not name.startswith("SLURM")},
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    job = sbatch(tmp_path, environment, "-p", "shared", "--gres=none", "--mem=2G", "submit_tf_array.bash", EPOCHS)
    output, run = tmp_path / f"myrun-{job}.out", tmp_path / "training_2"
    slurm.until(lambda: trained(run) > 0)
    time_is_up(slurm, f"{job}_1", lead_s=60)
    assert "0:0" == slurm.wait(f"{job}_1", "COMPLETED", "FAILED")["ExitCode"]

    stopped = trained(run)
    slurm.until(lambda: trained(run) > stopped)
    for each in processes(slurm.show(f"{job}_2")["JobId"]):
        os.kill(each, signal.SIGKILL)
    assert "0:9" == slurm.wait(f"{job}_2", "FAILED")["ExitCode"]

    killed = trained(run)
    slurm.until(lambda: trained(run) > killed)
    third = slurm.show(f"{job}_3")["JobId"]
    slurm.ask("scontrol", "requeue", f"{job}_3")
    slurm.until(lambda: not slurm.ask("squeue", "-h", "-j", job))
    assert "PENDING" == slurm.endings(third)[0]
    said = text(output)
    done = re.findall(r"^\d+ epochs, loss.*\n", said, re.MULTILINE)
    assert ["1", "2", "3", "4"] == re.findall(r"\(attempt (\d)\)", said)
    assert [alone.communicate(timeout=200)[0]] == done
    assert identical(place / "training_2", run) is True
    assert len(log(run)) == 32 * int(EPOCHS)
    assert log(place / "training_2") == log(run)
