"""Trains, saves and resumes by itself; the first argument names what its resume leaves out, or how it works."""

import json
import os
import random
import sys
import time

import numpy as np
import torch
from torch import nn
from torch.optim.lr_scheduler import LambdaLR
from torch.utils.data import DataLoader, Dataset, TensorDataset

FAULT, RESUMED = sys.argv[1], sys.argv[2] if len(sys.argv) > 2 else None
if RESUMED == "newest":
    RESUMED = max(("out/" + name for name in os.listdir("out")), key=lambda path: os.stat(path).st_mtime_ns)
EPOCHS, SIZE, EVERY = 3, 8, 7 if FAULT == "one ahead" else 3
BY_EPOCHS = FAULT in ("by epochs", "reseeded")
torch.manual_seed(0)
np.random.seed(0)
random.seed(0)


class Noisy(Dataset):
    """Samples with noise of NumPy, and now and then mirrored by Python's generator."""

    def __init__(self, x, y):
        self.x, self.y = x, y

    def __len__(self):
        return len(self.x)

    def __getitem__(self, index):
        noise = (
            np.random.standard_normal(self.x.shape[1]).astype("float32")
            if FAULT in ("numpy", "noise", "drawn first")
            else 0
        )
        sign = -1 if FAULT in ("python", "noise") and random.random() < 0.5 else 1
        return sign * self.x[index] + noise, self.y[index]


class Order:
    """A sampler whose order is a function of the epoch."""

    def __init__(self):
        self.epoch, self.begin = 0, 0

    def __len__(self):
        return 64 - self.begin

    def __iter__(self):
        order = torch.randperm(64, generator=torch.Generator().manual_seed(self.epoch)).tolist()
        return iter(order[self.begin :])


model = nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Dropout(0.2), nn.Linear(16, 1))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
scheduler = LambdaLR(optimizer, lambda step: 1 / (1 + step / 4))
dataset = Noisy(torch.randn(64, 8), torch.randn(64, 1))
if FAULT == "passes over":
    dataset = TensorDataset(dataset.x, dataset.y)
average = {name: value.detach().clone() for name, value in model.named_parameters()}
order, epoch, done, best, rows, continued = Order(), 0, 0, float("inf"), 0, False
accumulated = 2 if FAULT in ("gradients", "accumulates") else 1


def restore_generators():
    if FAULT not in ("torch", "one file", "no loader"):
        torch.set_rng_state(kept["torch"])
    if FAULT != "numpy":
        np.random.set_state(kept["numpy"])
    if FAULT != "python":
        random.setstate(kept["python"])


def one_ahead(batches):
    batches = iter(batches)
    held = next(batches)
    for following in batches:
        yield held
        held = following
    yield held


if RESUMED:
    if os.path.isdir(RESUMED):
        with open(f"{RESUMED}/state.json") as file:
            epoch = json.load(file)["epoch"]
    kept = torch.load(f"{RESUMED}/model.pt" if os.path.isdir(RESUMED) else RESUMED, weights_only=False)
    weights = kept["model"]
    if FAULT == "buffers":
        weights = {name: value for name, value in weights.items() if "running" not in name}
    if FAULT == "averaged weights":
        weights |= {name: value.half().float() for name, value in kept["average"].items()}
    if FAULT != "started over":
        model.load_state_dict(weights, strict=False)
        epoch, done = kept["epoch"], kept["done"]
    if FAULT not in ("optimizer", "started over"):
        optimizer.load_state_dict(kept["optimizer"])
    if FAULT not in ("scheduler", "started over"):
        scheduler.load_state_dict(kept["scheduler"])
    if FAULT != "average":
        average = kept["average"]
    if FAULT != "best":
        best = kept["best"]
    rows = kept["rows"]
    if FAULT not in ("drawn first", "reseeded"):
        restore_generators()
    if FAULT == "twice":
        done = 0
    if FAULT == "skipped":
        done += 1
    if FAULT == "more steps":
        EPOCHS += 1
    if FAULT == "accumulates":
        for parameter, gradient in zip(model.parameters(), kept["gradients"], strict=True):
            parameter.grad = gradient
    if FAULT not in ("rows", "reseeded"):
        with open("log.jsonl") as file:
            text = file.readlines()
        with open("log.jsonl", "w") as file:
            file.writelines(text[:rows])
os.makedirs("out", exist_ok=True)


def save(name):
    kept = {
        "model": model.state_dict(),
        "optimizer": optimizer.state_dict(),
        "scheduler": scheduler.state_dict(),
        "average": average,
        "epoch": epoch,
        "done": done,
        "best": best,
        "rows": rows,
        "torch": torch.get_rng_state(),
        "numpy": np.random.get_state(),
        "python": random.getstate(),
        "gradients": [each.grad for each in model.parameters()],
    }
    if FAULT == "half a folder":
        os.makedirs(f"out/{name}", exist_ok=True)
        torch.save(kept, f"out/{name}/model.pt")
        time.sleep(0.02)
        with open(f"out/{name}/state.json", "w") as file:
            json.dump({"epoch": epoch}, file)
        return
    if FAULT in ("torn", "stuck", "one file"):
        torch.save(kept, "whole")
        name = "last.pt" if FAULT == "one file" else name
        with open("whole", "rb") as whole, open(f"out/{name}", "wb", buffering=0) as file:
            while data := whole.read(2000):  # piece by piece, as a larger one is written
                file.write(data)
                time.sleep(0.002)
        return
    torch.save(kept, "out/being-written")
    os.replace("out/being-written", f"out/{name}")


while epoch < EPOCHS:
    order.epoch = 0 if FAULT == "order" and RESUMED else epoch
    order.begin = 0 if FAULT in ("passes over", "counter alone") else done * SIZE
    loader = DataLoader(dataset, SIZE, sampler=order, generator=torch.Generator())
    if FAULT == "reseeded":
        loader = DataLoader(dataset, SIZE, shuffle=True)
    if FAULT == "one ahead":
        loader = one_ahead(loader)
    if FAULT == "no loader":
        loader = (dataset[torch.randint(64, (SIZE,))] for _ in range(done, 8))
    for number, (x, y) in enumerate(loader, 0 if FAULT == "passes over" else done):
        if number < done:
            continue
        if number == 8:
            break
        if RESUMED and FAULT == "drawn first" and not continued:
            restore_generators()
        continued = True
        loss = ((model(x) - y) ** 2).mean()
        loss.backward()
        done = number + 1
        if done % accumulated == 0:
            optimizer.step()
            optimizer.zero_grad()
            scheduler.step()
        for name, value in model.named_parameters():
            average[name] = average[name] * 0.9 + value.detach() * 0.1
        best, rows = min(best, loss.item()), rows + 1
        with open("log.jsonl", "a") as file:
            file.write(json.dumps({"epoch": epoch, "batch": done, "loss": loss.item()}) + "\n")
        time.sleep(0.012)
        if not BY_EPOCHS and done % EVERY == 0:
            save(f"{epoch}-{done}.pt")
    epoch, done = epoch + 1, 0
    if BY_EPOCHS:
        save(f"{epoch}.pt")
torch.save({"model": model.state_dict(), "average": average}, "final.pt")
with open("result.json", "w") as file:
    json.dump({"best": best, "took_s": time.time()}, file)
