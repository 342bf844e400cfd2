"""Train a small network on scikit-learn's handwritten digits; kill it whenever you like, and run it again.

    python examples/digits/train.py
    holdfast drill -- python examples/digits/train.py      # proves that it resumes bit for bit

Everything here is plain PyTorch, but for the lines marked with (*).
"""

import random

import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits
from torch import nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn
from torch.utils.data import DataLoader, Dataset

from holdfast import Best, Every, Last, Run, Seeded

EPOCHS, BATCH, TRAIN = 12, 48, 1437


class Digits(Dataset):
    """8 x 8 images, moved about and made noisy at random."""

    def __init__(self, images, labels):
        self.images, self.labels = images, labels

    def __len__(self):
        return len(self.labels)

    def __getitem__(self, index):
        shift = (random.randint(-1, 1), random.randint(-1, 1))
        image = torch.roll(self.images[index], shift, dims=(1, 2))
        return image + 0.1 * torch.randn_like(image), self.labels[index]


def network():
    return nn.Sequential(
        *(nn.Conv2d(1, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU()),
        *(nn.Conv2d(16, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Flatten(), nn.Dropout(0.3), nn.Linear(32 * 4 * 4, 10)),
    )


@torch.no_grad()
def accuracy(model, images, labels):
    model.eval()
    return (model(images).argmax(1) == labels).float().mean().item()


def main():
    torch.manual_seed(0)
    torch.set_num_threads(1)  # as many as you like, but always as many
    digits = load_digits()
    images = torch.tensor(digits.images, dtype=torch.float32).unsqueeze(1) / 16
    labels = torch.tensor(digits.target)

    # (*) What Digits draws at random now depends on seed, epoch and image only, whichever worker loads it.
    dataset = Seeded(Digits(images[:TRAIN], labels[:TRAIN]), seed=0)
    loader = DataLoader(dataset, BATCH, shuffle=True, num_workers=2, persistent_workers=True)

    model = network()
    ema = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.97), use_buffers=True)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, EPOCHS * len(loader))

    # (*) All that changes while training, which checkpoints to keep, and how often to save.
    state = {"model": model, "ema": ema, "optimizer": optimizer, "scheduler": scheduler}
    with Run("runs/digits", state, keep=Last(3) | Best("val_acc", max), every=Every(steps=20)) as run:
        for epoch in run.epochs(EPOCHS):  # (*)
            model.train()
            for x, y in run.batches(loader):  # (*)
                loss = F.cross_entropy(model(x), y)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                scheduler.step()
                ema.update_parameters(model)
                run.log(loss=loss.item())  # (*)
            val_acc = accuracy(ema, images[TRAIN:], labels[TRAIN:])
            run.log(val_acc=val_acc)
            print(f"epoch {epoch + 1}: accuracy {val_acc:.4f}", flush=True)


if __name__ == "__main__":
    main()
