"""A training script written for cycling_utils. Its import line is changed (*), and nothing else.

    torchrun --standalone --nproc-per-node 2 examples/cycling_utils/train.py --output-directory out
    python examples/cycling_utils/train.py --output-directory out

Kill it at any instant and run it again: it goes on in the midst of the epoch. Here it runs on the CPU, on any number of
processes; what it does by hand, `holdfast.Run` does in five lines: docs/migration-cycling-utils.md.
"""

import argparse
import os

import torch
import torch.distributed as dist
import torch.nn.functional as F
from sklearn.datasets import load_digits
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset

from holdfast.compat.cycling_utils import (  # (*)
    AtomicDirectory,
    InterruptableDistributedSampler,
    MetricsTracker,
    TimestampedTimer,
    atomic_torch_save,
)


def arguments():
    parser = argparse.ArgumentParser()
    parser.add_argument("--output-directory", default="out")
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--save-every", type=int, default=5)
    return parser.parse_args()


def main():
    args = arguments()
    timer = TimestampedTimer("Start")
    if "RANK" in os.environ:
        dist.init_process_group("gloo")
    is_master = int(os.environ.get("RANK", "0")) == 0

    torch.manual_seed(0)
    digits = load_digits()
    images = torch.tensor(digits.images, dtype=torch.float32).flatten(1) / 16
    dataset = TensorDataset(images, torch.tensor(digits.target))
    sampler = InterruptableDistributedSampler(dataset)
    loader = DataLoader(dataset, batch_size=args.batch_size, sampler=sampler)

    model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))
    if dist.is_initialized():
        model = DistributedDataParallel(model)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    metrics = MetricsTracker()
    saver = AtomicDirectory(args.output_directory, is_master=is_master, keep_last=2)

    latest = os.path.join(args.output_directory, saver.symlink_name)
    if os.path.islink(latest):
        checkpoint = torch.load(os.path.join(os.readlink(latest), "checkpoint.pt"))
        model.load_state_dict(checkpoint["model"])
        optimizer.load_state_dict(checkpoint["optimizer"])
        sampler.load_state_dict(checkpoint["sampler"])
        metrics.load_state_dict(checkpoint["metrics"])
        timer.report(f"Resumed in epoch {sampler.epoch} at {sampler.progress}")

    for epoch in range(sampler.epoch, args.epochs):
        with sampler.in_epoch(epoch):
            for x, y in loader:
                optimizer.zero_grad()
                predictions = model(x)
                loss = F.cross_entropy(predictions, y)
                loss.backward()
                optimizer.step()

                correct = (predictions.argmax(1) == y).sum().item()
                metrics.update({"seen": len(y), "loss": loss.item() * len(y), "correct": correct})
                metrics.reduce().reset_local()
                sampler.advance(len(y))
                step = sampler.progress // args.batch_size
                is_last = sampler.progress >= len(sampler)
                if is_last:
                    metrics.end_epoch()

                if step % args.save_every == 0 or is_last:
                    directory = saver.prepare_checkpoint_directory(force_save=is_last)
                    if is_master:
                        atomic_torch_save(
                            {
                                "model": model.state_dict(),
                                "optimizer": optimizer.state_dict(),
                                "sampler": sampler.state_dict(),
                                "metrics": metrics.state_dict(),
                            },
                            os.path.join(directory, "checkpoint.pt"),
                        )
                    saver.symlink_latest(directory)
                    timer.report(f"Saved epoch {epoch} at {sampler.progress}")

    if is_master:
        final = {"model": model.state_dict(), "epoch_reports": metrics.epoch_reports}
        atomic_torch_save(final, os.path.join(args.output_directory, "final.pt"))
        timer.report(f"Accuracy {metrics.epoch_reports[-1]['correct'] / metrics.epoch_reports[-1]['seen']:.3f}")
    if dist.is_initialized():
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
