"""What the callback refuses, each with its line; and that nothing of it stays on the trainer."""

import json
import warnings
from pathlib import Path
from types import SimpleNamespace

import torch
from torch import nn
from torch.utils.data import Dataset
from transformers import Trainer, TrainerCallback, TrainingArguments
from transformers import trainer as home
from transformers.trainer_pt_utils import LayerWiseDummyOptimizer

from holdfast import Every
from holdfast.errors import HoldfastError
from holdfast.transformers import Holdfast

warnings.filterwarnings("ignore")


class Samples(Dataset):
    def __len__(self):
        return 8

    def __getitem__(self, index):
        return {"x": torch.full((2,), float(index)), "labels": torch.tensor(1.0)}


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(2, 1)

    def forward(self, x, labels):
        if self.training and FAIL:
            raise ZeroDivisionError
        return {"loss": ((self.inner(x).squeeze(-1) - labels) ** 2).mean()}


class FailsAt(TrainerCallback):
    def on_step_end(self, args, state, control, **_):
        if state.global_step == 9:
            raise ZeroDivisionError


class Shares(TrainerCallback):
    """Before Holdfast it tells the trainer how its processes share the work."""

    def __init__(self, tell):
        self.on_train_begin = lambda *_, **__: tell()


class Seeded:
    seed = 3

    def __call__(self, samples):
        return {name: torch.stack([each[name] for each in samples]) for name in samples[0]}


class Breaks(TrainerCallback):
    """It fails when a training begins, behind Holdfast."""

    on = True

    def on_train_begin(self, *_, **__):
        if self.on:
            raise ZeroDivisionError


FAIL = False
told = {}


def trainer(*, collator=None, several=1, path="run", state=None, optimizer=None, overrides=None, **more):
    plain = {"output_dir": "out", "report_to": "none", "disable_tqdm": True, "use_cpu": True, "save_strategy": "no"}
    args = TrainingArguments(**{**plain, "max_steps": 4, "per_device_train_batch_size": 2, **more})
    options = {"overrides": overrides} if overrides else {}
    callbacks = [Holdfast(path, state=state, every=Every(steps=1), background=False, **options) for _ in range(several)]
    data = {"train_dataset": Samples(), "eval_dataset": Samples()}
    return Trainer(Net(), args, collator, **data, callbacks=callbacks, optimizers=(optimizer, None))


def says(name, made, **arguments):
    handed = dict(vars(made)), dict(vars(made.callback_handler)), home.skip_first_batches
    try:
        made.train(**arguments)
        told[name] = "nothing"
    except HoldfastError as error:
        told[name] = str(error)
    except ZeroDivisionError:
        told[name] = "the error of the training"
    left = dict(vars(made)), dict(vars(made.callback_handler)), home.skip_first_batches
    assert [each.keys() for each in handed[:2]] == [
        {*each} & {*was} for each, was in zip(left, handed[:2], strict=False)
    ]
    assert handed[2] is left[2]
    clean(made)


def clean(made):
    left = {*vars(made), *vars(made.callback_handler)}
    assert not {"_run_epoch", "_evaluate", "get_eval_dataloader", "on_epoch_begin"} & left


says("trained", trainer(save_strategy="steps", save_steps=2, path="first"))
says("finished", trainer(path="first"))
says("more steps", trainer(path="first", max_steps=6))
made = trainer(path="shorter", max_steps=-1)
made.add_callback(FailsAt())
says("cut", made)
says("shorter", trainer(path="shorter", max_steps=-1, per_device_train_batch_size=4))
says("as before", trainer(path="shorter", max_steps=-1))
says("resume_from_checkpoint", trainer(), resume_from_checkpoint="out/checkpoint-2")
says("enable_jit_checkpoint", trainer(enable_jit_checkpoint=True))
says("auto_find_batch_size", trainer(auto_find_batch_size=True))
says("collator", trainer(collator=Seeded()))
says("several", trainer(several=2))
made = trainer()
made.model.state_dict = dict  # as in alpaca-lora
says("state_dict", made)
says("a name twice", trainer(state={"model": []}))
says("layerwise", trainer(optimizer=LayerWiseDummyOptimizer(optimizer_dict={})))
shares = {
    "deepspeed": lambda made: setattr(made, "is_deepspeed_enabled", True),
    "fsdp1": lambda made: setattr(made.accelerator.state, "fsdp_plugin", SimpleNamespace(fsdp_version=1)),
    "tensor parallel": lambda made: setattr(made.accelerator.state, "parallelism_config", SimpleNamespace(tp_size=2)),
}
for name, tell in shares.items():
    made = trainer()
    made.callback_handler.callbacks.insert(0, Shares(lambda made=made, tell=tell: tell(made)))
    says(name, made)
FAIL = True
says("failed", trainer(path="failed"))
FAIL = False
says("after", trainer(path="failed"))

constant = {"path": "rate", "learning_rate": 0.125, "lr_scheduler_type": "constant"}
says("begun", trainer(**constant))
made = trainer(**constant, max_steps=8, overrides={"optimizer": {"lr": 0.5}})
says("overridden", made)
assert {group["lr"] for group in made.optimizer.param_groups} == {0.5}  # the scheduler sets it from its base rates

made = trainer(path="broken")
made.add_callback(breaks := Breaks())
try:
    made.train()
except ZeroDivisionError:
    breaks.on = False
made.train()
clean(made)

made = trainer(path="persistent", eval_strategy="epoch", dataloader_num_workers=1, dataloader_persistent_workers=True)
plain = made.get_eval_dataloader().base_dataloader
says("persistent", made)
assert made.get_eval_dataloader().base_dataloader is plain
Path("result.json").write_text(json.dumps(told))
