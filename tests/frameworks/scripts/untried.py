"""untried.py FRAMEWORK: two epochs of a small training with one function of the framework in a body that nobody tried.

What is planted is a statement more in the file that holds that function. The run is saved after each step if it may.
"""

import inspect
import sys
from importlib import import_module
from typing import Any

from holdfast import Every, Last
from holdfast.trainers.names import lookup

framework = sys.argv[1]
PLANTED = {
    "keras": "keras.src.trainers.epoch_iterator:EpochIterator._enumerate_iterator",
    "lightning": "lightning.pytorch.trainer.trainer:Trainer._run",
    "pytorch_lightning": "pytorch_lightning.trainer.trainer:Trainer._run",
    "transformers": "transformers.trainer:Trainer._run_epoch",
    "accelerate": "accelerate.data_loader:DataLoaderShard.__iter__",
    "stable_baselines3": "stable_baselines3.common.on_policy_algorithm:OnPolicyAlgorithm.learn",
}
options = {"every": Every(steps=1), "keep": Last(99), "background": False}
import_module(PLANTED[framework].partition(":")[0])
changed, source_of = inspect.unwrap(lookup(PLANTED[framework])), inspect.getsource
inspect.getsource = lambda each: source_of(each).rstrip() + ("; pass" if each is changed else "")  # type: ignore[assignment]


def keras():
    import keras
    import numpy as np

    from holdfast.keras import Holdfast

    keras.utils.set_random_seed(7)
    model = keras.Sequential([keras.layers.Dense(4, "relu"), keras.layers.Dropout(0.3), keras.layers.Dense(1)])
    model.compile("adam", "mse")
    x = np.random.default_rng(7).normal(size=(16, 3)).astype("float32")
    model.fit(x, x[:, :1], batch_size=4, epochs=2, verbose=0, callbacks=[Holdfast("run", **options)])


def lightning(name="lightning.pytorch"):
    import torch

    from holdfast.lightning import Holdfast

    pl: Any = import_module(name)
    torch.manual_seed(7)

    class Net(pl.LightningModule):
        def __init__(self):
            super().__init__()
            self.layer = torch.nn.Sequential(torch.nn.Dropout(0.3), torch.nn.Linear(1, 1))

        def training_step(self, batch, index):
            return (self.layer(batch) ** 2).mean()

        def configure_optimizers(self):
            return torch.optim.Adam(self.parameters(), 1e-3)

    off = ("logger", "enable_progress_bar", "enable_model_summary", "enable_checkpointing")
    loader = torch.utils.data.DataLoader(torch.randn(16, 1), batch_size=4, shuffle=True)
    trainer = pl.Trainer(
        max_epochs=2, accelerator="cpu", callbacks=[Holdfast("run", **options)], **dict.fromkeys(off, False)
    )
    trainer.fit(Net(), loader)


def pytorch_lightning():
    lightning("pytorch_lightning")


def transformers():
    import torch
    from transformers import Trainer, TrainingArguments

    from holdfast.transformers import Holdfast

    class Net(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = torch.nn.Sequential(torch.nn.Dropout(0.3), torch.nn.Linear(1, 1))

        def forward(self, x, labels):
            return {"loss": ((self.inner(x) - labels) ** 2).mean()}

    torch.manual_seed(7)
    words = {"report_to": [], "disable_tqdm": True, "save_strategy": "no", "logging_strategy": "no", "use_cpu": True}
    args = TrainingArguments("out", per_device_train_batch_size=4, num_train_epochs=2, seed=7, **words)
    samples = [{"x": torch.full((1,), float(number)), "labels": torch.ones(1)} for number in range(16)]
    Trainer(Net(), args, train_dataset=samples, callbacks=[Holdfast("run", **options)]).train()


def accelerate():
    import torch
    from accelerate import Accelerator
    from accelerate.utils import set_seed

    from holdfast import Run

    set_seed(7)
    accelerator = Accelerator(cpu=True)
    model = torch.nn.Sequential(torch.nn.Dropout(0.3), torch.nn.Linear(1, 1))
    loader = torch.utils.data.DataLoader(torch.randn(16, 1), batch_size=4, shuffle=True)
    model, optimizer, loader = accelerator.prepare(model, torch.optim.Adam(model.parameters()), loader)
    with Run("run", {"accelerator": accelerator}, **options) as run:
        for _ in run.epochs(2):
            for batch in run.batches(loader):
                accelerator.backward((model(batch) ** 2).mean())
                optimizer.step()
                optimizer.zero_grad()


def stable_baselines3():
    from stable_baselines3 import PPO

    from holdfast.stable_baselines3 import Holdfast

    model = PPO("MlpPolicy", "CartPole-v1", n_steps=16, batch_size=16, n_epochs=1, seed=7, device="cpu")
    model.learn(96, callback=Holdfast("run", **options))


globals()[framework]()
