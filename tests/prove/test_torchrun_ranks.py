"""Several ranks under the real torchrun: stops, lost ranks, a lost machine; every sample is seen once."""

import json
import os
import re
import signal
import socket
import subprocess
import sys

from test_torchrun_launcher import told

from holdfast import journal, owner
from supervised import until

RESTARTS = 1
LONG_S = 240  # starts of torch, one after the other, on a machine that does much else


RANKS = """
import json, os, random, sys, time
import torch
from torch import distributed, nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler
from holdfast import Every, Last, Run

class Numbered:
    def __len__(self):
        return 240
    def __getitem__(self, index):
        return int(index), torch.randn(4, generator=torch.Generator().manual_seed(int(index)))

torch.set_num_threads(1)
os.fsync = lambda descriptor: None
distributed.init_process_group("gloo")
rank, world = distributed.get_rank(), distributed.get_world_size()
torch.manual_seed(1)
random.seed(rank)
model = nn.Linear(4, 1)
ddp = DistributedDataParallel(model)
optimizer = torch.optim.AdamW(model.parameters(), 0.01)
batch = int(os.environ.get("BATCH", 4))
loader = DataLoader(Numbered(), batch // world, sampler=DistributedSampler(Numbered(), seed=3))
with Run("run", {"model": model, "optimizer": optimizer}, every=Every(steps=5), keep=Last(3)) as run:
    (attempt,) = filter(str.isdecimal, os.listdir("run/attempts"))
    with open(f"seen-{attempt}-{rank}", "w") as seen:
        for epoch in run.epochs(1):
            for numbers, x in run.batches(loader):
                loss = (ddp(x) - x.sum(1, keepdim=True)).square().mean()
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                print(json.dumps([run.step, numbers.tolist()]), file=seen, flush=True)
                print(f"rank {rank} of {world} pid {os.getpid()} step {run.step}\\n", end="", flush=True)
                time.sleep(float(os.environ.get("STEP_S", 0.1)))
distributed.destroy_process_group()
"""


def several(place, *options, **environment):
    """torchrun with that script, its words in a file; in a session of its own."""
    (place / "train.py").write_text(RANKS)
    words = [sys.executable, "-m", "torch.distributed.run", *options, "train.py"]
    given = {**os.environ, "OMP_NUM_THREADS": "1", "HOLDFAST_RANKS_TIMEOUT_S": "20", **environment}
    given["TORCH_DISABLE_SHARE_RDZV_TCP_STORE"] = (
        "1"  # or gloo looks for its peers where they were before (docs/torchrun.md)
    )
    with open(place / "out.txt", "ab") as out:
        return subprocess.Popen(words, cwd=place, env=given, stdout=out, stderr=out)


def said(place):
    return (place / "out.txt").read_text()


def pid_of(place, rank, world):
    """Of the newest process that has that rank."""
    return int(re.findall(rf"rank {rank} of {world} pid (\d+)", said(place))[-1])


def until_steps(place, count, world):
    until(lambda: said(place).count(f"rank 0 of {world} ") >= count, "the steps", LONG_S)


def resumed(place):
    """At which step, the last time."""
    return int(re.findall(r"resumes at step (\d+)", said(place))[-1])


def samples(place):
    """What was done, by step, of the last attempt that did that step: what went before was undone."""
    done = {}
    for attempt in range(1, 1 + max(log.attempt for log in journal.logs(place / "run"))):
        texts = [path.read_text() for path in sorted(place.glob(f"seen-{attempt}-*"))]
        steps = [json.loads(line) for text in texts for line in text.splitlines()]
        first = min((step for step, _ in steps), default=10**9)
        done = {step: numbers for step, numbers in done.items() if step < first}
        for step, numbers in steps:
            done.setdefault(step, []).extend(numbers)
    return done


def test_a_signal_to_one_rank_stops_all_and_no_restart_goes_on(tmp_path):
    """They leave at the same step; what torchrun starts again leaves at once; the next launch goes on to the end."""
    launched = several(tmp_path, "--standalone", "--nproc-per-node=2", f"--max-restarts={RESTARTS}")
    until_steps(tmp_path, 4, 2)
    os.kill(pid_of(tmp_path, 1, 2), signal.SIGTERM)
    assert 1 == launched.wait(LONG_S)
    assert {"stop"} == {*told(tmp_path / "run")}
    assert RESTARTS == said(tmp_path).count("does not go on here; run me again") == len(told(tmp_path / "run")) - 1
    (stopped,) = {log.last["step"] for log in journal.logs(tmp_path / "run")}
    assert 2 == said(tmp_path).count(f" step {stopped - 1}\n")
    assert 0 == several(tmp_path, "--standalone", "--nproc-per-node=2").wait(LONG_S)
    assert f"resumes at step {stopped}" in said(tmp_path)


def test_a_lost_rank_is_replaced_by_torchrun_and_every_sample_is_seen_once(tmp_path):
    """SIGKILL to one rank; one launch sees it through."""
    launched = several(tmp_path, "--standalone", "--nproc-per-node=2", f"--max-restarts={RESTARTS}")
    until_steps(tmp_path, 12, 2)
    os.kill(pid_of(tmp_path, 1, 2), signal.SIGKILL)
    assert 0 == launched.wait(LONG_S)
    assert "end" == told(tmp_path / "run")[-1]
    assert resumed(tmp_path) >= 10
    assert [*range(240)] == sorted(number for numbers in samples(tmp_path).values() for number in numbers)


def test_an_elastic_launch_goes_on_with_fewer_ranks_after_it_lost_a_machine(tmp_path):
    """One of four agents is gone with its worker: the others go on as three, and every sample of the epoch is seen
    once.
    """
    port = 20000 + os.getpid() % 12000  # below those that the system hands out
    elastic = [
        "--nnodes=1:4",
        "--nproc-per-node=1",
        f"--max-restarts={RESTARTS}",
        "--rdzv-backend=c10d",
        "--rdzv-id=elastic",
    ]
    elastic += (f"--rdzv-endpoint=127.0.0.1:{port}", "--rdzv-conf=last_call_timeout=10", "--local-addr=127.0.0.1")
    agents = [several(tmp_path, *elastic, BATCH="12", STEP_S="0.3")]
    until(lambda: listens(port), "the rendezvous", LONG_S)
    agents += [several(tmp_path, *elastic, BATCH="12", STEP_S="0.3") for _ in range(3)]
    until_steps(tmp_path, 12, 4)
    goes = agents.pop()
    (lost,) = (pid for rank in range(4) if owner.parent_pid(pid := pid_of(tmp_path, rank, 4)) == goes.pid)
    os.kill(goes.pid, signal.SIGKILL)
    os.kill(lost, signal.SIGKILL)
    goes.wait()
    assert [0] * 3 == [agent.wait(LONG_S) for agent in agents]
    assert "rank 2 of 3" in said(tmp_path)
    assert resumed(tmp_path) >= 10
    assert "end" == told(tmp_path / "run")[-1]
    assert [*range(240)] == sorted(number for numbers in samples(tmp_path).values() for number in numbers)


def listens(port):
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0
