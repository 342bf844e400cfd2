"""A Trainer of transformers, with everything that draws random numbers or remembers: hf_trainer.py OPTION=VALUE...

Its result: weights, optimizer, log history, what train() returned, and the batches of every step.
"""

import hashlib
import json
import random
import sys
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.utils.data import Dataset, IterableDataset
from transformers import EarlyStoppingCallback, Trainer, TrainerCallback, TrainingArguments
from transformers.trainer_utils import get_last_checkpoint

from holdfast import Best, Every, Fields, Last
from holdfast.transformers import Holdfast
from struck import event

warnings.filterwarnings("ignore")
torch.set_num_threads(1)
OPTIONS: dict[str, Any] = {
    "holdfast": True,
    "workers": 0,
    "persistent": False,
    "iterable": False,
    "sized": True,
    "every": 3,
    "early": 0,
    "stops": 0,
    "remembers": False,
    "theirs": False,  # as the examples of transformers: from the Trainer's last checkpoint, if there is one
    "trainer": {},
    "path": "run",
}
OPTIONS |= {name: json.loads(value) for name, _, value in (word.partition("=") for word in sys.argv[1:])}
TIMES = ("time", "per_second")


class Samples(Dataset):
    """Sample i, with noise from each of the global generators, drawn when it is fetched."""

    def __init__(self, length):
        self.length = length

    def __len__(self):
        return self.length

    def __getitem__(self, index):
        if index >= self.length:
            raise IndexError(index)
        noise = random.random() + float(np.random.rand()) + float(torch.rand(()))
        length = 1 + index % 3
        return {
            "x": torch.full((4,), index / 10 + noise / 10),
            "labels": torch.tensor(float(index % 5)),
            "number": torch.tensor(int(index)),
            "input_ids": torch.arange(length),
        }


class Stream(IterableDataset):
    def __iter__(self):
        samples = Samples(20)
        yield from (samples[index] for index in range(20))


class SizedStream(Stream):
    def __len__(self):
        return 20


def collated(samples):
    batch = {name: torch.stack([each[name] for each in samples]) for name in ("x", "labels", "number")}
    batch["x"] = batch["x"] + 0.01 * torch.rand(())  # a collator that masks draws, too
    return batch


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner, self.drop, self.outer = nn.Linear(4, 8), nn.Dropout(0.3), nn.Linear(8, 1)

    def forward(self, x, labels, number):
        if self.training:
            SEEN.append([number.tolist(), float(x.double().sum())])
        out = self.outer(self.drop(torch.tanh(self.inner(x)))).squeeze(-1)
        return {"loss": ((out - labels) ** 2).mean(), "logits": out}


class Watch(TrainerCallback):
    """Marks what a strike may hit, and notes each step's batches. A step that is done again must be the same."""

    def on_substep_end(self, *_, **__):
        event("batch")

    def __init__(self):
        self.numbers = []  # no ExportableState, and kept all the same

    def on_epoch_end(self, *_, **__):
        SEEN.clear()  # of a last group without a step

    def on_prediction_step(self, *_, **__):
        event("validation")

    def on_step_end(self, args, state, control, **_):
        self.numbers.append(state.global_step)
        event("batch")
        event("step")
        rank = args.process_index
        with Path(f"steps-{rank}.jsonl").open("a") as file:
            file.write(json.dumps([state.global_step, SEEN]) + "\n")
        SEEN.clear()
        if OPTIONS["stops"] and state.global_step == OPTIONS["stops"]:
            control.should_training_stop = True


class Averaging(Trainer):
    """A trainer with an attribute of its own that its loss depends on."""

    average = 1.0

    def compute_loss(self, *args, **kwargs):
        found = super().compute_loss(*args, **kwargs)
        loss = found[0] if isinstance(found, tuple) else found
        self.average = 0.9 * self.average + 0.1 * loss.item()
        return (loss / self.average, *found[1:]) if isinstance(found, tuple) else loss / self.average


def steps():
    found = {}
    for path in sorted(Path().glob("steps-*.jsonl")):
        for line in path.read_text().splitlines():
            number, batches = json.loads(line)
            assert found.setdefault((path.name, number), batches) == batches, f"step {number} was another one"
    return [batches for _, batches in sorted(found.items())]


def digest(tensors):
    return hashlib.sha256(b"".join(each.detach().contiguous().numpy().tobytes() for each in tensors)).hexdigest()


def untimed(entry):
    """Durations are there, and no more is asked of them."""
    return {name: "a number" if any(word in name for word in TIMES) else value for name, value in entry.items()}


SEEN = []
workers = OPTIONS["workers"]
arguments = {
    "output_dir": "out",
    "num_train_epochs": 3,
    "per_device_train_batch_size": 2,
    "per_device_eval_batch_size": 4,
    "gradient_accumulation_steps": 3,
    "learning_rate": 0.05,
    "logging_steps": 2,
    "eval_strategy": "epoch",
    "save_strategy": "no",
    "report_to": "none",
    "disable_tqdm": True,
    "use_cpu": True,
    "seed": 5,
    "dataloader_num_workers": workers,
    "dataloader_persistent_workers": OPTIONS["persistent"],
    "remove_unused_columns": False,
    **OPTIONS["trainer"],
}
args = TrainingArguments(**arguments)
torch.manual_seed(0)
callbacks = [Watch()]
rule = Every(steps=OPTIONS["every"]) if OPTIONS["every"] else None
kept = {"every": rule, "keep": Last(2) | Best("eval_loss", min)}
if OPTIONS["holdfast"] and OPTIONS["remembers"] != "named":
    callbacks.append(Holdfast(OPTIONS["path"], **kept))
if OPTIONS["early"]:
    callbacks.append(EarlyStoppingCallback(OPTIONS["early"]))
train = (SizedStream() if OPTIONS["sized"] else Stream()) if OPTIONS["iterable"] else Samples(20)
kind = Averaging if OPTIONS["remembers"] else Trainer
trainer = kind(Net(), args, collated, train_dataset=train, eval_dataset=Samples(8), callbacks=callbacks)
if OPTIONS["remembers"] == "named":
    trainer.add_callback(Holdfast(OPTIONS["path"], state={"mine": Fields(trainer, "average")}, **kept))
output = trainer.train(resume_from_checkpoint=get_last_checkpoint("out") if OPTIONS["theirs"] else None)
optimizer = trainer.optimizer.state_dict()["state"]
if args.process_index == 0:
    result = {
        "weights": digest(trainer.model.parameters()),
        "optimizer": digest(value for _, each in sorted(optimizer.items()) for _, value in sorted(each.items())),
        "random": [random.random(), float(np.random.rand()), float(torch.rand(()))] if not OPTIONS["early"] else None,
        "history": [untimed(entry) for entry in trainer.state.log_history],
        "output": [output.global_step, output.training_loss, untimed(output.metrics)],
        "state": [trainer.state.global_step, trainer.state.epoch, trainer.state.best_metric, trainer.state.total_flos],
        "best": [trainer.state.best_global_step, trainer.state.best_model_checkpoint],
        "steps": steps(),
        "numbers": callbacks[0].numbers,
    }
    Path("result.json").write_text(json.dumps(result, indent=1))
