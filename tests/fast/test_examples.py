"""The clusters' own examples, rewritten: submitted as they are to a real Slurm, interrupted, and compared bit for bit.

What a site has and this machine has not (modules, GPUs, an MPI build of GROMACS) is stood in for outside of the examples.
"""

import importlib.util
import io
import os
import random
import re
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest
import torch

from holdfast import Store
from holdfast.cluster.batch import Around
from holdfast.cluster.lint import lint
from programs import MDP, TOP, gmx
from real_slurm import concurrently

EXAMPLES = Path(__file__).parents[2] / "examples"
BIN = Path(sys.executable).parent
SCRIPTS = sorted(EXAMPLES.glob("*/*.sh"))
MPI = """#!/bin/bash
shift
exec gmx mdrun -ntmpi 1 -reprod "$@"
"""


def loaded(path):
    """An example as a module."""
    spec = importlib.util.spec_from_file_location(path.stem, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def batch(generator, images):
    """One file of CIFAR-10's binary version: a byte for the label, and three planes of 32 x 32 that hint at it."""
    labels = [generator.randrange(10) for _ in range(images)]
    return b"".join(bytes([label]) + bytes(generator.choices(range(20 * label, 256), k=3072)) for label in labels)


def cifar10(place, images):
    """The archive as it can be had, but smaller."""
    generator = random.Random(0)
    archive = place / "cifar10" / "cifar-10-binary.tar.gz"
    archive.parent.mkdir(parents=True)
    with tarfile.open(archive, "w:gz") as tar:
        for name in [*(f"data_batch_{number}.bin" for number in range(1, 6)), "test_batch.bin"]:
            member = tarfile.TarInfo(f"cifar-10-batches-bin/{name}")
            data = batch(generator, images)
            member.size = len(data)
            tar.addfile(member, io.BytesIO(data))
    return archive


def code(path):
    """Lines that are neither empty nor a comment; Slurm's directives count."""
    lines = path.read_text().splitlines()
    return [line for line in lines if line.strip() and not re.match(r"\s*#(?!SBATCH)", line)]


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: f"{path.parent.name}/{path.name}")
def test_lint_finds_nothing_in_the_examples(script):
    """And bash can read them."""
    subprocess.run(["bash", "-n", script], check=True)
    read = lambda name: (script.parent / name).read_text() if (script.parent / name).is_file() else None
    assert [] == lint(script.read_text(), Around(read=read))


def test_milas_example_is_shorter_than_the_original():
    """Which has 239 lines of code in main.py and 23 in job.sh, directives included."""
    assert len(code(EXAMPLES / "mila/main.py")) < 239 / 2
    assert len(code(EXAMPLES / "mila/job.sh")) < 23


def test_cifar_10_is_read_as_it_is_laid_out(tmp_path):
    """A label, then the red, the green and the blue plane, row by row; nothing is unpickled."""
    cifar10(tmp_path, images=3)
    with tarfile.open(tmp_path / "cifar10/cifar-10-binary.tar.gz") as tar:
        tar.extractall(tmp_path, filter="data")
    folder = tmp_path / "cifar-10-batches-bin"
    raw = (folder / "data_batch_2.bin").read_bytes()
    images = loaded(EXAMPLES / "mila/main.py").cifar10(folder, "data_batch_1", "data_batch_2")
    assert 6 == len(images)
    image, label = images[4]
    assert raw[3073] == label
    assert (3, 32, 32) == tuple(image.shape)
    assert list(raw[3074 : 3074 + 32]) == image[0, 0].tolist()
    assert list(raw[3074 + 2 * 1024 + 31 * 32 : 2 * 3073]) == image[2, 31].tolist()
    assert torch.uint8 == image.dtype


# On a real Slurm -----------------------------------------------------------------------------------------------


def site(slurm, place, example, **more):
    """The example in `place`, and what its cluster has: modules, conda, programs, folders."""
    shutil.copytree(EXAMPLES / example, place, dirs_exist_ok=True)
    (place / "bin").mkdir()
    names = ("SCRATCH", "SLURM_TMPDIR")
    for name in names:
        (place / name.lower()).mkdir()
    return {
        **slurm.environment,
        **{name: str(place / name.lower()) for name in names},
        "PATH": f"{place / 'bin'}:{BIN}:{os.environ['PATH']}",
        "BASH_FUNC_module%%": "() { :; }",
        "BASH_FUNC_conda%%": "() { :; }",
        "PYTHONWARNINGS": "ignore",  # more workers than this machine has cores
        **more,
    }


def sbatch(place, environment, *words):
    done = subprocess.run(
        ["sbatch", "--parsable", *words], check=False, cwd=place, env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def text(path):
    return path.read_text() if path.exists() else ""


def time_is_up(slurm, job, lead_s):
    """As Slurm says it, and not up to 30 s later: the end is near, and here is the notice."""
    slurm.ask("scontrol", "update", f"JobId={job}", f"EndTime=now+{lead_s + 80}")  # the limit of the next start, too
    # For a task of an array it is sent, and scancel says all the same that it should try again later.
    subprocess.run(
        ["scancel", "--batch", "--signal=USR1", job], check=False, env=slurm.environment, capture_output=True
    )


def identical(one, other):
    done = subprocess.run([BIN / "holdfast", "diff", one, other], check=False, capture_output=True, text=True)
    return done.returncode == 0 or done.stdout + done.stderr


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
    """The first task's time is up, the second finishes, the rest is cancelled; the losses are the uninterrupted ones."""
    environment = site(slurm, place, "northeastern")
    job = sbatch(place, environment, "-p", "shared", "--gres=none", "--mem=1G", "train.sh")
    output = place / f"train-{job}.out"
    slurm.until(lambda: "Epoch 20 " in text(output), limit_s=300)
    time_is_up(slurm, f"{job}_1", lead_s=60)
    assert "75:0" == slurm.wait(f"{job}_1", "FAILED")["ExitCode"]
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
    assert "75:0" == slurm.wait(f"{job}_1", "FAILED")["ExitCode"]
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
