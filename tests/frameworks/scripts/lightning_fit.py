"""One fit of Lightning's Trainer, as the arguments say: `result.json` has everything that a kill must not change."""

import hashlib
import json
import os
import random
import sys
from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, IterableDataset

if "pytorch_lightning" in sys.argv:
    import pytorch_lightning as pl
    from pytorch_lightning import callbacks, loggers
    from pytorch_lightning.cli import SaveConfigCallback
else:
    import lightning.pytorch as pl
    from lightning.pytorch import callbacks, loggers
    from lightning.pytorch.cli import SaveConfigCallback
from torchmetrics.classification import MulticlassAccuracy

import struck
from holdfast import Best, Every, Last, Seeded, journal
from holdfast.lightning import Holdfast

sys.modules["tensorboard.compat.notf"] = sys.modules["json"]  # TensorBoard's logger does without TensorFlow
FEATURES, CLASSES = 6, 3
options = dict(word.split("=", 1) for word in sys.argv[1:] if "=" in word)
words = {word for word in sys.argv[1:] if "=" not in word}
workers = int(options.get("workers", 0))
seen = Counter()
ORDER = Path("order.txt")


def digest(value):
    if isinstance(value, torch.Tensor):
        return hashlib.sha256(value.detach().contiguous().numpy().tobytes()).hexdigest()[:12]
    if isinstance(value, dict):
        return {str(key): digest(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [digest(each) for each in value]
    return value


class Samples(Dataset):
    """Noise in each sample is drawn when it is fetched, also in a worker."""

    def __init__(self, length, seed):
        generator = torch.Generator().manual_seed(seed)
        self.x = torch.randn(length, FEATURES, generator=generator)
        self.y = torch.randint(CLASSES, (length,), generator=generator)

    def __len__(self):
        return len(self.x)

    def __getitem__(self, place):
        return self.x[place] + 0.1 * torch.randn(FEATURES) + 0.01 * random.random(), self.y[place], place


class Stream(IterableDataset):
    def __iter__(self):
        samples = Samples(22, 1)
        return (samples[place] for place in range(22))


class Model(pl.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(FEATURES, 8), nn.BatchNorm1d(8), nn.Dropout(0.2), nn.Linear(8, CLASSES))
        self.accuracy = MulticlassAccuracy(CLASSES)
        self.outputs, self.first, self.epochs = [], True, 0
        self.automatic_optimization = "manual" not in words
        self.best, self.noise, self.order = None, np.random.default_rng(5), torch.Generator().manual_seed(6)
        self.save_hyperparameters({"lr": 0.05})

    def forward(self, x):
        return self.net(x)

    def loss(self, batch):
        if isinstance(batch, dict):
            batch, other = batch["a"], batch["b"]
            scale = 1.0 if other is None else 1 + other[0].mean() / 100
        else:
            scale = 1.0
        x, y, places = batch
        note(places.tolist())
        return nn.functional.cross_entropy(self(x), y) * scale, x, y

    def on_train_epoch_start(self):
        assert self.logger.name is not None
        self.epochs += 1
        self.log("epochs", float(self.epochs))
        if "frozen" in words:
            self.net[0].requires_grad_(self.current_epoch > 0)
            self.net[1].train(self.current_epoch > 0)

    def training_step(self, batch, batch_idx):
        struck.event("step")
        loss, x, y = self.loss(batch)
        self.log("loss", loss, on_step=True, on_epoch=True)
        if batch_idx == 1:
            self.log("second", loss)
        self.accuracy(self(x), y)
        self.log("accuracy", self.accuracy, on_step=False, on_epoch=True)
        self.outputs.append(loss.detach() + self.noise.random() + torch.rand((), generator=self.order))
        if "manual" not in words:
            return loss
        first, second = self.optimizers()
        self.manual_backward(loss)
        if (batch_idx + 1) % 2 == 0:  # gradients of two batches, added up by hand
            first.step()
            first.zero_grad()
        if (batch_idx + 1) % 3 == 0:
            second.step()
            second.zero_grad()
        if self.trainer.is_last_batch:
            for scheduler in self.lr_schedulers():
                scheduler.step()
        return None

    def validation_step(self, batch, batch_idx):
        struck.event("validation")
        x, y, _ = batch
        self.log("val_loss", nn.functional.cross_entropy(self(x), y), batch_size=len(x))

    def on_train_epoch_end(self):
        struck.event("epoch")
        self.log("mean_of_outputs", torch.stack(self.outputs).mean())
        self.outputs.clear()

    def on_save_checkpoint(self, checkpoint):
        checkpoint["own"] = self.epochs

    def on_load_checkpoint(self, checkpoint):
        assert checkpoint["own"] == self.epochs

    def configure_optimizers(self):
        if "manual" in words:
            optimizers = [
                torch.optim.SGD(self.net[0].parameters(), 0.05, momentum=0.9),
                torch.optim.Adam([*self.net[1].parameters(), *self.net[3].parameters()], 0.05),
            ]
            return optimizers, [torch.optim.lr_scheduler.StepLR(each, 1, 0.7) for each in optimizers]
        optimizer = torch.optim.AdamW(self.parameters(), 0.05)
        if "cycle" in words:
            steps = self.trainer.estimated_stepping_batches
            scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.1, total_steps=steps + 10)
            return [optimizer], [{"scheduler": scheduler, "interval": "step"}]
        if "plateau" in words:
            plateau = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, patience=0, factor=0.5)
            return [optimizer], [{"scheduler": plateau, "monitor": "val_loss"}]
        return [optimizer], [torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.8)]


def note(places):
    """Append to the order of samples of this step; a step that is done again overwrites what it had."""
    trainer = model.trainer
    if trainer.is_global_zero and trainer.training:
        with ORDER.open("a") as file:
            file.write(f"{trainer.current_epoch} {trainer.fit_loop.epoch_loop.batch_idx} {places}\n")


class Counted(callbacks.Callback):
    """A user's own callback, with a count and without state_dict()."""

    def __init__(self):
        self.batches, self.at = 0, []

    def on_train_batch_end(self, trainer, module, outputs, batch, batch_idx):
        self.batches += 1
        self.at.append(batch_idx)
        struck.event("batch")


class Stopping(callbacks.EarlyStopping):
    """A user's own kind of one of Lightning's callbacks."""

    hits = 0

    def on_validation_end(self, trainer, module):
        super().on_validation_end(trainer, module)
        self.hits += 1


def loader():
    common: dict[str, Any] = {"num_workers": workers, "persistent_workers": "persistent" in words}
    if "stream" in words:
        return DataLoader(Stream(), batch_size=4)
    dataset = Samples(22, 1) if workers == 0 else Seeded(Samples(22, 1), seed=3)
    common["generator"] = model.order if "own" in words else None
    one = DataLoader(dataset, batch_size=4, shuffle=True, **common)
    if "two" not in words:
        return one
    return {"a": one, "b": DataLoader(Samples(int(options.get("other", 22)), 5), batch_size=4, shuffle=True)}


def content(logger):
    """What a logger's files say in the end, of all attempts."""
    if isinstance(logger, loggers.CSVLogger):
        return (Path(logger.log_dir) / "metrics.csv").read_text()
    from tensorboard.backend.event_processing.event_file_loader import EventFileLoader

    files = [[*EventFileLoader(str(file)).Load()] for file in sorted(Path(logger.log_dir).glob("events.out.tfevents*"))]
    files = sorted(filter(None, files), key=lambda events: events[0].wall_time)  # names of one second go by process ids
    return [
        [event.step, value.tag, str(value.tensor.float_val)]
        for events in files
        for event in events
        for value in event.summary.value
    ]


torch.manual_seed(7)
random.seed(7)
np.random.seed(7)
if workers == 0:
    torch.set_num_threads(1)
model, counted = Model(), Counted()
others = [
    callbacks.ModelCheckpoint(monitor="val_loss", save_top_k=2, save_last=True),
    Stopping("val_loss", patience=int(options.get("patience", 50))),
    callbacks.LearningRateMonitor(),
]
if "swa" in words:
    others.append(callbacks.StochasticWeightAveraging(0.03, swa_epoch_start=1))
if "cli" in words:  # what LightningCLI adds, with the one method of a parser that it calls
    parser: Any = SimpleNamespace(save=lambda config, path, **_: Path(path).write_text(json.dumps(config)))
    others.append(SaveConfigCallback(parser, {"lr": 0.05}))
if "average" in words:
    others.append(callbacks.WeightAveraging())
holdfast = Holdfast(
    "run",
    every=Every(steps=1),
    keep=Last(100) if "all" in words else Last(3) | Best("val_loss", min),
    background="behind" in words,
)
more = {}
if "max_steps" in options:
    more["max_steps"] = int(options["max_steps"])
if "interval" in options:
    more["val_check_interval"] = int(options["interval"])
if "limit" in options:
    more["limit_train_batches"] = int(options["limit"])
trainer = pl.Trainer(
    max_epochs=int(options.get("epochs", 3)),
    accumulate_grad_batches=int(options.get("accumulate", 1)),
    callbacks=[holdfast, counted, *others],
    logger=[
        loggers.CSVLogger("."),
        loggers.TensorBoardLogger(".", name="board", version=0 if "board" in words else None),
    ],
    log_every_n_steps=2,
    enable_progress_bar="bar" in words,
    enable_model_summary=False,
    accelerator="cpu",
    devices=int(options.get("devices", 1)),
    reload_dataloaders_every_n_epochs=int(options.get("reload", 0)),
    **more,
)
if "board" in words:  # of another run
    Path("board/version_0").mkdir(parents=True, exist_ok=True)
    Path(f"board/version_0/events.out.tfevents.{len(os.listdir('board/version_0'))}").write_bytes(b"another's")
held_out: Any = Samples(10, 2)
if "persistent" in words:  # their random numbers would go on from one validation to the next
    held_out = Seeded(held_out, seed=4)
validation = DataLoader(held_out, batch_size=4, num_workers=min(workers, 1), persistent_workers="persistent" in words)
theirs = max(Path().glob("*_logs/**/last.ckpt"), default=None) if "theirs" in words else None
trainer.fit(model, loader(), validation, ckpt_path=theirs)
if trainer.is_global_zero:
    order = dict(line.split(" [") for line in ORDER.read_text().splitlines())
    result = {
        "weights": digest(model.state_dict()),
        "optimizers": [digest(optimizer.state_dict()) for optimizer in trainer.optimizers],
        "schedulers": [digest(config.scheduler.state_dict()) for config in trainer.lr_scheduler_configs],
        "rng": [digest(torch.get_rng_state()), random.random()],
        "metrics": {name: float(value) for name, value in sorted(trainer.callback_metrics.items())},
        "logged": {name: float(value) for name, value in sorted(trainer.logged_metrics.items())},
        "counts": [counted.batches, counted.at, model.epochs, trainer.current_epoch, trainer.global_step],
        "files": [os.path.relpath(others[0].best_model_path), sorted(map(os.path.relpath, others[0].best_k_models))],
        "there": sorted(str(path) for path in Path().glob("*_logs/**/*.ckpt")),
        "early": [digest(others[1].state_dict()), others[1].hits],
        "order": order,
        "loggers": [content(each) for each in trainer.loggers],
        "lines": [
            [line["step"], line["epoch"], sorted(line["values"].items())] for line in journal.metrics(Path("run"))
        ],
        "versions": [each.version for each in trainer.loggers],
    }
    Path("result.json").write_text(json.dumps(result, indent=1))
