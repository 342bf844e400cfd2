"""A training of transformers whose weights turn NaN in its fourth step, with `stop_on_nan`."""

import torch
from torch import nn
from transformers import Trainer, TrainingArguments

from holdfast import Every, Last
from holdfast.transformers import Holdfast


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner, self.steps = nn.Linear(1, 1), 0

    def forward(self, x, labels):
        self.steps += 1
        return {"loss": ((self.inner(x) - labels) ** 2).mean() * (torch.nan if self.steps == 4 else 1)}


samples = [{"x": torch.full((1,), float(number)), "labels": torch.ones(1)} for number in range(64)]
words = {"report_to": [], "disable_tqdm": True, "save_strategy": "no", "use_cpu": True}
args = TrainingArguments("out", per_device_train_batch_size=4, num_train_epochs=2, **words)
ours = Holdfast("run", every=Every(steps=1), keep=Last(1), stop_on_nan=True)
Trainer(Net(), args, train_dataset=samples, callbacks=[ours]).train()
