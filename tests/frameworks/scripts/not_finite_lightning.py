"""A Lightning fit whose weights turn NaN in its fourth step, with `stop_on_nan`."""

import lightning.pytorch as pl
import torch
from torch.utils.data import DataLoader, TensorDataset

from holdfast import Every, Last
from holdfast.lightning import Holdfast

QUIET = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False, "enable_checkpointing": False}


class Net(pl.LightningModule):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(1, 1)

    def training_step(self, batch, index):
        return (self.layer(batch[0]) ** 2).mean() * (torch.nan if self.global_step == 3 else 1)

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), 1e-3)


ours = Holdfast("run", every=Every(steps=1), keep=Last(1), stop_on_nan=True)
loader = DataLoader(TensorDataset(torch.arange(64.0).reshape(64, 1)), batch_size=4)
pl.Trainer(max_epochs=2, accelerator="cpu", callbacks=[ours], **QUIET).fit(Net(), loader)
