"""Train a small language model on two weighted sources of text, packed to sequences; kill it whenever you like.

    torchrun --nproc-per-node 2 examples/streams/train.py
    holdfast drill -- torchrun --nproc-per-node 2 examples/streams/train.py   # proves that it resumes bit for bit

A step takes 12 sequences, however many processes share them. Start it again with 1 or 3 processes, and it goes on with
the same sequences. The losses are those of one run but for the rounding of sums, about 1e-15.

Everything here is plain PyTorch, but for the lines marked with (*).
"""

from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from torch import distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader

from holdfast import Every, Last, Run
from holdfast.data import Lines, Mix, Pack, Stream, Window

ROOT = Path(__file__).parents[2]
TEXTS = {"prose": ROOT / "docs/s*.md", "code": ROOT / "examples/*/*.py"}
LENGTH, STEP, STEPS = 48, 12, 40


def tokens(line):
    return np.frombuffer(line.encode(), np.uint8).astype(np.int64)


class Model(nn.Module):
    def __init__(self, width=64):
        super().__init__()
        self.embed = nn.Embedding(256, width)
        self.recall = nn.GRU(width, width, batch_first=True)
        self.head = nn.Linear(width, 256)

    def forward(self, x):
        return self.head(self.recall(self.embed(x))[0])


def main():
    dist.init_process_group("gloo")
    torch.set_num_threads(1)
    torch.set_default_dtype(torch.float64)  # so that the rounding of sums hardly shows
    torch.manual_seed(0)
    packed = {name: Pack(Lines(files), LENGTH + 1, end=10, tokenize=tokens) for name, files in TEXTS.items()}  # (*)
    mix = Mix(packed, weights={"prose": 0.7, "code": 0.3}, until=STEP * STEPS)  # (*)
    stream = Stream(mix, global_batch_size=STEP, shuffle=Window(shards=4, samples=500))  # (*)
    loader = DataLoader(stream, batch_size=None, num_workers=1)

    model = DistributedDataParallel(Model())
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)

    with Run(
        "runs/streams", {"model": model, "optimizer": optimizer}, keep=Last(2), every=Every(steps=10)
    ) as run:  # (*)
        for batch in run.batches(loader):  # (*)
            logits = model(batch[:, :-1])
            loss = F.cross_entropy(logits.flatten(0, 1), batch[:, 1:].flatten())
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            dist.all_reduce(loss.detach(), dist.ReduceOp.SUM)
            run.log(loss=loss.item() / dist.get_world_size())  # (*)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
