"""The clusters' own examples, rewritten: submitted as they are to a real Slurm, interrupted, and compared bit for bit.

Modules, GPUs and an MPI build of GROMACS, which sites have, are stood in for outside of the examples.
"""

import re
import shutil
import subprocess
import sys

import pytest
from test_examples import cifar10

from holdfast import Store
from programs import MDP, TOP, gmx
from real_slurm import concurrently
from slurm_sites import identical, sbatch, site, text, time_is_up

MPI = """#!/bin/bash
shift
exec gmx mdrun -ntmpi 1 -reprod "$@"
"""


@concurrently
def test_milas_job_goes_on_after_its_time_and_a_requeue_bit_for_bit(slurm, place):
    """Run alone, in a hand-written script: it asks for its requeue by itself, and counts its restarts."""
    cifar10(place / "datasets", images=130)
    environment = site(slurm, place, "mila", DATASETS=str(place / "datasets"))
    job = sbatch(place, environment, "-p", "shared", "--gpus-per-task=0", "--mem=1G", "job.sh")
    output = place / f"slurm-{job}.out"
    slurm.until(lambda: "epoch 1:" in text(output), limit_s=300)
    time_is_up(slurm, job, lead_s=300)
    slurm.until(lambda: "start 2 of this job" in text(output), limit_s=300)
    slurm.until(lambda: "epoch 2:" in text(output), limit_s=300)
    slurm.ask("scontrol", "requeue", job)
    slurm.wait(job, "COMPLETED", limit_s=300)
    said = text(output)
    assert ["1", "2", "3"] == re.findall(r"start (\d) of this job", said)
    assert [str(epoch) for epoch in range(1, 6)] == re.findall(r"^epoch (\d):", said, re.MULTILINE)
    assert said.endswith("done\n")
    assert 1 == said.count(f"job {job}: time limit; requeued")
    assert "COMPLETED" == slurm.endings(job)[-1]
    assert 2 == slurm.endings(job).count("PENDING")
    alone = environment | {"SLURM_JOB_ID": "alone", "SLURM_TMPDIR": str(place / "slurm_tmpdir")}
    subprocess.run([sys.executable, "main.py"], check=True, cwd=place, env=alone, capture_output=True)
    runs = place / "scratch" / "checkpointing_example"
    assert identical(runs / "alone", runs / job) is True
    assert identical(f"{runs / 'alone'}@best", f"{runs / job}@best") is True


def learned(run):
    """The bytes of weights and momenta."""
    state = Store(run).load()
    momenta = {f"momentum {number}": each["momentum_buffer"] for number, each in state["optimizer"]["state"].items()}
    return {name: tensor.numpy().tobytes() for name, tensor in {**state["net"], **momenta}.items()}


@concurrently
def test_northeasterns_training_goes_on_from_task_to_task(slurm, place):
    """The first task's time is up, the second finishes, the rest is cancelled; the losses are those of one task."""
    environment = site(slurm, place, "northeastern")
    job = sbatch(place, environment, "-p", "shared", "--gres=none", "--mem=1G", "train.sh")
    output = place / f"train-{job}.out"
    slurm.until(lambda: "Epoch 20 " in text(output), limit_s=300)
    time_is_up(slurm, f"{job}_1", lead_s=60)
    assert "0:0" == slurm.wait(f"{job}_1", "COMPLETED", "FAILED")["ExitCode"]
    slurm.wait(f"{job}_2", "COMPLETED", limit_s=300)
    slurm.until(lambda: ["CANCELLED"] == slurm.endings(job))
    (place / "alone").mkdir()
    alone = subprocess.run(
        [sys.executable, place / "train.py"],
        check=True,
        cwd=place / "alone",
        env={name: value for name, value in environment.items() if not name.startswith("SLURM")},
        capture_output=True,
        text=True,
    )
    losses = re.findall(r"^Epoch.*", text(output), re.MULTILINE)
    assert alone.stdout.splitlines() == losses
    assert learned(place / "alone/runs/train") == learned(place / "runs/train")


def water(place):
    """213 waters, 20,000 steps: some seconds."""
    (place / "md.mdp").write_text(MDP.replace("nsteps = 10000", "nsteps = 20000"))
    (place / "topol.top").write_text(TOP)
    gmx("solvate", "-cs", "spc216.gro", "-box", "1.9", "1.9", "1.9", "-p", "topol.top", "-o", "water.gro", place=place)
    gmx("grompp", "-f", "md.mdp", "-c", "water.gro", "-p", "topol.top", "-o", "myrun.tpr", place=place)


@concurrently
def test_northeasterns_simulation_goes_on_from_task_to_task_byte_for_byte(slurm, place):
    """mdrun under srun: told to stop it leaves a checkpoint, and the next task goes on from that."""
    if shutil.which("gmx") is None:
        pytest.skip("gmx not on PATH")
    environment = site(slurm, place, "northeastern")
    (place / "bin/gmx_mpi").write_text(MPI)
    (place / "bin/gmx_mpi").chmod(0o755)
    water(place)
    job = sbatch(place, environment, "-p", "shared", "-n", "1", "mdrun.sh")
    output = place / f"myrun-{job}.out"
    slurm.until(lambda: (place / "traj_comp.xtc").exists() and (place / "traj_comp.xtc").stat().st_size > 0)
    time_is_up(slurm, f"{job}_1", lead_s=300)
    assert "0:0" == slurm.wait(f"{job}_1", "COMPLETED", "FAILED")["ExitCode"]
    assert not (place / "confout.gro").exists()
    slurm.wait(f"{job}_2", "COMPLETED", limit_s=300)
    slurm.until(lambda: ["CANCELLED"] == slurm.endings(job))
    assert 1 == text(output).count("Restarting from checkpoint") + text(place / "md.log").count(
        "Restarting from checkpoint"
    )
    alone = place / "alone"
    alone.mkdir()
    shutil.copy(place / "myrun.tpr", alone)
    subprocess.run(
        [place / "bin/gmx_mpi", "mdrun", "-ntomp", "1", "-s", "myrun.tpr"], check=True, cwd=alone, capture_output=True
    )
    for name in ("confout.gro", "traj_comp.xtc", "ener.edr"):
        assert (alone / name).read_bytes() == (place / name).read_bytes(), name
