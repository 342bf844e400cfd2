"""Train a small network with Hugging Face accelerate; kill it whenever you like, and run it again.

    python examples/accelerate/train.py
    holdfast drill -- python examples/accelerate/train.py      # proves that it resumes bit for bit

Everything here is plain accelerate, but for the lines marked with (*).
"""

import torch
import torch.nn.functional as F
from accelerate import Accelerator
from accelerate.utils import set_seed
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from holdfast import Best, Every, Last, Run

EPOCHS, BATCH, TRAIN = 6, 32, 1437


def main():
    set_seed(0)
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=4)  # 45 batches: the last group has one
    digits = load_digits()
    images, labels = torch.tensor(digits.images, dtype=torch.float32).flatten(1) / 16, torch.tensor(digits.target)
    loader = DataLoader(TensorDataset(images[:TRAIN], labels[:TRAIN]), BATCH, shuffle=True)
    held_out = DataLoader(TensorDataset(images[TRAIN:], labels[TRAIN:]), 2 * BATCH)

    model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Dropout(0.2), nn.Linear(64, 10))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, EPOCHS * 12)
    model, optimizer, scheduler, loader, held_out = accelerator.prepare(model, optimizer, scheduler, loader, held_out)

    # (*) The accelerator brings along all that it has prepared.
    state = {"accelerator": accelerator}
    with Run("runs/accelerate", state, keep=Last(3) | Best("val_acc", max), every=Every(steps=10)) as run:
        for epoch in run.epochs(EPOCHS):  # (*)
            model.train()
            for x, y in run.batches(loader):  # (*) safe points lie where a group of batches ends
                with accelerator.accumulate(model):
                    loss = F.cross_entropy(model(x), y)
                    accelerator.backward(loss)
                    optimizer.step()
                    scheduler.step()
                    optimizer.zero_grad()
                run.log(loss=loss.item())  # (*)
            model.eval()
            right = []
            for x, y in held_out:
                with torch.no_grad():
                    right.append(accelerator.gather_for_metrics((model(x).argmax(1) == y).float()))
            val_acc = torch.cat(right).mean().item()
            run.log(val_acc=val_acc)
            accelerator.print(f"epoch {epoch + 1}: accuracy {val_acc:.4f}", flush=True)


if __name__ == "__main__":
    main()
