"""A loop with accelerate and without a Trainer: `accelerate_loop.py VARIANT...`; "bare" is the same without Holdfast.

Samples are noisy when they are fetched, and the model has dropout, so that each random number counts. 42 samples in
batches of 4 make groups of 3, 3, 3 and 2 batches, the last batch with two samples.
"""

import contextlib
import hashlib
import json
import os
import random
import sys
from pathlib import Path

import torch
from accelerate import Accelerator
from accelerate.utils import DataLoaderConfiguration, GradientAccumulationPlugin, set_seed
from torch import nn
from torch.utils.data import DataLoader, Dataset, IterableDataset

import struck
from holdfast import Every, Last, Run, Seeded

VARIANTS = set(sys.argv[1:])
SAMPLES, BATCH, EPOCHS, GROUP = 42, 4, 3, 3


class Noisy(Dataset):
    def __len__(self):
        return SAMPLES

    def __getitem__(self, index):
        return torch.full((6,), index / 20) + 0.1 * torch.randn(6) + random.random() / 50, index


class Stream(IterableDataset):
    def __len__(self):
        return SAMPLES

    def __iter__(self):
        yield from map(Noisy().__getitem__, range(SAMPLES))


class Counter:
    """Registered with `register_for_checkpointing`."""

    def __init__(self):
        self.batches = 0

    def state_dict(self):
        return {"batches": self.batches}

    def load_state_dict(self, state):
        self.batches = state["batches"]


class Bare:
    """Stands in for a run: the script without Holdfast."""

    epochs = staticmethod(range)
    enumerate = staticmethod(enumerate)

    def log(self, **values):
        pass

    def metrics(self):
        return []


def make():
    set_seed(7)
    plugin = GradientAccumulationPlugin(num_steps=GROUP, sync_with_dataloader="across" not in VARIANTS)
    config = DataLoaderConfiguration(
        use_seedable_sampler="seedable" in VARIANTS,
        split_batches="split" in VARIANTS,
        dispatch_batches=True if "dispatch" in VARIANTS else None,
    )
    kinds = ["torch", "generator"] if "synchronized" in VARIANTS else None
    accelerator = Accelerator(
        cpu=True,
        gradient_accumulation_plugin=None if "manual" in VARIANTS else plugin,
        dataloader_config=config,
        rng_types=kinds,
    )
    model = nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Dropout(0.2), nn.Linear(16, 3))
    model = model.bfloat16() if "bf16" in VARIANTS else model
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1 / (1 + step / 10))
    workers = {"num_workers": 2} if "workers" in VARIANTS else {}
    dataset = Stream() if "stream" in VARIANTS else Seeded(Noisy(), seed=0) if workers else Noisy()
    shuffle = "stream" not in VARIANTS and "ordered" not in VARIANTS
    dispatched = "stream" in VARIANTS and "WORLD_SIZE" in os.environ  # from process 0: refused without drop_last
    loader = DataLoader(dataset, BATCH, shuffle=shuffle, drop_last=dispatched, **workers)
    validation = DataLoader(Noisy(), 8, shuffle=True)
    counter = Counter()
    accelerator.register_for_checkpointing(counter)
    return accelerator, counter, accelerator.prepare(model, optimizer, scheduler, loader, validation)


def main():
    accelerator, counter, (model, optimizer, scheduler, loader, validation) = make()
    seen = []
    own = accelerator.process_index == int(os.environ.get("STRIKE_RANK", "0"))

    def walk(run):
        for epoch in run.epochs(EPOCHS):
            model.train()
            for number, (x, index) in run.enumerate(loader):
                if own:
                    struck.event("batch")
                group = contextlib.nullcontext() if "manual" in VARIANTS else accelerator.accumulate(model)
                with group:
                    dtype = next(model.parameters()).dtype
                    loss = nn.functional.cross_entropy(model(x.to(dtype)).float(), index % 3)
                    accelerator.backward(loss)
                    if "manual" not in VARIANTS or (counter.batches + 1) % GROUP == 0:
                        if accelerator.sync_gradients:
                            accelerator.clip_grad_norm_(model.parameters(), 1.0)
                        optimizer.step()
                        scheduler.step()
                        optimizer.zero_grad()
                counter.batches += 1
                state = accelerator.gradient_state
                facts = [state.sync_gradients, state.end_of_dataloader, state.remainder, accelerator.step]
                seen.append([epoch, index.tolist(), *facts, loss.item(), scheduler.get_last_lr()[0]])
                run.log(loss=loss.item())
                if "break" in VARIANTS and number == 7 + epoch:
                    break
            if own:
                struck.event("validation")
            model.eval()
            right = []
            for x, index in validation:
                with torch.no_grad():
                    answer = model(x.to(next(model.parameters()).dtype)).argmax(1)
                right += accelerator.gather_for_metrics((answer == index % 3).float()).tolist()
            counts = [loader.iteration, loader.end_of_dataloader, validation.iteration]
            seen.append([epoch, counts, accelerator.gradient_state.in_dataloader, sum(right)])
            run.log(accuracy=sum(right) / len(right))

    if "bare" in VARIANTS:
        metrics = walk(Bare())
    else:
        with Run("run", {"accelerator": accelerator, "seen": seen}, keep=Last(2), every=Every(steps=1)) as run:
            walk(run)
        metrics = run.metrics()
    digest = hashlib.sha256()
    for part in (*model.state_dict().values(), *optimizer.state_dict()["state"].values()):
        for tensor in part.values() if isinstance(part, dict) else (part,):
            digest.update(str(tensor.dtype).encode() + tensor.detach().double().numpy().tobytes())
    plain = [[line["step"], line["epoch"], line["values"]] for line in metrics or []]
    facts = {"weights": digest.hexdigest(), "seen": seen, "rate": scheduler.state_dict()["last_epoch"]}
    result = {**facts, "batches": counter.batches, "random": torch.rand(()).item(), "metrics": plain}
    name = "result.json" if accelerator.is_main_process else f"result-{accelerator.process_index}.json"
    Path(name).write_text(json.dumps(result, indent=1))


main()
