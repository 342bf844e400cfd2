"""A DDP training on two nodes of a real Slurm, with torchrun and without, ends with the same bits after a time limit.

Each interruption is asserted from Slurm's own record. The stories begin together and mostly wait.
"""

import functools
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from holdfast import journal
from real_slurm import concurrently
from slurm_stories import end_in, submit, text, until_resumed, without_limit

# What docs/torchrun.md tells those to write who start their ranks by srun alone. All nodes of this cluster are this
# machine, and nobody knows their names.
SRUN = """
import os
if "RANK" not in os.environ:
    os.environ |= {
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(15000 + int(os.environ["SLURM_JOB_ID"]) % 10000),
        "RANK": os.environ["SLURM_PROCID"],
        "WORLD_SIZE": os.environ["SLURM_NTASKS"],
        "LOCAL_RANK": os.environ["SLURM_LOCALID"],
    }
"""
TRAIN = f"""
{SRUN}
import random, sys, time
import torch
from torch import distributed, nn
from torch.nn.parallel import DistributedDataParallel
from holdfast import Every, Run

torch.set_num_threads(1)
distributed.init_process_group("gloo")
rank = distributed.get_rank()
torch.manual_seed(1)
model = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 1))
torch.manual_seed(100 + rank)
random.seed(100 + rank)
together = DistributedDataParallel(model)
optimizer = torch.optim.AdamW(model.parameters(), 0.01)
with Run("runs/ddp", {{"model": model, "optimizer": optimizer}}, every=Every(steps=50)) as run:
    for step in run.steps(int(sys.argv[1])):
        x = torch.randn(6, 4) + random.random()
        loss = (together(x) - x.sum(1, keepdim=True)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        time.sleep(0 if os.path.exists("fast") else 0.05)  # until the last interruption is behind us
        if rank == 0 and step % 20 == 19:
            print("step", step + 1, flush=True)
if rank == 0:
    print("final", [value.double().sum().item().hex() for value in model.state_dict().values()], flush=True)
distributed.destroy_process_group()
"""
STEPS = 1500
TORCHRUN = Path(sys.executable).parent / "torchrun"


@functools.cache
def final():
    """What two ranks print in the end that nobody disturbs."""
    with tempfile.TemporaryDirectory() as place:
        Path(place, "train.py").write_text(TRAIN)
        Path(place, "fast").touch()
        command = [TORCHRUN, "--standalone", "--nproc-per-node=2", "train.py", str(STEPS)]
        done = subprocess.run(
            command, cwd=place, env={**os.environ, "OMP_NUM_THREADS": "1"}, check=True, capture_output=True, text=True
        )
    return done.stdout.splitlines()[-1] + "\n"


def begin(slurm, place, *words):
    """Submit it; its job, and its output."""
    (place / "ddp.py").write_text(TRAIN)  # before the job can begin
    return submit(slurm, place, "--lead", "20", *words)


def stopped_by_its_time_limit(slurm, job, output):
    """After which it is in the queue again, without another limit."""
    end_in(slurm, job, 30)
    without_limit(slurm, job)
    assert text(output).count("saved, run me again") == 1


def ends(place, output):
    """How each attempt ended; all that is known of them goes with a failure."""
    run = place / "runs" / "ddp"
    print(text(output), *sorted(run.glob("*/*")), sep="\n")
    return [log.last["event"] for log in journal.logs(run)]


@concurrently
def test_two_tasks_on_two_nodes_are_stopped_by_their_time_limit_and_go_on(slurm, place):
    """By srun alone: both save together and leave; the requeued job ends with the bits of an undisturbed run."""
    words = ("--nodes", "2", "--ntasks-per-node", "1", "--setup", "export OMP_NUM_THREADS=1")
    job, output = begin(slurm, place, *words, "--", "python", "ddp.py", STEPS)
    until_resumed(slurm, output, 1)
    stopped_by_its_time_limit(slurm, job, output)
    (place / "fast").touch()
    slurm.wait(job, "COMPLETED", limit_s=300)
    assert 1 == text(output).count(final())  # srun hands stdout and stderr on in any order
    assert ["stop", "end"] == ends(place, output)


@concurrently
def test_torchrun_on_two_nodes_is_stopped_by_its_time_limit_and_goes_on(slurm, place):
    """Its own 1 for a stop is seen through: told to stop, saved, requeued, the same bits."""
    words = ("--nodes", "2", "--ntasks-per-node", "1", "--setup", "export OMP_NUM_THREADS=1")
    meet = ("--rdzv-backend=c10d", f"--rdzv-endpoint=127.0.0.1:{20000 + os.getpid() % 10000}", "--local-addr=127.0.0.1")
    launcher = ("srun", "--ntasks-per-node=1", "torchrun", "--nnodes=2", *meet, "--nproc-per-node=1")
    job, output = begin(slurm, place, *words, "--", *launcher, "ddp.py", STEPS)
    until_resumed(slurm, output, 1)
    stopped_by_its_time_limit(slurm, job, output)
    (place / "fast").touch()
    slurm.wait(job, "COMPLETED", limit_s=300)
    assert final() in text(output)  # torchrun may have a word after it, about its rendezvous
    assert ["stop", "end"] == ends(place, output)
