"""Write a small checkpoint with a real framework: KIND FOLDER. The weights go beside it, into expected.npz."""

import os
import sys
from pathlib import Path

import numpy as np

KIND, FOLDER = sys.argv[1], Path(sys.argv[2])


def keras_model():
    import keras

    keras.utils.set_random_seed(0)
    model = keras.Sequential([keras.layers.Input((3,)), keras.layers.Dense(4), keras.layers.Dense(2)])
    model.compile("adam", "mse")
    model.fit(np.ones((4, 3)), np.ones((4, 2)), verbose=0)
    return model, {str(number): np.asarray(each) for number, each in enumerate(model.get_weights())}


def keras():
    model, weights = keras_model()
    model.save(FOLDER / "model.keras")
    return weights


def keras_weights():
    model, weights = keras_model()
    model.save_weights(FOLDER / "model.weights.h5")
    return weights


def orbax_state():
    import jax.numpy as jnp

    return {"params": {"w": jnp.arange(6.0).reshape(2, 3), "big": jnp.arange(5000.0)}, "step": 7}


def orbax_manager():
    import orbax.checkpoint as ocp

    manager = ocp.CheckpointManager(FOLDER.absolute())
    manager.save(7, args=ocp.args.StandardSave(orbax_state()))
    manager.wait_until_finished()
    return {key: np.asarray(each) for key, each in orbax_state()["params"].items()}


def orbax_zarr(version=2):
    import orbax.checkpoint as ocp

    state = orbax_state() | {"name": "text", "none": None, "nothing": {}}
    handler = ocp.PyTreeCheckpointHandler(use_ocdbt=False, use_zarr3=version == 3)
    with ocp.Checkpointer(handler) as checkpointer:
        checkpointer.save(FOLDER.absolute() / "zarr", args=ocp.args.PyTreeSave(state))
    return {key: np.asarray(each) for key, each in orbax_state()["params"].items()}


def orbax_zarr3():
    return orbax_zarr(3)


def lightning():
    import lightning
    import torch

    class Model(lightning.LightningModule):
        def __init__(self, width=4):
            super().__init__()
            self.save_hyperparameters()
            self.layer = torch.nn.Linear(3, width)

        def training_step(self, batch, _):
            return self.layer(batch).sum()

        def configure_optimizers(self):
            return torch.optim.Adam(self.parameters())

    model = Model()
    quiet = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False}
    trainer = lightning.Trainer(max_epochs=2, accelerator="cpu", default_root_dir=FOLDER, **quiet)
    trainer.fit(model, torch.utils.data.DataLoader(torch.ones(6, 3), batch_size=2))
    for each in FOLDER.rglob("*.ckpt"):
        each.rename(FOLDER / each.name)
    (FOLDER / "checkpoints").rmdir()
    return {name: each.detach().numpy() for name, each in model.state_dict().items()}


def hugging_face():
    import torch
    from transformers import BertConfig, BertForSequenceClassification, Trainer, TrainingArguments

    config = BertConfig(
        vocab_size=16, hidden_size=8, num_hidden_layers=1, num_attention_heads=2, intermediate_size=8, num_labels=2
    )
    model = BertForSequenceClassification(config)
    data = [{"input_ids": torch.tensor([1, 2, 3]), "labels": torch.tensor(1)} for _ in range(8)]
    quiet = {"report_to": [], "disable_tqdm": True, "use_cpu": True}
    arguments = TrainingArguments(str(FOLDER), max_steps=2, save_steps=2, per_device_train_batch_size=2, **quiet)
    Trainer(model, arguments, train_dataset=data).train()
    return {name: each.detach().numpy() for name, each in model.state_dict().items()}


def hugging_face_shards():
    from transformers import BertConfig, BertModel

    model = BertModel(
        BertConfig(vocab_size=16, hidden_size=8, num_hidden_layers=2, num_attention_heads=2, intermediate_size=8)
    )
    model.save_pretrained(FOLDER / "sharded", max_shard_size="4KB")
    return {name: each.detach().numpy() for name, each in model.state_dict().items()}


if __name__ == "__main__":
    os.environ.setdefault("CUDA_VISIBLE_DEVICES", "")
    weights = globals()[KIND]()
    np.savez(FOLDER.parent / f"{KIND}.npz", **weights)
