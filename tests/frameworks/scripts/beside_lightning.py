"""beside_lightning.py none|own|holdfast: dropout and noise; Lightning's own mechanism, or ours."""

import json
import sys
from pathlib import Path

import lightning.pytorch as pl
import torch
from torch.utils.data import DataLoader

import struck

mode = sys.argv[1]
pl.seed_everything(7)


class Noisy(torch.utils.data.Dataset):
    x, y = torch.randn(84, 6), torch.randint(3, (84,))

    def __len__(self):
        return 84

    def __getitem__(self, place):
        return self.x[place] + 0.1 * torch.randn(6), self.y[place]


class Net(pl.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = torch.nn.Sequential(torch.nn.Linear(6, 8), torch.nn.Dropout(0.3), torch.nn.Linear(8, 3))

    def training_step(self, batch, place):
        loss = torch.nn.functional.cross_entropy(self.net(batch[0]), batch[1])
        self.log("loss", loss, on_step=False, on_epoch=True)
        return loss

    def on_train_batch_end(self, outputs, batch, place):
        with Path("batches").open("a") as trained:
            print(place, file=trained)
        struck.event("batch")

    def on_train_epoch_end(self):
        logged.append({name: float(value) for name, value in self.trainer.callback_metrics.items()})

    def on_save_checkpoint(self, checkpoint):
        checkpoint["logged"] = logged

    def on_load_checkpoint(self, checkpoint):
        logged[:] = checkpoint["logged"]

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=0.01)


logged: list[dict[str, float]] = []
callbacks, ckpt_path = [], None
if mode == "own":
    callbacks.append(pl.callbacks.ModelCheckpoint("checkpoints", every_n_train_steps=3, save_last=True))
    ckpt_path = "checkpoints/last.ckpt" if Path("checkpoints/last.ckpt").exists() else None
if mode == "holdfast":
    from holdfast import Every
    from holdfast.lightning import Holdfast

    callbacks.append(Holdfast("run", state={"logged": logged}, every=Every(steps=3), background=False))
model = Net()
quiet = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False}
trainer = pl.Trainer(accelerator="cpu", max_epochs=3, callbacks=callbacks, enable_checkpointing=mode == "own", **quiet)
trainer.fit(model, DataLoader(Noisy(), batch_size=12, shuffle=True), ckpt_path=ckpt_path)
weights = {name: value.numpy() for name, value in model.state_dict().items()}
Path("result.json").write_text(json.dumps({"weights": struck.digest(weights), "log": logged}))
