"""Train on scikit-learn's digits with Ray Train, on two workers; kill one of them, or all, whenever you like.

    python examples/ray/train.py

Ray starts both workers again when one is lost, and they go on bit for bit. When all are lost, start it again.
Everything here is plain Ray and PyTorch, but for the lines marked with (*).
"""

from pathlib import Path

import torch
import torch.nn.functional as F
from ray.train import FailureConfig, RunConfig, ScalingConfig
from ray.train.torch import TorchConfig, TorchTrainer, prepare_model
from sklearn.datasets import load_digits
from torch import distributed as dist
from torch import nn
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

from holdfast import Every, Last, Run

EPOCHS, BATCH = 8, 96


def train(config):
    torch.set_num_threads(1)
    torch.manual_seed(0)
    images, labels = (torch.tensor(part) for part in load_digits(return_X_y=True))
    data = TensorDataset(images.float() / 16, labels)
    loader = DataLoader(data, BATCH // dist.get_world_size(), sampler=DistributedSampler(data))

    network = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Dropout(0.2), nn.Linear(128, 10))
    model = prepare_model(network)
    torch.manual_seed(dist.get_rank())  # each worker drops out others
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)

    state = {"model": model, "optimizer": optimizer}  # (*)
    with Run(config["run"], state, keep=Last(3), every=Every(steps=5)) as run:  # (*) a path that all workers see
        for epoch in run.epochs(EPOCHS):  # (*)
            for x, y in run.batches(loader):  # (*)
                loss = F.cross_entropy(model(x), y)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                run.log(loss=loss.item())  # (*)
            if dist.get_rank() == 0:
                print(f"epoch {epoch + 1}: loss {loss.item():.4f}", flush=True)


def main():
    trainer = TorchTrainer(
        train,
        train_loop_config={"run": str(Path("runs/ray").resolve())},  # (*) workers have a directory of their own
        torch_config=TorchConfig(backend="gloo"),
        scaling_config=ScalingConfig(num_workers=2),
        run_config=RunConfig(
            name="digits",
            storage_path=str(Path("runs/ray-train").resolve()),
            failure_config=FailureConfig(max_failures=3),
        ),
    )
    trainer.fit()


if __name__ == "__main__":
    main()
