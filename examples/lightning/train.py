"""Train a network on scikit-learn's digits with Lightning, in a run that survives being killed.

python examples/lightning/train.py
holdfast drill -- python examples/lightning/train.py
"""

import lightning.pytorch as pl
import torch
import torch.nn.functional as F
from lightning.pytorch.callbacks import EarlyStopping
from lightning.pytorch.loggers import CSVLogger
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset, random_split

from holdfast import Best, Every, Last
from holdfast.lightning import Holdfast


class Classifier(pl.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Dropout(0.2), nn.Linear(64, 10))

    def training_step(self, batch):
        x, y = batch
        loss = F.cross_entropy(self.net(x), y)
        self.log("loss", loss, on_step=True, on_epoch=True)
        return loss

    def validation_step(self, batch):
        x, y = batch
        self.log("val_acc", (self.net(x).argmax(1) == y).float().mean())

    def configure_optimizers(self):
        optimizer = torch.optim.AdamW(self.parameters(), lr=3e-3)
        return [optimizer], [torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=5)]


pl.seed_everything(0)
digits = load_digits()
images = torch.tensor(digits.data, dtype=torch.float32) / 16
train, validation = random_split(TensorDataset(images, torch.tensor(digits.target)), [1437, 360])

holdfast = Holdfast("runs/digits", keep=Last(3) | Best("val_acc", max), every=Every(minutes=10))
trainer = pl.Trainer(
    max_epochs=5,
    accumulate_grad_batches=2,
    val_check_interval=0.5,
    callbacks=[holdfast, EarlyStopping("val_acc", mode="max", patience=6)],
    logger=CSVLogger("runs/logs"),
    accelerator="cpu",
    enable_progress_bar=False,
)
trainer.fit(Classifier(), DataLoader(train, batch_size=32, shuffle=True), DataLoader(validation, batch_size=120))
print(f"val_acc {trainer.callback_metrics['val_acc']:.4f}")
