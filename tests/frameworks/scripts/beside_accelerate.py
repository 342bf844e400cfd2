"""beside_accelerate.py none|own|holdfast: dropout and noise; save_state with skip_first_batches, or ours.

The mechanism is that of accelerate's complete_nlp_example.py with --checkpointing_steps 3. The order of each epoch's
data is made from the seed alone (use_seedable_sampler).
"""

import json
import sys
from pathlib import Path
from typing import Any

import torch
from accelerate import Accelerator
from accelerate.utils import DataLoaderConfiguration, set_seed
from torch import nn

import struck

mode = sys.argv[1]
EPOCHS, SAVE_EVERY = 3, 3
set_seed(7)


class Noisy(torch.utils.data.Dataset):
    rows = torch.randn(84, 6)

    def __len__(self):
        return 84

    def __getitem__(self, place):
        return self.rows[place] + 0.1 * torch.randn(6), place % 3


accelerator = Accelerator(cpu=True, dataloader_config=DataLoaderConfiguration(use_seedable_sampler=True))
net = nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Dropout(0.2), nn.Linear(16, 3))
optimizer = torch.optim.AdamW(net.parameters(), lr=0.01)
scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1 / (1 + step / 10))
loader: Any = torch.utils.data.DataLoader(Noisy(), 12, shuffle=True)
model, optimizer, scheduler, loader = accelerator.prepare(net, optimizer, scheduler, loader)
log = Path("log")


def step(batch):
    values, target = batch
    loss = nn.functional.cross_entropy(model(values), target)
    accelerator.backward(loss)
    optimizer.step()
    scheduler.step()
    optimizer.zero_grad()
    with Path("batches").open("a") as trained:
        print(loss.item(), file=trained)
    struck.event("batch")
    return loss.item()


def report(epoch, total):
    with log.open("a") as lines:
        print(epoch, total / len(loader), file=lines)


def by_themselves():
    saved = sorted(Path().glob("step_*"), key=lambda place: int(place.name[5:])) if mode == "own" else []
    overall = 0
    if saved:
        accelerator.load_state(str(saved[-1]))
        overall = int(saved[-1].name[5:])
    begin, inside = divmod(overall, len(loader))
    for epoch in range(begin, EPOCHS):
        loader.set_epoch(epoch)
        total = 0.0
        goes_on = epoch == begin and inside
        for batch in accelerator.skip_first_batches(loader, inside) if goes_on else loader:
            total += step(batch)
            overall += 1
            if mode == "own" and overall % SAVE_EVERY == 0:
                accelerator.save_state(f"step_{overall}")
        report(epoch, total)


def with_holdfast():
    from holdfast import Every, Run

    with Run(
        "run", {"accelerator": accelerator}, vars={"total": 0.0}, every=Every(steps=SAVE_EVERY), background=False
    ) as run:
        for epoch in run.epochs(EPOCHS):
            for batch in run.batches(loader):
                run.vars.total += step(batch)
            report(epoch, run.vars.total)
            run.vars.total = 0.0


with_holdfast() if mode == "holdfast" else by_themselves()
weights = {name: value.numpy() for name, value in net.state_dict().items()}
Path("result.json").write_text(json.dumps({"weights": struck.digest(weights), "log": log.read_text()}))
