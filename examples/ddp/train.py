"""Train on scikit-learn's digits with DistributedDataParallel; kill it whenever you like, and start it again.

    torchrun --nproc-per-node 2 examples/ddp/train.py
    holdfast drill -- torchrun --nproc-per-node 4 examples/ddp/train.py      # proves that it resumes bit for bit

Everything here is plain PyTorch, but for the lines marked with (*). With as many processes as before it goes on bit for
bit; with more or fewer, with the same samples in the same batches.
"""

import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits
from torch import distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

from holdfast import Best, Every, Last, Run

EPOCHS, BATCH, TRAIN = 4, 96, 1440  # samples that all processes take together in a step; and for training


class Network(nn.Module):
    """Its parts are declared in another order than they are used in: DDP puts its buckets together anew."""

    def __init__(self):
        super().__init__()
        self.head = nn.Linear(128, 10)
        self.deep = nn.Sequential(nn.Linear(128, 128), nn.BatchNorm1d(128), nn.ReLU(), nn.Dropout(0.2))
        self.start = nn.Sequential(nn.Linear(64, 128), nn.BatchNorm1d(128), nn.ReLU())

    def forward(self, x):
        return self.head(self.deep(self.start(x)))


@torch.no_grad()
def accuracy(model, images, labels):
    model.eval()
    return (model(images).argmax(1) == labels).float().mean().item()


def main():
    dist.init_process_group("gloo")
    torch.set_num_threads(1)
    torch.manual_seed(0)
    images, labels = (torch.tensor(part) for part in load_digits(return_X_y=True))
    images = images.float() / 16
    data = TensorDataset(images[:TRAIN], labels[:TRAIN])
    loader = DataLoader(data, BATCH // dist.get_world_size(), sampler=DistributedSampler(data))

    model = DistributedDataParallel(Network(), bucket_cap_mb=0.02)  # several buckets, although it is so small
    torch.manual_seed(dist.get_rank())  # each process drops out others
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, EPOCHS * len(loader))

    state = {"model": model, "optimizer": optimizer, "scheduler": scheduler}  # (*)
    with Run("runs/ddp", state, keep=Last(3) | Best("val_acc", max), every=Every(steps=10)) as run:  # (*)
        for epoch in run.epochs(EPOCHS):  # (*)
            model.train()
            for x, y in run.batches(loader):  # (*)
                loss = F.cross_entropy(model(x), y)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                scheduler.step()
                run.log(loss=loss.item())  # (*)
            val_acc = accuracy(model.module, images[TRAIN:], labels[TRAIN:])
            run.log(val_acc=val_acc)  # that of rank 0: batch norm's running means are each process's own
            if dist.get_rank() == 0:
                print(f"epoch {epoch + 1}: accuracy {val_acc:.4f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
