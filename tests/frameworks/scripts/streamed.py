"""A training over a Stream: `streamed.py FRAMEWORK`. Its result: the weights, which show the order of the samples."""

import json
import os
import sys
from pathlib import Path

import numpy as np

from holdfast import Every, Run
from holdfast.data import Stream, Window
from struck import event

EPOCHS, BATCH = 2, 4


def sample(number):
    return {"x": np.array([number / 42], np.float32), "noise": np.float32(np.random.rand())}


def stream(batch_size=BATCH, make=sample):
    return Stream(range(42), batch_size, seed=3, shuffle=Window(2, 9), map=make)


def of_jax():
    import jax
    import jax.numpy as jnp

    step = jax.jit(lambda w, batch: 0.9 * w + (batch["x"].ravel() + batch["noise"]).mean())
    with Run("run", {}, vars={"w": jnp.zeros(2)}, every=Every(steps=1)) as run:
        for _ in run.epochs(EPOCHS):
            for batch in run.batches(stream()):
                event("batch")
                run.vars.w = step(run.vars.w, batch)
        return run.vars.w.tolist()


def of_accelerate():
    import torch
    from accelerate import Accelerator
    from torch.utils.data import DataLoader

    accelerator = Accelerator(cpu=True)
    model = torch.nn.Linear(1, 1)
    loader = DataLoader(stream(), batch_size=None, num_workers=1)
    model, optimizer, loader = accelerator.prepare(model, torch.optim.SGD(model.parameters(), 0.1), loader)
    with Run("run", {"accelerator": accelerator}, every=Every(steps=1)) as run:
        for _ in run.epochs(EPOCHS):
            for batch in run.batches(loader):
                event("batch")
                accelerator.backward((model(batch["x"]).ravel() - batch["noise"]).square().mean())
                optimizer.step()
                optimizer.zero_grad()
    return weights(model)


def of_lightning():
    import lightning
    import torch
    from torch.utils.data import DataLoader

    from holdfast.lightning import Holdfast

    class Module(lightning.LightningModule):
        def __init__(self):
            super().__init__()
            self.inner = torch.nn.Linear(1, 1)

        def training_step(self, batch, _):
            event("batch")
            return (self.inner(batch["x"]).ravel() - batch["noise"]).square().mean()

        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), 0.1)

    module, callback = Module(), Holdfast("run", every=Every(steps=1))
    silent = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False}
    trainer = lightning.Trainer(max_epochs=EPOCHS, accelerator="cpu", callbacks=[callback], **silent)
    trainer.fit(module, DataLoader(stream(), batch_size=None, num_workers=1, persistent_workers=True))
    return weights(module)


def of_transformers():
    """The Trainer shuffles single samples itself."""
    import torch
    from transformers import Trainer, TrainingArguments

    from holdfast.transformers import Holdfast

    class Model(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = torch.nn.Linear(1, 1)

        def forward(self, x, noise):
            event("batch")
            return {"loss": (self.inner(x).ravel() - noise).square().mean()}

    arguments = TrainingArguments(
        "theirs",
        per_device_train_batch_size=BATCH,
        num_train_epochs=EPOCHS,
        remove_unused_columns=False,
        dataloader_num_workers=1,
        save_strategy="no",
        report_to=[],
        use_cpu=True,
    )

    def tensors(number):
        return {name: torch.as_tensor(value) for name, value in sample(number).items()}

    model = Model()
    trainer = Trainer(model, arguments, train_dataset=stream(None, tensors))
    trainer.add_callback(Holdfast("run", every=Every(steps=1)))
    trainer.train()
    return weights(model)


def of_keras():
    os.environ["KERAS_BACKEND"] = "torch"
    import keras

    from holdfast.keras import Holdfast

    class Batches(keras.utils.PyDataset):
        def __init__(self):
            super().__init__()
            self.stream, self.epoch = stream(), 0

        def __len__(self):
            return len(self.stream)

        def __getitem__(self, index):
            event("batch")
            self.stream.set_epoch(self.epoch)
            batch = self.stream[index]
            return batch["x"], batch["noise"]

        def on_epoch_end(self):
            self.epoch += 1

    keras.utils.set_random_seed(1)
    model = keras.Sequential([keras.layers.Input((1,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    model.fit(Batches(), epochs=EPOCHS, shuffle=False, verbose=0, callbacks=[Holdfast("run", every=Every(steps=1))])
    return [each.tolist() for each in model.get_weights()]


def weights(model):
    return [each.tolist() for each in model.parameters()]


def main(framework):
    if framework != "jax":
        import torch

        torch.manual_seed(1)
    Path("result.json").write_text(json.dumps(globals()[f"of_{framework}"]()))


main(sys.argv[1])
