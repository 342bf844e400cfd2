"""One rank of a training by FSDP2 in a trainer: fsdp2.py transformers|at_load|lightning holdfast|own.

`at_load`: transformers divides the model when it loads it, and accelerate knows nothing of it.

`own`: the trainer saves every two steps by itself, and goes on from what it finds.

`states.jsonl` has the digests of all full tensors before each step, and `seen-RANK.jsonl` the samples of each.
"""

import json
import os
import sys
import warnings
from pathlib import Path
from typing import Any

import torch
from torch import distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.utils.data import DataLoader, Dataset

import struck
from holdfast import Every, Last, journal

warnings.filterwarnings("ignore")
torch.set_num_threads(1)
TRAINER, OWN = sys.argv[1], sys.argv[2] == "own"
WORLD, RANK = int(os.environ["WORLD_SIZE"]), int(os.environ["LOCAL_RANK"])
SAMPLES, TOGETHER, EPOCHS = 48, 12, 3
BEST = {"save_strategy": "epoch", "load_best_model_at_end": True}
OPTIONS: Any = {"every": Every(steps=2), "keep": Last(2), "background": False}


class Rows(Dataset):
    """Sample i; one of its tokens is dropped at random when it is fetched."""

    rows = torch.randint(1, 40, (SAMPLES, 8), generator=torch.Generator().manual_seed(3))

    def __init__(self, length):
        self.length = length

    def __len__(self):
        return self.length

    def __getitem__(self, place):
        row = self.rows[place].clone()
        row[torch.randint(8, ())] = 0
        return {"input_ids": row, "labels": row, "number": torch.tensor(int(place))}


def full(tensor):
    return tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor


def content(model, optimizer):
    """The digest of model and optimizer, whole; a collective."""
    found = {name: full(value).detach().float().numpy() for name, value in model.state_dict().items()}
    for number, state in optimizer.state_dict()["state"].items():
        found |= {f"{number} {name}": full(value).float().numpy() for name, value in state.items()}
    return struck.digest(found)


def write(name, *facts):
    with Path(name).open("a") as file:
        file.write(json.dumps(facts) + "\n")


def before_step(step, model, optimizer):
    found = content(model, optimizer)
    if RANK == 0:
        write("states.jsonl", os.environ["ATTEMPT"], step, found)


def untimed(entry):
    return {name: value for name, value in entry.items() if "runtime" not in name and "per_second" not in name}


def holdfast(kind):
    return [] if OWN else [kind("run", **OPTIONS)]


def result(model, optimizer, **more):
    found = {"content": content(model, optimizer), **more}
    found["log"] = [[each["step"], sorted(untimed(each["values"]).items())] for each in journal.metrics(Path("run"))]
    if RANK == 0:
        Path("result.json").write_text(json.dumps(found, indent=1))


def with_transformers():
    from accelerate import PartialState
    from accelerate.utils import DistributedType
    from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainerCallback, TrainingArguments
    from transformers.trainer_utils import get_last_checkpoint

    from holdfast.transformers import Holdfast

    class Counted(LlamaForCausalLM):
        def forward(self, number=None, **inputs):
            if self.training:
                write(f"seen-{RANK}.jsonl", os.environ["ATTEMPT"], trainer.state.global_step, number.tolist())
            return super().forward(**inputs)

    class Watch(TrainerCallback):
        def on_step_begin(self, args, state, control, **_):
            before_step(state.global_step, trainer.model, trainer.optimizer.optimizer)

        def on_step_end(self, *_, **__):
            struck.event("step")

    PartialState(cpu=True)
    torch.manual_seed(7)
    shape = {"hidden_size": 16, "intermediate_size": 24, "num_attention_heads": 2, "num_key_value_heads": 2}
    model = Counted(LlamaConfig(vocab_size=40, num_hidden_layers=2, attention_dropout=0.1, **shape))
    arguments: dict[str, Any] = {
        "accelerator_config": {"use_configured_state": True},
        "per_device_train_batch_size": TOGETHER // 2 // WORLD,
        "gradient_accumulation_steps": 2,
        "logging_steps": 1,
        "remove_unused_columns": False,
        "label_names": ["labels"],
        "eval_strategy": "epoch",
    }
    if TRAINER == "at_load":
        from transformers.distributed import DistributedConfig

        if RANK == 0:
            model.save_pretrained("begun")
        dist.barrier()
        model = Counted.from_pretrained("begun", distributed_config=DistributedConfig(fsdp_size=WORLD))
        arguments["save_strategy"] = "no"  # it can save no optimizer of such a model
    else:
        # accelerate takes FSDP on CPUs for DDP: with a device of its own kind all of its FSDP2 runs on gloo
        PartialState._shared_state["distributed_type"] = DistributedType.MULTI_GPU
        wrapped = {"fsdp_version": 2, "transformer_layer_cls_to_wrap": ["LlamaDecoderLayer"]}
        arguments |= {"fsdp": "full_shard auto_wrap", "fsdp_config": wrapped}
        arguments |= {"save_strategy": "steps", "save_steps": 2} if OWN else BEST
    quiet: dict[str, Any] = {"report_to": "none", "disable_tqdm": True, "use_cpu": True, "output_dir": "out"}
    args = TrainingArguments(**arguments, **quiet, num_train_epochs=EPOCHS, learning_rate=0.02)
    data = {"train_dataset": Rows(SAMPLES), "eval_dataset": Rows(TOGETHER)}
    trainer = Trainer(model, args, **data, callbacks=[Watch(), *holdfast(Holdfast)])
    trainer.train(resume_from_checkpoint=get_last_checkpoint("out") if OWN and Path("out").exists() else None)
    state = trainer.state
    history = [untimed(each) for each in state.log_history]
    kinds = {type(each).__name__ for each in trainer.model.parameters()}
    result(
        trainer.model, trainer.optimizer.optimizer, history=history, best=state.best_model_checkpoint, kinds=[*kinds]
    )


def with_lightning():
    import lightning.pytorch as pl
    from lightning.pytorch.strategies import ModelParallelStrategy

    from holdfast.lightning import Holdfast

    class Module(pl.LightningModule):
        def __init__(self):
            super().__init__()
            layers = nn.Embedding(40, 16), nn.Linear(16, 33), nn.Dropout(0.2), nn.Linear(33, 40)
            self.net = nn.Sequential(*layers)
            self.average: dict[str, Any] = {}

        def configure_model(self):
            for part in (self.net[1], self.net):
                fully_shard(part, mesh=self.device_mesh["data_parallel"])

        def loss(self, batch):
            return nn.functional.cross_entropy(self.net(batch["input_ids"]).flatten(0, 1), batch["labels"].flatten())

        def training_step(self, batch, batch_idx):
            write(f"seen-{RANK}.jsonl", os.environ["ATTEMPT"], self.global_step, batch["number"].tolist())
            loss = self.loss(batch)
            self.log("loss", loss, on_step=True, on_epoch=True, sync_dist=True)
            return loss

        def on_train_batch_start(self, batch, batch_idx):
            before_step(self.global_step, self, self.optimizers().optimizer)

        def on_train_batch_end(self, outputs, batch, batch_idx):
            for name, each in self.named_parameters():
                self.average[name].lerp_(each.detach(), 0.1)
            struck.event("step")

        def validation_step(self, batch, batch_idx):
            self.log("val_loss", self.loss(batch), sync_dist=True)

        def configure_optimizers(self):
            self.average = {name: each.detach().clone() for name, each in self.named_parameters()}
            return torch.optim.AdamW(self.parameters(), 0.02)

    torch.manual_seed(7)
    module = Module()
    kept: dict[str, Any] = {"every_n_train_steps": 2, "save_last": True} if OWN else {"monitor": "val_loss"}
    trainer = pl.Trainer(
        accelerator="cpu",
        devices=WORLD,
        strategy=ModelParallelStrategy(data_parallel_size=WORLD, tensor_parallel_size=1),
        callbacks=[*holdfast(Holdfast), pl.callbacks.ModelCheckpoint("own", **kept)],
        max_epochs=EPOCHS,
        gradient_clip_val=1.0,
        log_every_n_steps=1,
        enable_progress_bar=False,
        enable_model_summary=False,
        logger=False,
    )
    loader = DataLoader(Rows(SAMPLES), TOGETHER // WORLD, shuffle=True)
    last = "own/last.ckpt" if OWN and Path("own/last.ckpt").exists() else None
    trainer.fit(module, loader, DataLoader(Rows(TOGETHER), TOGETHER // WORLD), ckpt_path=last)
    average = struck.digest({name: full(each).numpy() for name, each in module.average.items()})
    logged = {name: float(value) for name, value in sorted(trainer.callback_metrics.items())}
    kinds = {type(each).__name__ for each in module.parameters()}
    result(module, trainer.optimizers[0], average=average, logged=logged, kinds=[*kinds])


with_lightning() if TRAINER == "lightning" else with_transformers()
if dist.is_initialized():
    dist.destroy_process_group()
