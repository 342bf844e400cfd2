"""What a Lightning fit with our callback leaves alone, and what it keeps of a module: asserted here, in one process."""

import json
import os
import signal
from collections import defaultdict
from inspect import signature
from pathlib import Path

import lightning.pytorch as pl
import numpy as np
import pytest
import torch
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.loggers import CSVLogger
from torch.utils.data import DataLoader, TensorDataset

from holdfast import Every
from holdfast.errors import UsageError
from holdfast.lightning import Holdfast

QUIET = {"enable_progress_bar": False, "enable_model_summary": False, "enable_checkpointing": False}
loader = DataLoader(TensorDataset(torch.arange(24.0).reshape(24, 1)), batch_size=4)


class Own(list):
    """A list of a class that a checkpoint does not know."""


class Net(pl.LightningModule):
    def __init__(self, fails=0, stops=0):
        super().__init__()
        self.layer, self.fails, self.stops = torch.nn.Linear(1, 1), fails, stops
        self.by_name, self.numbers, self.mean, self.pairs = defaultdict(list), [], np.float64(0), {(1, 2): 0}
        self.own, self.of_epoch, self.groups = Own(), None, {}

    def on_train_epoch_start(self):
        self.groups.setdefault("batches", [])
        for group in self.groups.values():
            group.clear()

    def training_step(self, batch, index):
        if self.fails == len(self.numbers) + 1:
            raise ValueError("enough")
        if self.stops == len(self.numbers) + 1:
            os.kill(os.getpid(), signal.SIGTERM)
        loss = (self.layer(batch[0]) ** 2).mean()
        self.by_name["index"].append(index)
        self.numbers.append(np.float64(index))
        self.mean = self.mean + np.float64(1)
        self.pairs[1, 2] += 1
        self.own.append(index)
        self.groups["batches"].append(index)
        self.log("loss", loss)
        return loss

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), 1e-5)


def fit(path, net, *, epochs=2, logger=False, others=(), every=1):
    ours = Holdfast(path, every=Every(steps=every), background=False)
    callbacks, quiet = [ours, *others], {**QUIET, "enable_checkpointing": bool(others)}
    pl.Trainer(max_epochs=epochs, log_every_n_steps=1, callbacks=callbacks, logger=logger, **quiet).fit(net, loader)
    return net


def fails(path, at, **options):
    with pytest.raises(ValueError, match="enough"):
        fit(path, Net(at), **options)


# Containers of every plain kind come back. What training changes and cannot be saved is said.
fails("a", 9)
net = fit("a", Net())
assert net.by_name["index"] == [*range(6), *range(6)]
assert len(net.numbers) == net.mean == net.pairs[1, 2] == 12
assert net.groups == {"batches": [*range(6)]}
with pytest.MonkeyPatch.context() as patched:
    lines = []
    patched.setattr("holdfast.trainers.attributes.warn", lines.append)
    fit("b", Net())
assert len(lines) == 1
assert "Net.own changes" in lines[0]

# A second training does not get the first one's weights without a word; with more epochs it goes on.
with pytest.raises(UsageError, match="has finished this run"):
    fit("a", Net())
assert len(fit("a", Net(), epochs=3).numbers) == 18

# A directory of another training, which has the same number elsewhere, is left alone.
fails("c", 4, logger=CSVLogger("here"))
other = Path("there/lightning_logs/version_0/metrics.csv")
other.parent.mkdir(parents=True)
other.write_text("acc\n" + "1\n" * 50)
fit("c", Net(), logger=CSVLogger("there"))
assert other.read_text() == "acc\n" + "1\n" * 50
assert len(Path("there/lightning_logs/version_1/metrics.csv").read_text().splitlines()) > 6

# So is another training's file in this run's own directory.
fails("d", 4, logger=CSVLogger("logs"))
mine = Path("logs/lightning_logs/version_0/metrics.csv")
rows = mine.read_text()
mine.write_text("acc\n" + "1\n" * 50)
with pytest.raises(UsageError, match="are not those that this run had logged"):
    fit("d", Net(), logger=CSVLogger("logs"))
assert mine.read_text() == "acc\n" + "1\n" * 50
mine.write_text(rows)
fit("d", Net(), logger=CSVLogger("logs"))
assert len(mine.read_text().splitlines()) == 13


# Two trainings with one directory of checkpoints keep their files. What an undone step wrote gets its name again.
class Files(ModelCheckpoint):
    def __init__(self, folder="shared", **options):
        super().__init__(folder, "{step}", every_n_train_steps=1, save_top_k=-1, **options)


with pytest.raises(ValueError, match="enough"):
    fit("e", Net(6), others=[Files()], every=3)
assert sorted(os.listdir("shared")) == [f"step={number}.ckpt" for number in range(1, 6)]
theirs = Path("shared/step=7.ckpt")
theirs.write_text("of another training")
fit("e", Net(), others=[Files()])
assert theirs.read_text() == "of another training"
names = {f"step={number}{'-v1' * (number == 7)}.ckpt" for number in range(1, 13)}
assert {*os.listdir("shared")} == {*names, theirs.name}

# A stop ends the run, also where ModelCheckpoint saves once more because of it.
also = {"save_on_exception": True} if "save_on_exception" in signature(ModelCheckpoint).parameters else {}  # since 2.6
before = signal.getsignal(signal.SIGTERM)
with pytest.raises(SystemExit) as stopped:
    fit("f", Net(stops=4), others=[Files("stopped", **also)])
assert stopped.value.code == 75
assert signal.getsignal(signal.SIGTERM) is before
assert len(fit("f", Net(), others=[Files("stopped")]).numbers) == 12
Path("result.json").write_text(json.dumps("all laws hold"))
