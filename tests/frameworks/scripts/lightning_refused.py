"""What holdfast.lightning refuses; `result.json` has the messages."""

import json
from pathlib import Path

import lightning.pytorch as pl
from lightning.pytorch.callbacks import BackboneFinetuning
from lightning.pytorch.demos.boring_classes import BoringModel
from lightning.pytorch.loops.fit_loop import _FitLoop
from torch.utils.data import DataLoader, IterableDataset

from holdfast import Store
from holdfast.errors import UsageError
from holdfast.lightning import Holdfast

QUIET = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False, "enable_checkpointing": False}


class Pulling(BoringModel):
    def training_step(self, dataloader_iter):
        return super().training_step(next(dataloader_iter)[0], 0)


class Sized(BoringModel):
    def train_dataloader(self):
        return DataLoader([])


class Nothing(IterableDataset):
    def __iter__(self):
        return iter(())


class Stream(BoringModel):
    def train_dataloader(self):
        return DataLoader(Nothing())


def refused(name, *, model=BoringModel, callbacks=1, ckpt_path=None, strategy="auto", others=(), limit=2, **options):
    holdfasts = [Holdfast(name, **options) for _ in range(callbacks)]
    trainer = pl.Trainer(
        max_epochs=1, limit_train_batches=limit, limit_val_batches=0, callbacks=[*holdfasts, *others], **QUIET
    )
    if strategy != "auto":
        trainer.strategy.__class__ = type(strategy, (type(trainer.strategy),), {"_tensor_parallel_size": "auto"})
    try:
        trainer.fit(model(), ckpt_path=ckpt_path)
    except UsageError as error:
        return str(error)
    return "nothing"


trainer = pl.Trainer(max_epochs=1, limit_train_batches=2, limit_val_batches=0, **QUIET)
trainer.fit(BoringModel())
trainer.save_checkpoint("some.ckpt")
messages = {
    "ckpt_path": refused("a", ckpt_path="some.ckpt"),
    "two callbacks": refused("b", callbacks=2),
    "dataloader_iter": refused("c", model=Pulling),
    "fsdp": refused("d", strategy="FSDPStrategy"),
    "deepspeed": refused("d", strategy="DeepSpeedStrategy"),
    "tensor parallel": refused("d", strategy="ModelParallelStrategy"),
    "finetuning": refused("g", others=[BackboneFinetuning()]),
    "no batches": refused("h", limit=0),
    "no sample": refused("i", model=Sized),
    "no sample again": refused("i", model=Sized),
    "an empty stream": refused("i", model=Stream),
    "samples at last": refused("i"),
    "state": refused("e", state={"model": []}),
}
assert Store("i").latest().step == 2
_FitLoop.on_advance_start = lambda self, more: None
messages["another version"] = refused("f")
Path("result.json").write_text(json.dumps(messages))
