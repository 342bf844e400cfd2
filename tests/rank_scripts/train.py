"""A small DDP training on CPU, started by torchrun or forked; each rank notes what it did in a file of its own.

torchrun --nproc-per-node 2 train.py '{"path": "runs/x", "notes": "notes", "steps": 20}'
"""

import json
import os
import random
import signal
import sys
import time
from pathlib import Path

import torch
from torch import distributed, nn
from torch.nn.parallel import DistributedDataParallel

from holdfast import Every, Last, Run, Stopped, disk
from holdfast.run.saver import Saver
from holdfast.store import attempt

DEFAULTS = {
    "attempt": 1,
    "steps": 20,
    "every": {"steps": 5},
    "background": True,
    "async": False,  # gradients are not summed: nothing but Holdfast keeps the ranks together
    "step_s": 0.0,
    "lags": {},  # "rank:step" -> by how many steps the other is to be ahead before this one goes on
    "signals": {},  # "rank:step" -> name
    "kills": [],  # of each start by one torchrun: "rank" -> where: "step:7", "save", "commit", "restore"
    "join_s": attempt.JOIN_S,
    "mirror": None,
}


def kill(where, mine):
    if mine == where:
        os.kill(os.getpid(), signal.SIGKILL)


class Noisy(nn.Module):
    """Parameters declared out of the order in which they are used, and numbers drawn on the way."""

    def __init__(self, width):
        super().__init__()
        self.last = nn.Linear(width, 1)
        self.norm = nn.BatchNorm1d(width)
        self.middle = nn.Linear(width, width)  # large enough to be copied beside the loop
        self.first = nn.Linear(4, width)

    def forward(self, x):
        x = self.middle(nn.functional.dropout(self.norm(self.first(x)).relu(), 0.2, self.training))
        return self.last(x)


def train(rank, asked):
    asked = DEFAULTS | asked
    torch.set_num_threads(1)
    attempt.JOIN_S = asked["join_s"]
    os.fsync = lambda fd: None  # a process that dies takes nothing out of the page cache with it
    start = int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0"))
    mine = asked["kills"][start].get(str(rank), "") if start < len(asked["kills"]) else ""
    notes = Path(asked["notes"]) / f"{asked['attempt'] + start}-{rank}.jsonl"
    notes.parent.mkdir(exist_ok=True)

    def note(**facts):
        with notes.open("a") as file:
            file.write(json.dumps(facts) + "\n")

    prepare(mine, note)
    torch.manual_seed(1)
    model = Noisy(100)
    torch.manual_seed(100 + rank)
    random.seed(100 + rank)
    together = model if asked["async"] else DistributedDataParallel(model, bucket_cap_mb=0.0001)
    optimizer = torch.optim.AdamW(model.parameters(), 0.01)
    state = {"model": model, "optimizer": optimizer}
    options = {"every": Every(**asked["every"]), "keep": Last(1000), "background": asked["background"]}
    options["mirror"] = asked["mirror"]
    try:
        with Run(asked["path"], state, **options) as run:
            note(resumed=run.step)
            for step in run.steps(asked["steps"]):
                x = torch.randn(6, 4) + random.random()
                loss = (together(x) - x.sum(1, keepdim=True)).square().mean()
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                run.log(loss=loss.item())
                kill(f"step:{step}", mine)
                here = f"{rank}:{step}"
                time.sleep(asked["step_s"])
                note(step=step, at=time.time())
                if here in asked["lags"]:
                    wait_for(
                        notes.with_name(notes.name.replace(f"-{rank}.", f"-{1 - rank}.")), step + asked["lags"][here]
                    )
                if here in asked["signals"]:
                    os.kill(os.getpid(), getattr(signal, "SIG" + asked["signals"][here]))
        digest = sum(value.double().sum().item() for value in model.state_dict().values())
        note(finished=run.step, digest=digest.hex(), luck=[random.random().hex(), torch.rand(()).item().hex()])
    except BaseException as error:
        note(error=type(error).__name__, text=str(error))
        if isinstance(error, Stopped):
            if "TORCHELASTIC_RUN_ID" in os.environ:
                time.sleep(0.5 if rank else 2)  # the launcher sees that the other one has left
            note(cleaned=True)
        raise


def wait_for(notes, step):
    """Return when the other rank has come to that step."""
    until = time.monotonic() + 30
    while f'"step": {step},' not in notes.read_text() and time.monotonic() < until:
        time.sleep(0.01)


def prepare(mine, note):
    """Notes each save's step, and kills at places that are inside of Holdfast."""
    save = Saver.save

    def noted(self, reason, *rest, **options):
        note(saves=self._progress.position.step, why=reason)
        return save(self, reason, *rest, **options)

    Saver.save = noted
    rename, write = disk.rename_new, disk.write

    def renamed(source, target):
        kill("commit", mine if Path(target).parent.name == "checkpoints" else "")
        rename(source, target)

    disk.rename_new = renamed
    if mine == "save":

        def written(path, *rest):
            kill("save", mine if Path(path).name.startswith("rank-") else "")
            write(path, *rest)

        disk.write = written
    if mine == "restore":
        from holdfast.torch import live

        live.restore = lambda *given: kill("restore", mine)


if __name__ == "__main__":
    distributed.init_process_group("gloo")
    train(distributed.get_rank(), json.loads(sys.argv[1]))
