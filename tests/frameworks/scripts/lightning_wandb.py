"""A fit with Lightning's WandbLogger, offline."""

import json
import os
from pathlib import Path

os.environ |= {"WANDB_MODE": "offline", "WANDB_SILENT": "true", "WANDB_X_DISABLE_STATS": "true"}

import lightning.pytorch as pl
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import struck
from holdfast import Every
from holdfast.lightning import Holdfast


class Model(pl.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = nn.Linear(4, 1)

    def training_step(self, batch, batch_idx):
        loss = self.net(batch[0]).square().mean()
        self.log("loss", loss)
        return loss

    def on_train_batch_end(self, outputs, batch, batch_idx):
        struck.event("batch")

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), 0.01)


torch.manual_seed(1)
model = Model()
logger = pl.loggers.WandbLogger(project="holdfast", save_dir=".")
trainer = pl.Trainer(
    max_epochs=2,
    accelerator="cpu",
    logger=logger,
    log_every_n_steps=1,
    callbacks=[Holdfast("run", every=Every(steps=3), background=False)],
    enable_progress_bar=False,
    enable_model_summary=False,
    enable_checkpointing=False,
)
trainer.fit(model, DataLoader(TensorDataset(torch.randn(20, 4)), batch_size=2))
result = {"id": logger.version, "resume": logger._wandb_init["resume"]}
Path("result.json").write_text(json.dumps(result))
