"""Train a ResNet on CIFAR-10 in a job that is preempted, runs out of time, loses its node, and goes on: sbatch job.sh

Everything here is plain PyTorch, but for the lines marked with (*).
"""

import os
import random
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset, random_split

from holdfast import Best, Every, Last, Run, cluster

EPOCHS, BATCH, WIDTH = 5, 128, 32


def cifar10(folder, *names):
    """Images and labels from the binary version: records of one byte for the label and 3 x 32 x 32 for the image."""
    data = bytearray(b"".join((folder / f"{name}.bin").read_bytes() for name in names))
    records = torch.frombuffer(data, dtype=torch.uint8).view(-1, 1 + 3 * 32 * 32)
    return TensorDataset(records[:, 1:].view(-1, 3, 32, 32), records[:, 0].long())


class Residual(nn.Module):
    def __init__(self, channels, out, stride):
        super().__init__()
        first = nn.Sequential(nn.Conv2d(channels, out, 3, stride, 1, bias=False), nn.BatchNorm2d(out), nn.ReLU())
        self.path = nn.Sequential(*first, nn.Conv2d(out, out, 3, 1, 1, bias=False), nn.BatchNorm2d(out))
        self.skip = nn.Conv2d(channels, out, 1, stride)

    def forward(self, x):
        return F.relu(self.path(x) + self.skip(x))


def network():
    blocks = [Residual(3, WIDTH, 1), Residual(WIDTH, 2 * WIDTH, 2), Residual(2 * WIDTH, 4 * WIDTH, 2)]
    return nn.Sequential(*blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Dropout(0.2), nn.Linear(4 * WIDTH, 10))


@torch.no_grad()
def evaluate(model, loader, device):
    model.eval()
    correct = [model(x.to(device) / 255).argmax(1).eq(y.to(device)).sum() for x, y in loader]
    return (sum(correct) / len(loader.dataset)).item()


def main():
    for seed in (random.seed, np.random.seed, torch.manual_seed):
        seed(123)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    data = cluster.tmpdir() / "cifar-10-batches-bin"  # (*)
    training = cifar10(data, *(f"data_batch_{number}" for number in range(1, 6)))
    training, validation = random_split(training, (0.9, 0.1), torch.Generator().manual_seed(42))
    workers = cluster.cpus()  # (*)
    loader = DataLoader(training, BATCH, shuffle=True, num_workers=workers)
    validation_loader = DataLoader(validation, BATCH, num_workers=workers)

    model = network().to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-4, weight_decay=1e-4)
    print(f"start {cluster.restart_count() + 1} of this job, on {device}", flush=True)  # (*)

    # (*) Random numbers, the position in the data and the best model so far are restored with the state.
    path = Path(os.environ["SCRATCH"]) / "checkpointing_example" / os.environ["SLURM_JOB_ID"]
    state = {"model": model, "optimizer": optimizer}
    with Run(path, state, keep=Last(2) | Best("val_acc", max), every=Every(epochs=1)) as run:
        for epoch in run.epochs(EPOCHS):  # (*)
            model.train()
            for x, y in run.batches(loader):  # (*)
                loss = F.cross_entropy(model(x.to(device) / 255), y.to(device))
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                run.log(loss=loss.item())  # (*)
            val_acc = evaluate(model, validation_loader, device)
            run.log(val_acc=val_acc)  # (*)
            print(f"epoch {epoch + 1}: accuracy {val_acc:.2%}", flush=True)
    print("done")


if __name__ == "__main__":
    main()
